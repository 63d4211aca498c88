"""Each product takes a scale behind it, and in front of it, into its weight: by the numbers of both sides."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.load import load
from onnxgrad.laws.fold_scale_axis.products import PRODUCTS, product_of_scaled, product_times
from onnxgrad.laws.fold_scale_axis.scale import Scale
from onnxgrad.rewrite.trace import Decline
from tests.rewriting import emitted, model_of, weights

Sizes = dict[str, tuple[int, ...]]
# the product, the sizes of its operands, the axis of its result that is scaled and how long it is
TIMES: list[tuple[str, Sizes, int, int]] = [
    ("Conv(x, w)", {"x": (1, 2, 5, 5), "w": (4, 2, 3, 3)}, 1, 4),
    ("Conv(x, w, b)", {"x": (1, 2, 5), "w": (4, 2, 3), "b": (4,)}, 1, 4),
    ("Conv <group = 2> (x, w, b)", {"x": (1, 4, 5, 5), "w": (4, 2, 3, 3), "b": (4,)}, 1, 4),
    ("ConvTranspose(x, w, b)", {"x": (1, 2, 4, 4), "w": (2, 3, 3, 3), "b": (3,)}, 1, 3),
    ("ConvTranspose <group = 2> (x, w)", {"x": (1, 4, 4, 4), "w": (4, 3, 3, 3)}, 1, 6),
    ("Gemm(x, w)", {"x": (3, 4), "w": (4, 5)}, 1, 5),
    ("Gemm <transB = 1, alpha = 0.5, beta = 2.0> (x, w, b)", {"x": (3, 4), "w": (5, 4), "b": (5,)}, 1, 5),
    ("Gemm <transA = 1> (x, w, b)", {"x": (4, 3), "w": (4, 5), "b": (3, 1)}, 1, 5),
    ("Gemm(x, w, b)", {"x": (3, 4), "w": (4, 5), "b": ()}, 1, 5),
    ("MatMul(x, w)", {"x": (2, 3, 4), "w": (4, 5)}, 2, 5),
    ("MatMul(x, w)", {"x": (4,), "w": (4, 5)}, 0, 5),
    ("MatMul(w, x)", {"x": (2, 4, 3), "w": (5, 4)}, 1, 5),
    ("MatMul(w, x)", {"x": (4,), "w": (5, 4)}, 0, 5),
    ("MatMul(x, w)", {"x": (2, 3, 4), "w": (2, 4, 5)}, 2, 5),
]  # fmt: skip
# the same for an operand that is scaled: which one, its axis and how long it is
OF: list[tuple[str, Sizes, int, int]] = [
    ("Conv(x, w, b)", {"x": (1, 2, 5, 5), "w": (4, 2, 3, 3), "b": (4,)}, 1, 2),
    ("Conv <group = 2> (x, w)", {"x": (1, 4, 5, 5), "w": (6, 2, 3, 3)}, 1, 4),
    ("ConvTranspose <group = 2> (x, w, b)", {"x": (1, 4, 4, 4), "w": (4, 3, 3, 3), "b": (6,)}, 1, 4),
    ("Gemm(x, w, b)", {"x": (3, 4), "w": (4, 5), "b": (5,)}, 1, 4),
    ("Gemm <transA = 1, transB = 1> (x, w)", {"x": (4, 3), "w": (5, 4)}, 0, 4),
    ("MatMul(x, w)", {"x": (2, 3, 4), "w": (4, 5)}, 2, 4),
    ("MatMul(x, w)", {"x": (2, 3, 4), "w": (4,)}, 2, 4),
    ("MatMul(x, w)", {"x": (4,), "w": (4, 5)}, 0, 4),
    ("MatMul(w, x)", {"x": (2, 4, 3), "w": (5, 4)}, 1, 4),
    ("MatMul(w, x)", {"x": (4,), "w": (5, 4)}, 0, 4),
]  # fmt: skip


def model(product: str, sizes: Sizes) -> tuple[Any, dict[str, Any]]:
    arrays = weights(sizes)
    x = arrays.pop("x")
    shape = ",".join(map(str, x.shape))
    return model_of(f"g (float[{shape}] x) => (float[] y) {{ y = {product} }}", arrays), {"x": x}


def scale_of(n: int, axis: int | None, divide: bool = False) -> Scale:
    return Scale(np.linspace(-2, 1.5, n, dtype=np.float32), axis, divide)


@pytest.mark.parametrize("divide", [False, True])
@pytest.mark.parametrize(("product", "sizes", "axis", "n"), TIMES)
def test_a_scale_behind(product: str, sizes: Sizes, axis: int, n: int, divide: bool) -> None:
    given, feeds = model(product, sizes)

    def build(v: dict[str, Any]) -> list[Any]:
        scale = scale_of(n, axis, divide)
        return [scale.times(v["y"], axis), product_times(v["y"].definition, scale)]

    one, other = emitted(given, build, feeds)
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("product", "sizes"), [case[:2] for case in TIMES if case[2]])
def test_one_factor_behind(product: str, sizes: Sizes) -> None:
    given, feeds = model(product, sizes)

    def build(v: dict[str, Any]) -> list[Any]:
        scale = Scale(np.float32(-3).reshape(()), None)
        return [scale.times(v["y"], None), product_times(v["y"].definition, scale)]

    one, other = emitted(given, build, feeds)
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("product", "sizes", "axis", "n"), OF)
def test_a_scale_in_front(product: str, sizes: Sizes, axis: int, n: int) -> None:
    """The product of x * s; what is emitted in its place reads x itself."""
    arrays = weights(sizes)
    x = arrays.pop("x")
    shape = ",".join(map(str, x.shape))
    text = f"g (float[{shape}] x0) => (float[] y) {{ x = Mul(x0, s) y = {product} }}"
    scale = scale_of(n, axis)
    given = model_of(text, {**arrays, "s": scale.factors.reshape([-1] + [1] * (x.ndim - 1 - axis))})

    def build(v: dict[str, Any]) -> list[Any]:
        b = v["y"].definition
        return [v["y"], product_of_scaled(b, b.inputs.index(v["x"]), v["x0"], scale)]

    one, other = emitted(given, build, {"x0": x})
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_every_product_is_here() -> None:
    assert {case[0].split("(")[0].split(" ")[0] for case in TIMES} == PRODUCTS
    assert {case[0].split("(")[0].split(" ")[0] for case in OF} == PRODUCTS


@pytest.mark.parametrize(
    ("product", "sizes", "scale", "reason"),
    [
        (
            "Conv(x, w)",
            {"x": (1, 2, 4, 4), "w": (4, 2, 1, 1)},
            scale_of(4, 2),
            "lies along axis 2 of Conv",
        ),
        ("Gemm(x, w)", {"x": (5, 4), "w": (4, 5)}, scale_of(5, 0), "lies along axis 0 of Gemm"),
        ("MatMul(x, w)", {"x": (5, 3, 4), "w": (5, 4, 5)}, scale_of(5, 0), "batch axis of MatMul"),
        (
            "MatMul(x, w)",
            {"x": (3, 5, 4), "w": (4, 2)},
            scale_of(5, 1),
            "not constant and not smaller",
        ),
    ],
)
def test_what_is_declined_behind(product: str, sizes: Sizes, scale: Scale, reason: str) -> None:
    given, _ = model(product, sizes)
    block = load(given).main
    with emitting(block), pytest.raises(Decline, match=reason):
        product_times(block.outputs[0].definition, scale)


@pytest.mark.parametrize(
    ("product", "index", "axis", "reason"),
    [
        ("Gemm(w, x)", 1, 1, "not the data operand of Gemm"),
        ("MatMul(w, x)", 1, 1, "lies along axis 1 of MatMul"),
        ("Gemm(x, w)", 0, 0, "lies along axis 0 of Gemm"),
    ],
)
def test_what_is_declined_in_front(product: str, index: int, axis: int, reason: str) -> None:
    given, _ = model(product, {"x": (4, 4), "w": (4, 4)})
    block = load(given).main
    with emitting(block), pytest.raises(Decline, match=reason):
        product_of_scaled(block.outputs[0].definition, index, block.inputs[0], scale_of(4, axis))
