"""What products cost: lines in the number of rows, and what depends on constants only."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from onnxgrad.ir.load import load
from onnxgrad.laws.product_costs import Cost, chain, cost_of_products, fixed
from onnxgrad.rewrite.trace import Decline
from tests.rewriting import model_of, weights


@pytest.mark.parametrize(
    ("new", "old", "rows", "below"),
    [
        (Cost(0, 9), Cost(0, 10), None, True),
        (Cost(0, 10), Cost(0, 10), None, False),
        (Cost(100, 1), Cost(0, 10), None, False),  # for many rows only
        (Cost(100, 1), Cost(0, 10), 12, False),
        (Cost(100, 1), Cost(0, 10), 13, True),
        (Cost(0, 10), Cost(100, 1), None, False),  # for few rows only
        (Cost(0, 10), Cost(100, 1), 9, True),
        (Cost(0, 5), Cost(100, 10), None, True),
        (Cost(0, 5), Cost(0, 10), 0, False),  # nothing to gain
        (Cost(0, 0), Cost(0, 0), None, False),
    ],
)
def test_clearly_below(new: Cost, old: Cost, rows: int | None, below: bool) -> None:
    assert new.below(old, rows) is below


def test_a_chain_by_hand() -> None:
    found = chain((5, 2), (2, 3), (3, 4), free=False, rows=0)
    assert (found.left, found.right, found.rows) == (Cost(0, 6 + 12), Cost(24, 8), 5)
    free = chain((7, "N", 2), (2, 3), (3, 4), free=True, rows=9)
    assert (free.right, free.rows) == (Cost(0, 8), 9)
    batched = chain((7, 1, 5, 2), (6, 2, 3), (1, 3, 4), free=False, rows=0)
    assert (batched.left, batched.right) == (Cost(0, 42 * 18), Cost(6 * 24, 42 * 8))
    with pytest.raises(Decline, match="do not fit"):
        chain((7, 5, 2), (6, 2, 3), (3, 4), free=False, rows=0)


def test_fixed_by_constants() -> None:
    text = """g (float[4,4] x) => (float[4,4] y, float[4,4] z) {
      t = Transpose(a) p = MatMul(t, a) y = Add(p, x) z = Gemm(p, a) }"""
    values = {v.name: v for v in load(model_of(text, weights(a=(4, 4)))).main.vars()}
    assert {n for n, v in values.items() if fixed(v)} == {"a", "t", "p", "z"}


def test_a_long_chain_of_constants_is_not_followed_for_ever() -> None:
    steps = " ".join(f"v{i + 1} = Add(v{i}, v{i})" for i in range(200))
    program = load(model_of(f"g (float[2] x) => (float[2] v200) {{ {steps} }}", weights(v0=(2,))))
    assert not fixed(program.main.outputs[0])


def test_the_measure_of_a_block() -> None:
    text = """g (float[N,4] x, float[4,5] b, float[2,3,4] h) => (float[N,5] y, float[2,3,4] z) {
      y = MatMul(x, b) z = Mul(h, h) }"""
    assert cost_of_products(0).of(load(model_of(text)).main) == 20 + 16 * 24
    assert cost_of_products(7).of(load(model_of(text)).main) == 140 + 16 * 24


BATCHES = [(), (1,), (3,), (2, 1), (2, 3)]


@pytest.mark.parametrize("free", [False, True])
def test_costs_are_multiplications_of_the_products(free: bool) -> None:
    """Of both orders in proportion, for all batch axes that broadcast."""
    m, k, r, n = 5, 2, 3, 4
    for first, second, third in product(BATCHES, repeat=3):
        x, a, b = np.ones((*first, m, k)), np.ones((*second, k, r)), np.ones((*third, r, n))
        left = (x @ a).size * k + (x @ a @ b).size * r
        right = (0 if free else (a @ b).size * r) + (x @ (a @ b)).size * k
        found = chain(x.shape, a.shape, b.shape, free=free, rows=0)
        assert found.rows is not None
        costs = [found.left.at(found.rows), found.right.at(found.rows)]
        assert costs[0] * right == costs[1] * left, (first, second, third)
