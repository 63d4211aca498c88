"""onnxgrad/grad/rules/matrix_products.py"""

from __future__ import annotations

import numpy as np
import pytest

from onnxgrad import gradient
from onnxgrad.errors import InputError
from onnxgrad.verify.running.session import run
from tests.grad.numeric import check_model, check_op, normal, op_model

SHAPES = [
    ((3, 4), (4, 5)), ((2, 3, 4), (4, 5)), ((3, 4), (2, 4, 5)), ((2, 3, 4), (2, 4, 5)), ((2, 1, 3, 4), (6, 4, 5)),
    ((4,), (4,)), ((4,), (4, 5)), ((3, 4), (4,)), ((4,), (2, 4, 5)), ((2, 3, 4), (4,)),
]  # fmt: skip


@pytest.mark.parametrize(("a", "b"), SHAPES)
def test_matmul(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    check_op("y = MatMul (a, b)", {"a": normal(*a), "b": normal(*b)})


@pytest.mark.parametrize(
    ("attributes", "a", "b", "c"),
    [
        ("", (2, 3), (3, 4), (4,)),
        ("<transA = 1>", (3, 2), (3, 4), (2, 1)),
        ("<transB = 1, alpha = 0.5>", (2, 3), (4, 3), (1, 4)),
        ("<transA = 1, transB = 1, beta = 2.0>", (3, 2), (4, 3), ()),
        ("<alpha = 0.5, beta = 0.25>", (2, 3), (3, 4), (2, 4)),
    ],
)
def test_gemm(attributes: str, a: tuple[int, ...], b: tuple[int, ...], c: tuple[int, ...]) -> None:
    feeds = {"a": normal(*a), "b": normal(*b)}
    check_op(f"y = Gemm {attributes} (a, b)", feeds)
    check_op(f"y = Gemm {attributes} (a, b, c)", {**feeds, "c": normal(*c)})


def test_the_gradient_of_a_linear_layer_sums_over_the_batch_in_one_product() -> None:
    model = op_model("y = MatMul (x, w)", {"x": normal(2, 3, 4), "w": normal(4, 5)})
    ops = [n.op_type for n in gradient(model, ["w"], adjoint="input").graph.node]
    assert ops.count("Gemm") == 1
    assert "ReduceSum" not in ops


CASES = {
    "ij,jk->ik": [(2, 3), (3, 4)],
    "bij,bjk->bik": [(2, 2, 3), (2, 3, 4)],
    "ij,jk": [(2, 3), (3, 4)],
    "i,i": [(4,), (4,)],
    "i,j->ij": [(2,), (3,)],
    "ij->ji": [(2, 3)],
    "ij->i": [(2, 3)],
    "ij->": [(2, 3)],
    "ii->i": [(3, 3)],
    "ii->": [(3, 3)],
    "ii": [(3, 3)],
    "iij,j->i": [(2, 2, 3), (3,)],
    "...ii->...i": [(2, 3, 3)],
    "...ij,...jk->...ik": [(2, 3, 4), (2, 4, 2)],
    "i...,i...->...": [(2, 3), (2, 3)],
    "a...a->...": [(2, 3, 2)],
    "ij,jk,kl->il": [(2, 3), (3, 2), (2, 4)],
    "ij,kl->i": [(2, 3), (2, 4)],
    "bhqd,bhkd->bhqk": [(1, 2, 3, 4), (1, 2, 2, 4)],
}


@pytest.mark.parametrize("equation", CASES)
def test_equation(equation: str) -> None:
    names = "xyz"
    feeds = {names[i]: normal(*shape, seed=i) for i, shape in enumerate(CASES[equation])}
    check_op(f'o = Einsum <equation = "{equation}"> ({", ".join(feeds)})', feeds, seeds=(0,))


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize(
    ("equation", "a", "b"),
    [
        ("...,...k->...k", (2, 1), (2, 2, 3)),
        ("...i,...i->...", (1, 3), (2, 3)),
        ("...ij,...j->...i", (3, 1, 2, 4), (1, 2, 4)),
    ],
)
def test_a_size_of_1_that_is_broadcast(
    equation: str, a: tuple[int, ...], b: tuple[int, ...], symbolic: bool
) -> None:
    """onnx infers the symbol of one operand for the result, also if that size is 1."""
    feeds = {"x": normal(*a), "y": normal(*b, seed=1)}
    check_op(f'o = Einsum <equation = "{equation}"> (x, y)', feeds, symbolic=symbolic, seeds=(0,))


def test_second_derivative() -> None:
    feeds = {"x": normal(2, 3), "y": normal(3, 2)}
    first = gradient(
        op_model('o = Einsum <equation = "ij,ji->i"> (x, y)', feeds, symbolic=True), adjoint="input"
    )
    given = {**feeds, "o_grad": np.ones(2, np.float32)}
    check_model(first, given, [*feeds], target=["x_grad", "y_grad"], seeds=(0,))


def test_an_ellipsis_over_an_unknown_number_of_axes_is_refused() -> None:
    model = op_model(
        'o = Einsum <equation = "...i,...i->..."> (x, y)', {"x": normal(2, 3), "y": normal(2, 3)}
    )
    model.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(InputError, match="needs the rank of '"):
        gradient(model, adjoint="input")


@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (3, 3), (5, 5), (2, 3, 3), (2, 1, 3, 3)])
def test_shapes(shape: tuple[int, ...]) -> None:
    check_op(
        "y = Det (x)", {"x": normal(*shape)}, symbolic=None if shape[-1] > 1 else False, seeds=(0,)
    )


def test_singular_matrices_have_cofactors() -> None:
    x = np.array([[1, 2, 3], [2, 4, 6], [1, 1, 1]], np.float32)
    graph = gradient(op_model("y = Det (x)", {"x": x}))
    cofactors = np.array([[-2, 4, -2], [1, -2, 1], [0, 0, 0]], np.float32)
    np.testing.assert_allclose(run(graph, {"x": x})["x_grad"], cofactors, atol=1e-6)
    np.testing.assert_array_equal(run(graph, {"x": np.zeros((3, 3), np.float32)})["x_grad"], 0)


def test_minors_of_larger_matrices_are_formed_row_by_row() -> None:
    """n^3 numbers at a time; a Scan, which has derivatives of its own, and no n^4 of them."""
    check_op("y = Det (x)", {"x": normal(2, 7, 7)}, seeds=(0,), symbolic=False)
    x = normal(7, 7)
    x[3] = x[2]
    model = op_model("y = Det (x)", {"x": x})
    first = gradient(model, adjoint="input")
    (scan,) = [n for n in first.graph.node if n.op_type == "Scan"]
    (body,) = [a.g for a in scan.attribute if a.name == "body"]
    assert [n.op_type for n in body.node if n.op_type == "Det"] == ["Det"]
    feeds = {"x": x, "y_grad": np.float32(1.3)}
    check_model(first, feeds, ["x"], target="x_grad", seeds=(0,))


def test_second_derivative_of_det() -> None:
    x = normal(2, 3, 3)
    first = gradient(op_model("y = Det (x)", {"x": x}), adjoint="input")
    check_model(
        first, {"x": x, "y_grad": normal(2, seed=1)}, ["x", "y_grad"], target="x_grad", seeds=(0,)
    )
