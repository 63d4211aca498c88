"""Straight-through gradients of quantised models: PyTorch's fake quantisation, learned step sizes for the scale."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxgrad.cli.app import main
from onnxgrad.errors import InputError
from onnxgrad.grad import gradient
from onnxgrad.verify.running.run import run
from tests.grad.numeric import normal, op_model

PAIR = "q = QuantizeLinear {} (x, s, z)\n d = DequantizeLinear {} (q, s, z)\n y = Mul (d, d)"


def straight_through(
    x: np.ndarray, s: np.ndarray, z: np.ndarray, low: int, high: int, g: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """By hand: g where nothing is clipped; for the scale (q - z) - x/s where nothing is, else q - z."""
    steps = np.round(x / s) + z
    inside = (steps >= low) & (steps <= high)
    q = np.clip(steps, low, high)
    return np.where(inside, g, 0), g * (q - z - np.where(inside, x / s, 0))


@pytest.mark.parametrize(("dtype", "low", "high"), [(np.int8, -128, 127), (np.uint8, 0, 255)])
def test_one_scale(dtype: type, low: int, high: int) -> None:
    x = np.array([[-20.0, -1.03, 0.47, 0.2, 30.0]], np.float32)
    s, z = np.float32(0.1), dtype(3)
    graph = gradient(
        op_model(PAIR.format("", ""), {"x": x, "s": s}, constants={"z": z}),
        adjoint="input",
        ste=True,
    )
    onnx.checker.check_model(graph)
    found = run(graph, {"x": x, "s": s, "y_grad": np.ones_like(x)})
    d = (np.clip(np.round(x / s) + 3, low, high) - 3) * s
    to_x, to_s = straight_through(x, s, np.float32(z), low, high, 2 * d)
    np.testing.assert_allclose(found["x_grad"], to_x, rtol=1e-5)
    np.testing.assert_allclose(found["s_grad"], to_s.sum(), rtol=1e-4)


def test_a_scale_per_channel() -> None:
    x = 4 * normal(2, 3, 2)
    s, z = np.float32([0.01, 0.5, 0.1]), np.zeros(3, np.int8)
    text = PAIR.format("<axis = 1>", "<axis = 1>")
    graph = gradient(
        op_model(text, {"x": x, "s": s}, constants={"z": z}), adjoint="input", ste=True
    )
    found = run(graph, {"x": x, "s": s, "y_grad": np.ones_like(x)})
    wide = s.reshape(1, 3, 1)
    d = np.clip(np.round(x / wide), -128, 127) * wide
    to_x, to_s = straight_through(x, wide, np.float32(0), -128, 127, 2 * d)
    np.testing.assert_allclose(found["x_grad"], to_x, rtol=1e-5)
    np.testing.assert_allclose(found["s_grad"], to_s.sum(axis=(0, 2)), rtol=1e-3, atol=1e-4)


def test_the_forward_is_untouched() -> None:
    x, s = normal(2, 3), np.float32(0.1)
    model = op_model(PAIR.format("", ""), {"x": x}, constants={"s": s, "z": np.int8(0)})
    graph = gradient(model, adjoint="input", ste=True)
    assert [n.SerializeToString() for n in graph.graph.node[:3]] == [
        n.SerializeToString() for n in model.graph.node
    ]
    assert all(n.domain == "" for n in graph.graph.node)
    assert [o.domain for o in graph.opset_import] == [""]


@pytest.mark.filterwarnings("ignore:'y_grad' is taken")
def test_by_the_dequantised_value_itself() -> None:
    """A target that is the pair's own result, and an intermediate value behind it."""
    x = normal(2, 3)
    text = "q = QuantizeLinear (x, s, z)\n y = DequantizeLinear (q, s, z)"
    model = op_model(text, {"x": x}, constants={"s": np.float32(0.1), "z": np.int8(0)})
    found = run(gradient(model, ["x", "y"], adjoint="input", ste=True), {"x": x, "y_grad": x})
    np.testing.assert_array_equal(found["x_grad"], x)
    assert list(found) == ["y", "x_grad", "y_grad_2"]


def test_dynamic_quantisation() -> None:
    """Its range follows x, so nothing is clipped; scale and zero point depend on x too."""
    x = normal(3, 4)
    text = "q, s, z = DynamicQuantizeLinear (x)\n d = DequantizeLinear (q, s, z)\n y = Mul (d, c)"
    model = op_model(text, {"x": x}, constants={"c": np.float32(2)})
    found = run(gradient(model, adjoint="input", ste=True), {"x": x, "y_grad": np.ones_like(x)})
    ordinary = (x != x.max()) & (x != x.min())
    np.testing.assert_allclose(found["x_grad"][ordinary], 2, rtol=1e-6)


def test_different_scales_are_not_a_pair() -> None:
    x = normal(3)
    text = "q = QuantizeLinear (x, s, z)\n y = DequantizeLinear (q, t, z)"
    model = op_model(
        text, {"x": x}, constants={"s": np.float32(0.1), "t": np.float32(0.2), "z": np.int8(0)}
    )
    with pytest.raises(InputError, match="its integers go to DequantizeLinear, no DequantizeLin"):
        gradient(model, adjoint="input", ste=True)


def test_without_it_the_zero_is_explained() -> None:
    x = normal(3)
    model = op_model(
        PAIR.format("", ""), {"x": x}, constants={"s": np.float32(0.1), "z": np.int8(0)}
    )
    with pytest.warns(UserWarning, match=r"QuantizeLinear\(x, s, z\)' rounds; ste=True"):
        gradient(model, adjoint="input")


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = normal(3)
    model = op_model(
        PAIR.format("", ""), {"x": x}, constants={"s": np.float32(0.1), "z": np.int8(0)}
    )
    onnx.save(model, tmp_path / "m.onnx")
    words = ["grad", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "g.onnx"), "--adjoint", "input"]
    assert main([*words, "--ste", "--json", str(tmp_path / "r.json")]) == 0
    assert "straight through 1 quantisation" in capsys.readouterr().out
    assert json.loads((tmp_path / "r.json").read_text())["check"] is None
    found = run(tmp_path / "g.onnx", {"x": x, "y_grad": np.ones_like(x)})
    np.testing.assert_allclose(
        found["x_grad"], 2 * np.round(x / np.float32(0.1)) * np.float32(0.1), rtol=1e-5
    )
