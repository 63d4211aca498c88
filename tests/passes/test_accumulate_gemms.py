from __future__ import annotations

import numpy as np
import pytest

from tests.rewriting import apply, model_of, weights

CELL = (
    "g (float[N,3] x, float[N,3] h{more}) => (float[N,4] y) {{ a = {a}  b = {b}  y = Add(a, b) }}"
)


@pytest.mark.parametrize("a", ["Gemm(x, v)", "Gemm(x, v, e)", "Gemm(x, v, row)", "Gemm(x, v, one)"])
@pytest.mark.parametrize(
    "b", ["Gemm(h, u)", "Gemm <alpha = 0.5, beta = 2.0> (h, u)", "Gemm <transB = 1> (h, k, row)", "Gemm(h, u, e)"]
)  # fmt: skip
def test_a_gemm_takes_another(a: str, b: str) -> None:
    sizes = {"v": (3, 4), "u": (3, 4), "k": (4, 3), "e": (4,), "row": (1, 4), "one": ()}
    model = model_of(CELL.format(a=a, b=b, more=""), weights(sizes))
    done = apply(model, "accumulate-gemms,remove-unused")
    assert done.ops == ["Gemm", "Gemm"] and done.fired("sum_of_gemms") == 1
    done.prove()


def test_a_bias_that_is_fed_goes_inside_where_it_is_the_only_one() -> None:
    text = CELL.format(a="Gemm(x, v, e)", b="Gemm(h, v)", more=", float[4] e")
    done = apply(model_of(text, weights({"v": (3, 4)})), "accumulate-gemms,remove-unused")
    assert done.ops == ["Gemm", "Gemm"]
    done.prove()


@pytest.mark.parametrize(
    ("a", "b", "more", "reason"),
    [
        ("Gemm(x, v, e)", "Gemm(h, v, f)", ", float[4] f", "not constant"),
        ("Gemm <beta = 2.0> (x, v, e)", "Gemm(h, v)", "", "factor"),
        ("Gemm(x, v)", "Gemm(one, v)", ", float[1,3] one", "one shape"),
        ("Gemm(x, v)", "Gemm(z, v)", ", float[M,3] z", "one shape"),
        ("Gemm(x, v, e)", "Gemm(h, v, high)", "", "not finite"),
    ],
)
def test_gemms_that_stay_apart(a: str, b: str, more: str, reason: str) -> None:
    arrays = {**weights({"v": (3, 4)}), "e": np.full(4, 3e38, np.float32)}
    model = model_of(CELL.format(a=a, b=b, more=more), {**arrays, "high": arrays["e"]})
    done = apply(model, "accumulate-gemms")
    assert done.trace.rewrites == []
    assert reason in done.declined


@pytest.mark.parametrize(
    "text",
    [
        "g (float[N,3] x, float[N,3] h) => (float[N,4] y, float[N,4] a) { a = Gemm(x, v)  b = Gemm(h, v)  y = Add(a, b) }",
        "g (float[N,3] x) => (float[N,4] y) { a = Gemm(x, v)  y = Add(a, a) }",
    ],
)
def test_a_gemm_with_another_reader_stays(text: str) -> None:
    done = apply(model_of(text, weights({"v": (3, 4)})), "accumulate-gemms")
    assert done.trace.rewrites == [] and "read elsewhere" in done.declined


def test_integers_stay_apart() -> None:
    text = "g (int32[2,3] x, int32[2,3] h) => (int32[2,4] y) { a = Gemm(x, v)  b = Gemm(h, v)  y = Add(a, b) }"
    done = apply(model_of(text, {"v": np.ones((3, 4), np.int32)}), "accumulate-gemms")
    assert done.trace.rewrites == []
