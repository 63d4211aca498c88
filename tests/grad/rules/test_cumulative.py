"""CumSum, CumProd (zeros among the factors included) and Range against central differences."""

from __future__ import annotations

import numpy as np
import pytest

from onnxgrad.grad import gradient
from onnxgrad.verify.running.run import run
from tests.grad.numeric import check_op, normal, op_model


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
def test_cumulative(exclusive: int, reverse: int) -> None:
    flags = f"<exclusive = {exclusive}, reverse = {reverse}>"
    check_op(f"y = CumSum {flags} (x, a)", {"x": normal(3, 4)}, constants={"a": np.array(1)})
    check_op(f"y = CumSum {flags} (x, a)", {"x": normal(3, 4), "a": np.array(-2)})


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("zeros", [0, 1, 2])
def test_cum_prod(exclusive: int, reverse: int, zeros: int) -> None:
    x = normal(2, 5)
    x[0, [1, 3][:zeros]] = 0
    flags = f"<exclusive = {exclusive}, reverse = {reverse}>"
    check_op(
        f"y = CumProd {flags} (x, a)",
        {"x": x},
        constants={"a": np.array(1)},
        opset=26,
        onnxruntime=False,
    )


def test_range() -> None:
    model = op_model(
        "y = Range (a, b, d)", {"a": np.float32(0), "b": np.float32(0), "d": np.float32(0)}
    )
    feeds = {"a": np.float32(1), "b": np.float32(3.9), "d": np.float32(0.5), "y_grad": normal(6)}
    found = run(gradient(model, ["a", "d"], adjoint="input"), feeds)
    np.testing.assert_allclose(found["a_grad"], feeds["y_grad"].sum(), rtol=1e-6)
    np.testing.assert_allclose(found["d_grad"], (feeds["y_grad"] * np.arange(6)).sum(), rtol=1e-6)
