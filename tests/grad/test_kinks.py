"""At kinks: PyTorch's choice where it has one (each value below was taken from PyTorch 2.13), and no NaN out of nowhere."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from onnxgrad import gradient
from onnxgrad.verify.running.session import run
from tests.grad.numeric import op_model

# node, the points, the derivatives there
ONE_SIDED = [
    ("Relu", [0], [0]),
    ("LeakyRelu <alpha = 0.1>", [0], [0.1]),
    ("Elu <alpha = 0.5>", [0], [0.5]),
    ("Celu <alpha = 0.5>", [0], [1]),
    ("Selu", [0], [1.7580993]),
    ("ThresholdedRelu <alpha = 1.0>", [1], [0]),
    ("HardSigmoid <alpha = 0.25, beta = 0.5>", [-2, 2], [0, 0]),
    ("HardSwish", [-3, 3], [0, 1]),
    ("Shrink <lambd = 0.5>", [-0.5, 0.5], [0, 0]),
    ("Shrink <lambd = 0.5, bias = 0.5>", [-0.5, 0.5], [0, 0]),
    ("Softsign", [0], [1]),
    ("Abs", [0], [0]),
    ("Sign", [0], [0]),
    ("Round", [0.5], [0]),
    ("Sqrt", [0], [np.inf]),
    ("Log", [0], [np.inf]),
    ("Reciprocal", [0], [-np.inf]),
    ("ReduceL1", [0, -2], [0, -1]),
    ("ReduceL2", [0, 0], [0, 0]),
    ("ReduceMax", [1, 1, 0], [0.5, 0.5, 0]),
    ("ReduceMin", [0, 1, 0], [0.5, 0, 0.5]),
    ("LpNormalization", [0, 0], [0, 0]),
]


def derivative(node: str, x: list[float], **constants: float) -> np.ndarray:
    """The gradient of the sum of `node (x, constants)`, in onnxruntime."""
    feed = {"x": np.array(x, np.float32)}
    operands = ", ".join(["x", *constants])
    arrays = {k: np.asarray(v, np.float32) for k, v in constants.items()}
    model = op_model(f"y = {node} ({operands})", feed, constants=arrays)
    ones = np.ones_like(run(model, feed)["y"])
    return np.asarray(
        run(gradient(model, ["x"], adjoint="input"), {**feed, "y_grad": ones})["x_grad"]
    )


@pytest.mark.filterwarnings("ignore:no requested value reaches")
@pytest.mark.parametrize(("node", "x", "expected"), ONE_SIDED)
def test_of_one_operand(node: str, x: list[float], expected: list[float]) -> None:
    np.testing.assert_allclose(derivative(node, x), expected, rtol=1e-6)


def test_of_several_operands() -> None:
    np.testing.assert_allclose(derivative("Clip", [-1, 1], low=-1, high=1), [1, 1])
    np.testing.assert_allclose(derivative("PRelu", [0], slope=0.3), [0.3], rtol=1e-6)
    np.testing.assert_allclose(derivative("Max", [1, 2], other=1), [0.5, 1])
    np.testing.assert_allclose(derivative("Min", [1, 2], other=1), [0.5, 0])
    np.testing.assert_allclose(derivative("Pow", [0], exponent=0), [0])
    np.testing.assert_allclose(derivative("Mod <fmod = 1>", [4, 3], divisor=2), [1, 1])


def test_what_is_not_selected_passes_nothing() -> None:
    """Where, If and masks choose; an infinite derivative on the other side must not come through as 0 * inf."""
    x = np.float32([0, 4])
    model = op_model(
        "s = Sqrt (x)\n l = Log (x)\n p = Greater (x, z)\n a = Where (p, s, z)\n b = Where (p, l, z)\n y = Add (a, b)",
        {"x": x},
        constants={"z": np.float32(0)},
    )
    for safe in (True, False):
        graph = gradient(model, ["x"], adjoint="input", safe=safe)
        found = run(graph, {"x": x, "y_grad": np.ones(2, np.float32)})["x_grad"]
        assert found[1] == pytest.approx(0.5)
        # PyTorch gives NaN at 0: 0 * inf in IEEE arithmetic, the derivative of sqrt and log there
        assert found[0] == 0 if safe else np.isnan(found[0])
    branches = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
    g (float x, bool c) => (float y) { y = If (c) <then_branch: graph = t () => (float p) { p = Log (x) },
                                                   else_branch: graph = e () => (float q) { q = Neg (x) }> }""")
    found = run(gradient(branches, ["x"]), {"x": np.float32(0).reshape(()), "c": np.array(False)})[
        "x_grad"
    ]
    assert found == -1


def test_infinite_logits_are_masked() -> None:
    """Softmax over a row with -inf: those entries receive 0, nothing becomes NaN."""
    x = np.float32([[0.5, -np.inf, 1.0]])
    found = run(
        gradient(op_model("y = Softmax (x)", {"x": x}), adjoint="input"),
        {"x": x, "y_grad": np.float32([[1, 2, 3]])},
    )
    y = np.exp(x) / np.exp(x).sum()
    g = np.float32([[1, 2, 3]])
    np.testing.assert_allclose(found["x_grad"], y * (g - (g * y).sum()), rtol=1e-5)


@pytest.mark.parametrize(
    "node",
    [
        *("Max (x, c)", "Max (x, c, c)", "Clip (x, c)", "Relu (x)", "ThresholdedRelu (x)", "Trilu (x)"),
        *("ReduceMax (x)", "GlobalMaxPool (x)", "MaxPool <kernel_shape = [4]> (x)", "TopK (x, k)"),
        *("ScatterElements <axis = 2, reduction = \"max\"> (x, i, u)", "Where (m, x, c)"),
    ],
)  # fmt: skip
def test_an_element_that_is_not_selected_receives_nothing_of_an_infinite_adjoint(node: str) -> None:
    """0 times infinity would be NaN. The adjoint is infinite in front of a Sqrt at 0."""
    x = np.float32([[[3, -1, 2, -2]]])
    constants = {
        "c": np.float32(0),
        "k": np.array([1]),
        "i": np.array([[[1, 3]]]),
        "u": np.zeros((1, 1, 2), np.float32),
        "m": np.array([[[True, False, True, False]]]),
    }
    if node.startswith("Trilu"):
        x = x.reshape(1, 2, 2).transpose(0, 2, 1)
    used = {n: v for n, v in constants.items() if f", {n}" in node or f"({n}," in node}
    out = "y, at" if node.startswith("TopK") else "y"
    model = op_model(f"{out} = {node}", {"x": x}, constants=used, outputs=["y"])
    shape = run(model, {"x": x})["y"].shape
    graph = gradient(model, "x", "y", adjoint="input")
    found = run(graph, {"x": x, "y_grad": np.full(shape, np.inf, np.float32)})["x_grad"]
    assert found.reshape(-1)[0] == np.inf and not np.isnan(found).any()
