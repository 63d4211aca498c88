"""Gradients of gradients: Hessian-vector products, names, symbolic batches, through a checkpoint."""

from __future__ import annotations

import numpy as np
import pytest

from onnxgrad.grad import gradient
from onnxgrad.verify.running.run import run
from tests.grad.numeric import check_model, normal, op_model


def test_hessian_vector_product_of_a_quadratic_form() -> None:
    """y = sum(x (A x)): the seed of the gradient's gradient is the vector, and the Hessian is A + A^T."""
    a, x, v = normal(4, 4), normal(4), normal(4, seed=1)
    model = op_model(
        "p = MatMul (A, x)\n q = Mul (x, p)\n y = ReduceSum <keepdims = 0> (q)",
        {"x": x},
        constants={"A": a},
    )
    second = gradient(gradient(model, ["x"], "y"), ["x"], "x_grad", adjoint="input")
    assert [o.name for o in second.graph.output] == ["y", "x_grad", "x_grad_2"]
    found = run(second, {"x": x, "x_grad_grad": v})
    np.testing.assert_allclose(found["x_grad_2"], (a + a.T) @ v, rtol=1e-4, atol=1e-5)


NETWORK = (
    "h = MatMul (x, w)\n t = Tanh (h)\n n = LayerNormalization (t, s)\n l = Softmax (n)\n"
    " r = ReduceLogSumExp <keepdims = 0> (l, k)\n y = ReduceMean <keepdims = 0> (r)"
)


@pytest.mark.parametrize("checkpoint", [None, "auto"])
def test_a_network_with_a_symbolic_batch(checkpoint: str | None) -> None:
    """Against differences of the first gradient, at two batches; by inputs and weights, mixed derivatives included."""
    weights = {"w": normal(3, 5), "s": normal(5, seed=2), "k": np.array([-1])}
    model = op_model(NETWORK, {"x": normal(2, 3)}, constants=weights, symbolic=True)
    first = gradient(model, ["x", "w", "s"], "y", checkpoint=checkpoint)
    for batch in (1, 4):
        check_model(
            first, {"x": normal(batch, 3)}, ["x", "w", "s"], target=["x_grad", "w_grad", "s_grad"]
        )


def test_third_order() -> None:
    """y = x^4 by products: 24 x."""
    model = op_model("q = Mul (x, x)\n y = Mul (q, q)", {"x": normal()})
    for name in ("y", "x_grad", "x_grad_2"):
        model = gradient(model, ["x"], name)
    x = np.float32(1.5).reshape(())
    assert run(model, {"x": x})[model.graph.output[-1].name] == pytest.approx(24 * 1.5)
