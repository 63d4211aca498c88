"""Models of JAX and Flax through jax2onnx: scans, loops, gradients that JAX itself has formed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax2onnx import to_onnx

from exporting.others import IR_VERSION, Exported, Models

PACKAGES = ("jax", "jaxlib", "flax", "jax2onnx", "onnx", "onnxruntime")
OPSET = 23


def _normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def _exported(
    call: Callable[..., Any], *shapes: tuple[int | str, ...], **feeds: np.ndarray
) -> Exported:
    """Exports for inputs of `shapes`, which default to those of the feeds."""
    given = list(feeds.values())
    specs: list[Any] = list(shapes) or [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in given]
    model = to_onnx(call, specs, opset=OPSET, input_names=list(feeds))
    model.ir_version = min(model.ir_version, IR_VERSION)
    expected = jax.tree.leaves(call(*map(jnp.asarray, given)))
    return Exported(model, feeds, tuple(map(np.asarray, expected)))


def mlp() -> Exported:
    """Three Linear layers of Flax between GELU, SiLU and LayerNorm; any batch."""
    r = nnx.Rngs(0)
    network = nnx.Sequential(
        nnx.Linear(6, 16, rngs=r), nnx.gelu, nnx.LayerNorm(16, rngs=r),
        nnx.Linear(16, 16, rngs=r), nnx.silu, nnx.Linear(16, 3, rngs=r), nnx.log_softmax,
    )  # fmt: skip
    return _exported(network, ("B", 6), x=_normal(4, 6))


def cnn() -> Exported:
    """Convolutions of Flax in NHWC with BatchNorm and pooling."""
    r = nnx.Rngs(0)
    first, second = nnx.Conv(3, 6, (3, 3), rngs=r), nnx.Conv(6, 6, (3, 3), strides=2, rngs=r)
    norm = nnx.BatchNorm(6, use_running_average=True, rngs=r)
    out = nnx.Linear(6 * 9, 4, rngs=r)

    def call(x: jax.Array) -> jax.Array:
        x = nnx.max_pool(nnx.relu(norm(first(x))), window_shape=(2, 2), strides=(2, 2))
        return out(nnx.relu(second(x)).reshape(x.shape[0], -1))

    return _exported(call, x=_normal(2, 12, 12, 3))


def attention() -> Exported:
    """Flax's attention in two heads, causal, with a residual sum."""
    r = nnx.Rngs(0)
    heads = nnx.MultiHeadAttention(2, 8, decode=False, rngs=r)
    norm = nnx.LayerNorm(8, rngs=r)
    mask = nnx.make_causal_mask(jnp.ones((2, 5)))
    return _exported(lambda x: x + heads(norm(x), mask=mask), x=_normal(2, 5, 8))


def gru() -> Exported:
    """Flax's GRU cell under lax.scan."""
    r = nnx.Rngs(0)
    cell = nnx.GRUCell(4, 5, rngs=r)

    def call(x: jax.Array) -> jax.Array:
        graph, state = nnx.split(cell)

        def step(carry: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
            return nnx.merge(graph, state)(carry, row)

        return jax.lax.scan(step, jnp.zeros((2, 5)), x)[1]

    return _exported(call, x=_normal(6, 2, 4))


def newton() -> Exported:
    """lax.while_loop: Newton's steps until the square root is near."""

    def call(x: jax.Array) -> jax.Array:
        y = jnp.abs(x) + 1.0
        return jax.lax.while_loop(
            lambda r: jnp.max(jnp.abs(r * r - y)) > 1e-3, lambda r: 0.5 * (r + y / r), y
        )

    return _exported(call, x=_normal(5))


def branches() -> Exported:
    """lax.cond, one inside another, before a lax.fori_loop."""

    def call(x: jax.Array, k: jax.Array) -> jax.Array:
        y = jax.lax.cond(jnp.sum(x) > 0, jnp.sin, jnp.cos, x)
        z = jax.lax.cond(
            k > 1, lambda v: v * v, lambda v: jax.lax.cond(k > 0, jnp.exp, jnp.tanh, v), y
        )
        return jax.lax.fori_loop(0, 3, lambda i, v: v + jnp.roll(v, 1) / (i + 2.0), z)

    return _exported(call, x=_normal(6), k=np.array(1, np.int32))


def gradient() -> Exported:
    """The gradient of a small network's loss, as JAX forms it."""
    w1, w2 = jnp.asarray(_normal(4, 8)), jnp.asarray(_normal(8))

    def loss(x: jax.Array) -> jax.Array:
        return jnp.mean((jnp.tanh(x @ w1) @ w2) ** 2)

    return _exported(jax.value_and_grad(loss), x=_normal(3, 4))


def indexing() -> Exported:
    """Gathers, updates in place, sorts, running sums, a one-hot and a dynamic slice."""

    def call(x: jax.Array, i: jax.Array) -> tuple[jax.Array, ...]:
        y = x[i].at[0].add(x[1]).at[:, 2].set(0.5)
        picked = jax.lax.dynamic_slice(x, (i[0], 0), (2, 3))
        return jnp.cumsum(jnp.sort(y, axis=1), axis=0), picked, jax.nn.one_hot(i, 5) @ x

    return _exported(call, x=_normal(5, 3), i=np.array([3, 0, 2], np.int32))


def einsum() -> Exported:
    """Products over several axes, vmap of an outer product, and a norm along an axis."""

    def call(x: jax.Array, y: jax.Array) -> jax.Array:
        a = jnp.einsum("bij,bkj->bik", x, y)
        b = jax.vmap(jnp.outer)(x[:, 0], y[:, 0])
        return jnp.einsum("bik,bjl->bil", a, b) / jnp.linalg.norm(x, axis=-1, keepdims=True)

    return _exported(call, x=_normal(2, 3, 4), y=_normal(2, 3, 4) + 1.0)


def special() -> Exported:
    """Functions that only mathematics uses, and choices between them."""

    def call(x: jax.Array) -> jax.Array:
        a = jnp.where(x > 0, jnp.log1p(jnp.abs(x)), jnp.expm1(x))
        b = jax.nn.logsumexp(x, axis=1, keepdims=True) + jax.scipy.special.erf(x)
        return a * b + jnp.logaddexp(x, 1.0) + jnp.arctan2(x, 2.0) + jnp.sinh(x) + jnp.cbrt(x)

    return _exported(call, x=_normal(3, 4))


def resample() -> Exported:
    """An image twice as large, padded by reflection, convolved with a dilated kernel."""
    kernel = jnp.asarray(_normal(3, 3, 2, 3))

    def call(x: jax.Array) -> jax.Array:
        y = jax.image.resize(x, (1, 8, 8, 2), "bilinear", antialias=False)
        y = jnp.pad(y, ((0, 0), (2, 2), (2, 2), (0, 0)), mode="reflect")
        return jax.lax.conv_general_dilated(
            y, kernel, (1, 1), "VALID", rhs_dilation=(2, 2),
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )  # fmt: skip

    return _exported(call, x=_normal(1, 4, 4, 2))


MODELS: Models = {
    build.__name__: build
    for build in (
        mlp, cnn, attention, gru, newton, branches, gradient, indexing, einsum, special, resample,
    )
}  # fmt: skip
