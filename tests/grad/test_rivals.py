"""What other gradient tools refuse or get wrong without saying so, one case for each.

The tools: onnx-ad 0.3.0, the training package of onnxruntime 1.19.2, and the graph_grad of onnxsim 0.8.1. A case that
has a file of its own is named there: functions and captures in test_bodies.py, operators without any rule elsewhere
(Det, MaxRoiPool, sequences, optionals) in rules/.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from onnxgrad import gradient
from onnxgrad.errors import InputError
from onnxgrad.verify.reference.evaluate import reference
from onnxgrad.verify.running.session import run
from tests.grad.numeric import check_model, check_op, distinct, normal, op_model, positive

Arrays = Mapping[str, np.ndarray]


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


IMAGE = normal(2, 4, 7, 6)

# what is refused elsewhere: node, feeds, constants
REFUSED: dict[str, tuple[str, Arrays, Arrays]] = {
    "SAME_UPPER": ('y = Conv <auto_pad = "SAME_UPPER", strides = [2, 3]> (x, w)', {"x": IMAGE, "w": normal(3, 4, 3, 2)}, {}),
    "SAME_LOWER": ('y = Conv <auto_pad = "SAME_LOWER", strides = [2, 1]> (x, w)', {"x": IMAGE, "w": normal(3, 4, 2, 4)}, {}),
    "SAME transposed": (
        'y = ConvTranspose <auto_pad = "SAME_UPPER", strides = [2, 2]> (x, w)', {"x": IMAGE, "w": normal(4, 3, 3, 3)}, {}
    ),
    "SAME average": ('y = AveragePool <auto_pad = "SAME_LOWER", kernel_shape = [2, 3], strides = [2, 2]> (x)', {"x": IMAGE}, {}),
    "average ceil": ("y = AveragePool <ceil_mode = 1, kernel_shape = [3, 2], strides = [2, 3]> (x)", {"x": IMAGE}, {}),
    "average ceil padded": (
        "y = AveragePool <ceil_mode = 1, count_include_pad = 1, kernel_shape = [3, 3], strides = [2, 2], pads = [1, 0, 0, 1]> (x)",
        {"x": IMAGE}, {},
    ),
    "average dilated": ("y = AveragePool <dilations = [2, 1], kernel_shape = [2, 2]> (x)", {"x": IMAGE}, {}),
    "max ceil dilated": (
        "y = MaxPool <ceil_mode = 1, dilations = [1, 2], kernel_shape = [3, 2], strides = [2, 2]> (x)", {"x": distinct(1, 2, 6, 7)}, {}
    ),
    "grouped weight": ("y = Conv <group = 2, pads = [1, 0, 1, 0]> (x, w)", {"x": IMAGE, "w": normal(6, 2, 3, 3)}, {}),
    "depthwise weight": ("y = Conv <group = 4, strides = [2, 1]> (x, w)", {"x": IMAGE, "w": normal(8, 1, 3, 2)}, {}),
    "grouped transposed weight": ("y = ConvTranspose <group = 2, dilations = [1, 2]> (x, w)", {"x": IMAGE, "w": normal(4, 3, 2, 2)}, {}),
    "slice steps": ("y = Slice (x, a, b, c, d)", {"x": IMAGE}, {"a": ints(6, 1), "b": ints(-100, 6), "c": ints(2, -1), "d": ints(-2, 3)}),
    "scatter mul": (
        'y = ScatterElements <axis = 0, reduction = "mul"> (x, i, u)', {"x": normal(3, 2), "u": normal(2, 2, seed=1)},
        {"i": np.array([[0, 1], [0, 2]])},
    ),
    "scatter min": (
        'y = ScatterND <reduction = "min"> (x, i, u)', {"x": distinct(4, 2), "u": distinct(3, 2, seed=1)}, {"i": np.array([[0], [3], [0]])}
    ),
    "scatter max": (
        'y = ScatterElements <reduction = "max"> (x, i, u)', {"x": distinct(3, 2), "u": distinct(2, 2, seed=2)},
        {"i": np.array([[0, 1], [0, 2]])},
    ),
    "three outputs": (
        "y, m, s = LayerNormalization <axis = -1> (x, w, b)", {"x": normal(3, 5), "w": normal(5, seed=1), "b": normal(5, seed=2)}, {}
    ),
    "training BatchNormalization": (
        "y, rm, rv = BatchNormalization <training_mode = 1, momentum = 0.7> (x, w, b, m, v)",
        {"x": normal(4, 3, 2), "w": normal(3), "b": normal(3, seed=1), "m": normal(3, seed=2), "v": positive(3)}, {},
    ),
    "inference BatchNormalization": (
        "y = BatchNormalization (x, w, b, m, v)",
        {"x": normal(4, 3, 2), "w": normal(3), "b": normal(3, seed=1), "m": normal(3, seed=2), "v": positive(3)}, {},
    ),
    "asymmetric pads": ("y = Conv <pads = [0, 2, 1, 0], strides = [2, 2]> (x, w)", {"x": IMAGE, "w": normal(3, 4, 3, 3)}, {}),
    "no axes": ("y = ReduceSum (x, a)", {"x": normal(2, 3)}, {"a": ints()}),
    "no axes, none reduced": ("y = ReduceL2 <noop_with_empty_axes = 1, keepdims = 0> (x, a)", {"x": normal(2, 3)}, {"a": ints()}),
    "determinant": ("y = Det (x)", {"x": normal(2, 3, 3)}, {}),
    "part of a Split": ("a, b, c = Split <axis = 1> (x, n)\n y = Mul (b, b)", {"x": normal(2, 6)}, {"n": ints(1, 3, 2)}),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_numerically(name: str) -> None:
    node, feeds, constants = REFUSED[name]
    # SAME needs the kernel's size beforehand, which a weight has
    check_op(node, feeds, constants=constants, symbolic=False if "SAME" in name else None)


# operands that arrive when the graph runs: node, feeds of which the integers are not known beforehand
AT_RUN_TIME: dict[str, tuple[str, Arrays]] = {
    "axes": ("y = ReduceMean <keepdims = 0> (x, a)", {"x": normal(2, 3, 4), "a": ints(-1, 0)}),
    "pads": ("y = Pad (x, p)", {"x": normal(2, 3), "p": ints(1, -1, 0, 2)}),
    "pads and axes": ("y = Pad (x, p, v, a)", {"x": normal(2, 3), "p": ints(1, 2), "v": normal(), "a": ints(-1)}),
    "starts": ("y = Slice (x, s, e, a, t)", {"x": normal(4, 5), "s": ints(-2), "e": ints(0), "a": ints(1), "t": ints(-2)}),
    "repeats": ("y = Tile (x, r)", {"x": normal(2, 3), "r": ints(2, 3)}),
    "shape": ("y = Expand (x, s)", {"x": normal(3, 1), "s": ints(2, 1, 4)}),
    "reshape": ("y = Reshape (x, s)", {"x": normal(3, 4), "s": ints(2, -1)}),
    "sizes of a Split": ("a, b = Split (x, n)\n y = Sin (b)", {"x": normal(5, 2), "n": ints(2, 3)}),
    "unsqueezed axes": ("y = Unsqueeze (x, a)", {"x": normal(2, 3), "a": ints(0, -1)}),
    "rows": ("y = Gather <axis = 1> (x, i)", {"x": normal(2, 5), "i": ints(4, 4, -5)}),
}  # fmt: skip


@pytest.mark.parametrize("name", AT_RUN_TIME)
def test_operands_that_arrive_at_run_time(name: str) -> None:
    node, feeds = AT_RUN_TIME[name]
    check_op(node, feeds, symbolic=True)


def test_convolution_with_dynamic_height_and_width() -> None:
    weights = {"w": normal(3, 2, 3, 2), "b": normal(3)}
    for node in (
        "y = Conv <strides = [2, 3], pads = [1, 0, 0, 2], dilations = [1, 2]> (x, w, b)",
        'y = Conv <auto_pad = "SAME_UPPER", strides = [2, 2]> (x, w, b)',
    ):
        model = op_model(node, {"x": normal(2, 2, 8, 9)}, constants=weights, symbolic=True)
        for height, width in ((8, 9), (5, 7)):
            check_model(model, {"x": normal(2, 2, height, width)}, ["x", "w", "b"])


def test_weights_and_values_between() -> None:
    """Gradients by initializers and by intermediate values."""
    model = op_model(
        "h = MatMul (x, w)\n y = Tanh (h)", {"x": normal(2, 3)}, constants={"w": normal(3, 4)}
    )
    x, w, u = normal(2, 3), normal(3, 4), normal(2, 4, seed=1)
    found = run(gradient(model, ["x", "w", "h"], adjoint="input"), {"x": x, "y_grad": u})
    h = u * (1 - np.tanh(x @ w) ** 2)
    np.testing.assert_allclose(found["h_grad"], h, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["w_grad"], x.T @ h, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["x_grad"], h @ w.T, rtol=1e-5, atol=1e-6)


def test_a_domain_is_part_of_an_operators_name() -> None:
    """my::Tanh is not Tanh."""
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21, "my" : 1]>
    g (float[3] x) => (float[3] y) { y = my.Tanh (x) }""")
    with pytest.raises(InputError, match="my::Tanh"):
        gradient(model, adjoint="input")


