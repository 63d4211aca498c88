"""Hessians against those of numpy, by inputs and weights, and against finite differences."""

from __future__ import annotations

import numpy as np
import pytest

import onnxgrad
from onnxgrad.errors import InputError
from onnxgrad.ir.load import load
from onnxgrad.verify.running.session import run
from tests.helpers import parse

TEXT = """g (float[2,3] x) => (float y) <float[3,2] w = {1,-2, 0.5,0.3, -0.4,0.7}> {
  h = MatMul (x, w)  t = Tanh (h)  s = Mul (t, t)  y = ReduceSum <keepdims = 0> (s) }"""
X = np.linspace(-0.5, 0.5, 6, dtype=np.float32).reshape(2, 3)


def expected() -> np.ndarray:
    """By x, from the slopes of t^2."""
    w = np.array([[1, -2], [0.5, 0.3], [-0.4, 0.7]])
    t = np.tanh(X @ w)
    second = 2 * (1 - t**2) * (1 - 3 * t**2)
    found = np.zeros((2, 3, 2, 3))
    for i in range(2):
        found[i, :, i] = np.einsum("k,ak,bk->ab", second[i], w, w)
    return found


@pytest.mark.parametrize("most", [0, 1 << 26])
def test_by_inputs_and_weights(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr("onnxgrad.grad.derivatives.jacobian._MOST", most)
    made = onnxgrad.hessian(parse(TEXT), ["x", "w"])
    names = ["y", "x_grad", "w_grad", "x_x_hessian", "w_x_hessian", "x_w_hessian", "w_w_hessian"]
    assert sorted(v.name for v in made.graph.output) == sorted(names)
    assert [v.name for v in made.graph.input] == ["x"]
    assert any(n.op_type == "Scan" for n in made.graph.node) == (most == 0)
    types = {v.name: str(v.type) for v in load(made).main.outputs}
    assert types["x_w_hessian"] == "f32[2,3,3,2]"
    found = run(made, {"x": X})
    np.testing.assert_allclose(found["x_x_hessian"], expected(), rtol=1e-4, atol=1e-5)
    crossed = found["w_x_hessian"].transpose(2, 3, 0, 1)
    np.testing.assert_allclose(found["x_w_hessian"], crossed, rtol=1e-4, atol=1e-5)


def test_it_agrees_with_differences() -> None:
    assert onnxgrad.check_product(parse(TEXT), ["x", "w"], of="hessian").verdict == "agrees"


def test_a_target_that_is_no_scalar_is_refused() -> None:
    with pytest.raises(InputError, match="not a scalar"):
        onnxgrad.hessian(parse(TEXT), "x", "t")
