"""An ONNX model inside PyTorch, JAX and SciPy: scripts/examples/onnx_layer.py."""

from __future__ import annotations

import numpy as np
import pytest

from scripts.examples.onnx_layer import Layer, jax_function, scipy_minimum, torch_function
from tests.grad.numeric import normal
from tests.helpers import parse

MODEL = """g (double[3,4] x, double[4,2] w, int64[3] rows) => (double[3,2] y) {
    h = MatMul (x, w)  t = Tanh (h)  e = Exp (t)  p = Mul (t, e)  y = Gather (p, rows) }"""


@pytest.mark.torch
def test_a_torch_function_first_and_second_order() -> None:
    torch = pytest.importorskip("torch")
    layer = Layer(parse(MODEL))
    x, w = (
        torch.tensor(normal(*s).astype(np.float64), requires_grad=True) for s in ((3, 4), (4, 2))
    )
    rows = torch.tensor([2, 0, 0])

    def same(x: object, w: object) -> object:
        t = torch.tanh(x @ w)
        return (t * torch.exp(t))[rows]

    function = torch_function(layer)
    ours, theirs = function(x, w, rows), same(x, w)
    torch.testing.assert_close(ours, theirs)
    g = torch.tensor(normal(3, 2, seed=3).astype(np.float64))
    torch.testing.assert_close(*(torch.autograd.grad(y, (x, w), g) for y in (ours, theirs)))
    assert torch.autograd.gradcheck(lambda x, w: function(x, w, rows), (x, w))
    assert torch.autograd.gradgradcheck(lambda x, w: function(x, w, rows), (x, w))


@pytest.mark.slow
def test_a_jax_function() -> None:
    jax = pytest.importorskip("jax")
    text = (
        MODEL.replace("double", "float")
        .replace(", int64[3] rows", "")
        .replace("Gather (p, rows)", "Identity (p)")
    )
    function = jax_function(Layer(parse(text)))
    x, w = normal(3, 4), normal(4, 2)

    def same(x: object, w: object) -> object:
        t = jax.numpy.tanh(x @ w)
        return t * jax.numpy.exp(t)

    def loss(f: object) -> object:
        return jax.jit(jax.grad(lambda x, w: (f(x, w) ** 2).sum(), argnums=(0, 1)))

    for ours, theirs in zip(loss(function)(x, w), loss(same)(x, w), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_minimum_by_scipy() -> None:
    """Rosenbrock's valley, whose least is at ones."""
    pytest.importorskip("scipy")
    valley = parse(
        """g (double[4] x) => (double loss) <int64[1] b = {0}, int64[1] m = {3}, int64[1] o = {1}, int64[1] e = {4},
        double c = {100}, double one = {1}> { l = Slice (x, b, m)  r = Slice (x, o, e)  s = Mul (l, l)  d = Sub (r, s)
        q = Mul (d, d)  h = Mul (q, c)  f = Sub (one, l)  v = Mul (f, f)  t = Add (h, v)
        loss = ReduceSum <keepdims = 0> (t) }"""
    )
    found = scipy_minimum(Layer(valley), np.array([-1.2, 1.0, -0.5, 2.0]))
    assert found.success and found.nit < 200
    np.testing.assert_allclose(found.x, np.ones(4), atol=1e-3)
