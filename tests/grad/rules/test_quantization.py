"""Dequantisation by its scale: one, one per channel, one per block; quantisation is a step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxgrad import gradient
from onnxgrad.verify.running.session import run
from tests.grad.numeric import check_op, normal, op_model, positive

X = np.arange(24, dtype=np.int8).reshape(2, 4, 3)


@pytest.mark.parametrize(
    ("scale", "attributes"),
    [
        (positive(), ""),
        (positive(4), "<axis = 1>"),
        (positive(3), "<axis = -1>"),
        (positive(2, 2, 3), "<axis = 1, block_size = 2>"),
        (positive(2, 2, 3), "<axis = 1, block_size = 3>"),
    ],
)
@pytest.mark.parametrize("zero_point", [False, True])
def test_scale(scale: np.ndarray, attributes: str, zero_point: bool) -> None:
    constants: dict[str, Any] = {"q": X}
    if zero_point:
        constants["z"] = np.full(scale.shape, 5, np.int8)
    node = f"y = DequantizeLinear {attributes} (q, s{', z' if zero_point else ''})"
    runs = "block_size = 3" not in attributes
    if runs:
        check_op(node, {"s": scale}, constants=constants, symbolic=False, seeds=(0,))


def test_nothing_flows_through_rounding() -> None:
    x = normal(3)
    text = "q = QuantizeLinear (x, s, z)\n d = DequantizeLinear (q, s, z)\n y = Mul (d, x)"
    model = op_model(text, {"x": x}, constants={"s": np.float32(0.1), "z": np.int8(0)})
    found = run(gradient(model, adjoint="input"), {"x": x, "y_grad": np.ones(3, np.float32)})
    np.testing.assert_allclose(found["x_grad"], np.round(x / np.float32(0.1)) * 0.1, rtol=1e-5)