def test_norm_at_zero() -> None:
    """0, as in PyTorch: the subgradient of the smallest norm."""
    x = np.zeros((2, 3), np.float32)
    x[1] = 3, 0, 4
    graph = gradient(
        op_model("y = ReduceL2 <keepdims = 0> (x, a)", {"x": x}, constants={"a": ints(1)}),
        adjoint="input",
    )
    found = run(graph, {"x": x, "y_grad": np.ones(2, np.float32)})
    np.testing.assert_allclose(found["x_grad"], [[0, 0, 0], [0.6, 0, 0.8]], rtol=1e-6)


@pytest.mark.parametrize(
    ("x", "g"), [([0, 2, 3], [6, 0, 0]), ([0, 2, 0], [0, 0, 0]), ([4, 2, 3], [6, 12, 8])]
)
def test_product_with_zeros(x: list[float], g: list[float]) -> None:
    graph = gradient(op_model("y = ReduceProd <keepdims = 0> (x)", {"x": np.float32(x)}), ["x"])
    np.testing.assert_allclose(run(graph, {"x": np.float32(x)})["x_grad"], g)


def test_training_dropout_keeps_its_draw() -> None:
    """The forward's mask is what the gradient uses, drawn once: y_grad where y is not zero."""
    x = positive(40, 50)
    model = op_model(
        "y = Dropout <seed = 3> (x, r, t)",
        {"x": x},
        constants={"r": np.float32(0.4), "t": np.array(True)},
        outputs=["y"],
    )
    graph = gradient(model, adjoint="input")
    for optimize in (False, True):
        found = run(graph, {"x": x, "y_grad": np.ones_like(x)}, optimize=optimize)
        np.testing.assert_allclose(found["x_grad"], found["y"] / x, rtol=1e-6)
        assert 0.3 < np.mean(found["x_grad"] == 0) < 0.5


