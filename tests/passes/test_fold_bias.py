from __future__ import annotations

import pytest

from tests.rewriting import apply, model_of, weights

SIZES = {"w": (4, 3, 1, 1), "b": (4,), "d": (4, 1, 1), "v": (3, 4), "e": (4,), "t": (3, 4, 2, 2)}


@pytest.mark.parametrize(
    ("body", "op", "shape"),
    [
        ("c = Conv(x, w)  y = Add(c, d)", "Conv", "N,4,5,5"),
        ("c = Conv(x, w, b)  y = Add(d, c)", "Conv", "N,4,5,5"),
        ("c = Conv(x, w, b)  y = Sub(c, d)", "Conv", "N,4,5,5"),
        ("c = Conv(x, w)  y = Sub(c, one)", "Conv", "N,4,5,5"),
        ("c = ConvTranspose(x, t, b)  y = Add(c, d)", "ConvTranspose", "N,4,6,6"),
    ],
)
def test_an_addend_becomes_the_bias(body: str, op: str, shape: str) -> None:
    text = f"g (float[N,3,5,5] x) => (float[{shape}] y) <float one = {{1}}> {{ {body} }}"
    done = apply(model_of(text, weights(SIZES)), "fold-bias,remove-unused")
    assert done.ops == [op]
    done.prove()


@pytest.mark.parametrize(
    "head", ["Gemm(x, v)", "Gemm(x, v, e)", "Gemm <alpha = 2.0, beta = 0.5> (x, v)"]
)
def test_gemm(head: str) -> None:
    text = f"g (float[N,3] x) => (float[N,4] y) {{ c = {head}  y = Add(c, e) }}"
    done = apply(model_of(text, weights(SIZES)), "fold-bias,remove-unused")
    assert done.ops == ["Gemm"]
    done.prove()


@pytest.mark.parametrize(
    ("body", "outputs"),
    [
        ("c = Conv(x, w)  y = Add(c, width)", "float[1,4,5,5] y"),
        ("c = Conv(x, w)  y = Sub(d, c)", "float[1,4,5,5] y"),
        ("c = Conv(x, w)  y = Add(c, d)", "float[1,4,5,5] y, float[1,4,5,5] c"),
        ("c = Conv(x, w)  y = Add(c, z)", "float[1,4,5,5] y"),
        ("c = Conv(x, w)  r = Relu(c)  y = Add(r, d)", "float[1,4,5,5] y"),
    ],
)
def test_what_stays(body: str, outputs: str) -> None:
    text = f"g (float[1,3,5,5] x, float[4,1,1] z) => ({outputs}) {{ {body} }}"
    done = apply(model_of(text, weights({**SIZES, "width": (5,)})), "fold-bias")
    assert done.trace.rewrites == []


def test_a_bias_with_a_factor_stays() -> None:
    text = "g (float[2,3] x) => (float[2,4] y) { c = Gemm <beta = 0.5> (x, v, e)  y = Add(c, e) }"
    done = apply(model_of(text, weights(SIZES)), "fold-bias")
    assert done.trace.rewrites == []
    assert "factor" in done.declined
