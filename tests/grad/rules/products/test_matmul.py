"""onnxgrad/grad/rules/products/matmul.py"""

import pytest

from onnxgrad.grad import gradient
from tests.grad.numeric import check_op, normal, op_model

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
