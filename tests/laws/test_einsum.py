"""Einsum that is a product of matrices or a transpose: equations, dtypes, ranks, and what stays."""

from __future__ import annotations

import numpy as np
import pytest

import onnxgrad
from tests.helpers import parse
from tests.rewriting import (
    apply,
    assert_same_bits,
    assert_same_results,
    rewritten,
    special,
    weights,
)

PASS = "merge-consecutive"


def of_two(equation: str, x: str, z: str, dtype: str = "float") -> str:
    return f'g ({dtype}[{x}] x, {dtype}[{z}] z) => ({dtype}[] o) {{ o = Einsum<equation = "{equation}">(x, z) }}'


@pytest.mark.parametrize(
    ("equation", "x", "z", "swapped"),
    [
        ("ij,jk->ik", "N,4", "4,5", False),
        ("ij,jk", "N,4", "4,5", False),
        ("bij,bjk->bik", "2,N,4", "2,4,5", False),
        ("bij, bjk -> bik", "B,N,4", "B,4,5", False),
        ("abij,abjk->abik", "2,3,N,4", "2,3,4,5", False),
        ("bsd,de->bse", "2,N,4", "4,5", False),
        ("absd,de->abse", "2,3,N,4", "4,5", False),
        ("jk,ij->ik", "4,5", "N,4", True),
        ("bjk,bij->bik", "2,4,5", "2,N,4", True),
    ],
)
@pytest.mark.parametrize("dtype", ["float", "double", "int64"])
def test_a_product_of_matrices(equation: str, x: str, z: str, swapped: bool, dtype: str) -> None:
    done = rewritten(of_two(equation, x, z, dtype), PASS)
    assert done.ops == ["MatMul"]
    assert done.after.graph.node[-1].input[0] == ("z" if swapped else "x")
    kind = {"float": np.float32, "double": np.float64, "int64": np.int64}[dtype]
    rng = np.random.default_rng(1)
    sizes = {"N": 7, "B": 2}
    feeds = {
        n: rng.integers(-9, 9, [sizes.get(d) or int(d) for d in s.split(",")]).astype(kind)
        for n, s in (("x", x), ("z", z))
    }
    assert_same_bits(done, **feeds)  # whole numbers: no order of sums shows
    if dtype != "int64":
        assert_same_results(done)


def test_a_constant_is_transposed_at_once() -> None:
    text = 'g (float[2,N,4] x) => (float[2,N,5] o) { o = Einsum<equation = "bsd,ed->bse">(x, w) }'
    done = rewritten(text, f"{PASS},fold-constant", weights(w=(5, 4)))
    assert done.ops == ["MatMul"]
    assert_same_results(done)


@pytest.mark.parametrize(
    ("equation", "perm"), [("ij->ji", [1, 0]), ("abc->cab", [2, 0, 1]), ("ba", [1, 0])]
)
def test_a_transpose(equation: str, perm: list[int]) -> None:
    shape = [2, 3, 4][: len(equation.partition("->")[0])]
    text = (
        f'g (float{shape} x) => (float[] o) {{ y = Einsum<equation = "{equation}">(x) o = Neg(y) }}'
    )
    done = rewritten(text, PASS)
    assert done.ops == ["Transpose", "Neg"]
    assert list(next(iter(done.block.bindings)).attr("perm")) == perm
    assert_same_bits(done, x=special(*shape))


def test_an_einsum_that_changes_nothing() -> None:
    text = 'g (float[2,N] x) => (float[2,N] o) { y = Einsum<equation = "ij->ij">(x) o = Neg(y) }'
    assert rewritten(text, PASS).ops == ["Neg"]


@pytest.mark.parametrize(
    ("equation", "x", "z"),
    [
        ("bij,bkj->bik", "2,3,4", "2,5,4"),  # a Transpose in addition
        ("ij,jk->ki", "3,4", "4,5"),
        ("ij,jk->ijk", "3,4", "4,5"),  # nothing is summed
        ("ij,jk->i", "3,4", "4,5"),
        ("ij,ij->i", "3,4", "3,4"),
        ("ii,ik->ik", "4,4", "4,5"),
        ("...ij,...jk->...ik", "2,3,4", "2,4,5"),
        ("bij,ajk->baik", "2,3,4", "2,4,5"),
        ("ij,jk->ik", "3,1", "4,5"),  # Einsum broadcasts the summed axis
        ("ij,jk->ik", "3,N", "M,5"),
        ("bij,bjk->bik", "1,3,4", "2,4,5"),  # and the batch
        ("i,i->", "3", "3"),
    ],
)
def test_other_equations_stay(equation: str, x: str, z: str) -> None:
    done = apply(of_two(equation, x, z), PASS)
    assert done.ops == ["Einsum"] and done.declined


def test_sums_of_one_stay() -> None:
    for equation in ("ij->i", "ii->i", "...j->j..."):
        text = f'g (float[3,3] x) => (float[] o) {{ o = Einsum<equation = "{equation}">(x) }}'
        assert apply(text, PASS).ops == ["Einsum"]


def test_unknown_ranks_stay() -> None:
    text = 'g (float[N] n, int64[M] s, float[4,5] z) => (float[] o) { x = Reshape(n, s) o = Einsum<equation = "ij,jk->ik">(x, z) }'
    assert apply(text, PASS).ops == ["Reshape", "Einsum"]


def test_bfloat16_stays() -> None:
    """onnxruntime has no kernel for a MatMul of bfloat16."""
    model = parse(
        'g (bfloat16[2,3] x, bfloat16[3,4] y) => (bfloat16[2,4] z) { z = Einsum <equation = "ij,jk->ik"> (x, y) }'
    )
    assert [n.op_type for n in onnxgrad.optimize(model, verify=False).graph.node] == ["Einsum"]