@pytest.mark.parametrize("dtype", [TensorProto.BFLOAT16, TensorProto.FLOAT16, TensorProto.DOUBLE])
def test_other_floats(dtype: int) -> None:
    """The adjoint has its value's type, and agrees with the float32 one to the type's precision."""

    def model(of: int) -> onnx.ModelProto:
        text = """<ir_version: 10, opset_import: ["" : 21]>
        g (T[2,3] x, T[3,3] w) => (T y) { h = MatMul (x, w) s = Softmax (h) t = Mul (s, x) y = ReduceSum <keepdims = 0> (t) }"""
        return onnx.parser.parse_model(
            text.replace("T[", f"{NAMES[of]}[").replace("T y", f"{NAMES[of]} y")
        )

    x, w = normal(2, 3), normal(3, 3, seed=1)
    graph = gradient(model(dtype), ["x", "w"])
    onnx.checker.check_model(graph, full_check=True)
    assert {v.type.tensor_type.elem_type for v in graph.graph.output} == {dtype}
    found, expected = (
        reference(graph, {"x": x, "w": w}),
        reference(gradient(model(1), ["x", "w"]), {"x": x, "w": w}),
    )
    for name in ("x_grad", "w_grad"):
        np.testing.assert_allclose(found[name], expected[name], rtol=0, atol=0.02)


NAMES = {
    TensorProto.FLOAT: "float",
    TensorProto.BFLOAT16: "bfloat16",
    TensorProto.FLOAT16: "float16",
    TensorProto.DOUBLE: "double",
}


def test_second_order_with_a_symbolic_batch() -> None:
    """d/dx sum(dy/dx) of y = sum(tanh(x w)) where no batch is known."""
    model = op_model("h = MatMul (x, w)\n t = Tanh (h)\n y = ReduceSum <keepdims = 0> (t)", {"x": normal(2, 3), "w": normal(3, 4)}, symbolic=True)  # fmt: skip
    first = gradient(model, ["x", "w"])
    for batch in (1, 5):
        check_model(first, {"x": normal(batch, 3), "w": normal(3, 4)}, ["x", "w"], target="x_grad")
