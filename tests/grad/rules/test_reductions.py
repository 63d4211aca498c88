"""onnxgrad/grad/rules/reductions.py"""

import itertools
import math

import numpy as np
import pytest

from onnxgrad import gradient
from onnxgrad.verify.reference.evaluate import reference
from onnxgrad.verify.running.session import run
from tests.grad.numeric import check_op, distinct, op_model, positive
from tests.helpers import parse

NAMES = ["Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp"]


def operand(name: str) -> np.ndarray:
    return positive(2, 3, 4) if name == "LogSum" else distinct(2, 3, 4)


@pytest.mark.covering(2)
@pytest.mark.parametrize("axes", [[1], [-1, 0], []])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("name", NAMES)
def test_axes_constant_and_at_run_time(name: str, keepdims: int, axes: list[int]) -> None:
    given = {"a": np.array(axes, np.int64)}
    node = f"y = Reduce{name} <keepdims = {keepdims}> (x, a)"
    check_op(node, {"x": operand(name)}, constants=given, symbolic=True)
    check_op(node, {"x": operand(name), **given}, symbolic=False)


@pytest.mark.parametrize("name", NAMES)
def test_no_axes(name: str) -> None:
    check_op(f"y = Reduce{name} <keepdims = 0> (x)", {"x": operand(name)})
    noop = f"y = Reduce{name} <keepdims = 0, noop_with_empty_axes = 1> (x, a)"
    empty = np.array([], np.int64)
    check_op(noop, {"x": operand(name)}, constants={"a": empty}, symbolic=False)
    check_op(noop, {"x": operand(name), "a": empty}, symbolic=False)


def adjoint_of_ones(node: str, x: list[float]) -> np.ndarray:
    feeds = {"x": np.array(x, np.float32)}
    return run(gradient(op_model(node, feeds)), feeds)["x_grad"]


def test_a_product_with_a_zero_is_exact() -> None:
    np.testing.assert_array_equal(
        adjoint_of_ones("y = ReduceProd <keepdims = 0> (x)", [0, 2, 3]), [6, 0, 0]
    )
    np.testing.assert_array_equal(
        adjoint_of_ones("y = ReduceProd <keepdims = 0> (x)", [0, 0, 3]), [0, 0, 0]
    )


def test_the_norm_at_zero_has_gradient_zero() -> None:
    np.testing.assert_array_equal(
        adjoint_of_ones("y = ReduceL2 <keepdims = 0> (x)", [0, 0]), [0, 0]
    )


def test_equal_maxima_share_evenly() -> None:
    np.testing.assert_array_equal(
        adjoint_of_ones("y = ReduceMax <keepdims = 0> (x)", [1, 2, 2]), [0, 0.5, 0.5]
    )


# x is a vector of five; y the product of its elements, or of the first three, times a number
PRODUCTS = {
    "ReduceProd": ("y = ReduceProd <keepdims = 0> (x)", [(5, 1.0)]),
    "CumProd": ("o = Constant <value_int = 0> () y = CumProd (x, o)", [(k, 1.0) for k in range(1, 6)]),
    "exclusive": ("o = Constant <value_int = 0> () y = CumProd <exclusive = 1> (x, o)", [(k, 1.0) for k in range(5)]),
    "ScatterElements": ("i = Constant <value_ints = [0, 0, 0, 0, 0]> () y = ScatterElements <reduction = \"mul\"> (two, i, x)", [(5, 2.0)]),
    "ScatterND": ("i = Constant <value_ints = [0, 0, 0, 0, 0]> () w = Constant <value_ints = [5, 1]> () n = Reshape (i, w) y = ScatterND <reduction = \"mul\"> (two, n, x)", [(5, 2.0)]),
}  # fmt: skip


@pytest.mark.parametrize("name", ["ReduceProd", *(pytest.param(n, marks=pytest.mark.slow) for n in PRODUCTS if n != "ReduceProd")])  # fmt: skip
def test_third_derivatives_of_products_with_zeros(name: str) -> None:
    """Along v, products of x + t v are polynomials in t, whose coefficients are exact."""
    nodes, products = PRODUCTS[name]
    sums = (
        f"{{ two = Constant <value_floats = [2.0]> () {nodes} s = ReduceSum <keepdims = 0> (y) }}"
    )
    graph = parse(f'<ir_version: 12, opset_import: ["" : 26]> g (float[5] x) => (float s) {sums}')
    result = "s"
    for _ in range(3):
        graph = gradient(graph, "x", result, adjoint="ones" if result == "s" else "input")
        result = graph.graph.output[-1].name
    seeds = [v.name for v in graph.graph.input if v.name != "x"]
    rng = np.random.default_rng(0)
    for zeros in itertools.chain.from_iterable(
        itertools.combinations(range(5), count) for count in (0, 2, 3, 4, 5)
    ):
        x, v = np.float32([1.5, -2, 0.5, 3, -1]), rng.integers(-3, 4, 5).astype(np.float32)
        x[list(zeros)] = 0
        found = reference(graph, {"x": x, **dict.fromkeys(seeds, v)})[result] @ v
        lines = [np.polynomial.Polynomial([a, b]) for a, b in zip(x, v)]
        want = sum(
            k * math.prod(lines[:n], start=np.polynomial.Polynomial([1.0])) for n, k in products
        )
        np.testing.assert_allclose(
            found, want.deriv(3)(0.0), rtol=1e-9, atol=1e-9, err_msg=str(zeros)
        )
