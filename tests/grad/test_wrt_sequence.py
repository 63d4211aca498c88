"""SPEC, added after a second reading, S2: `wrt` may be a sequence of float tensors (tuples in the original)."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from onnxgrad.errors import InputError
from onnxgrad.grad import gradient
from onnxgrad.grad.checking.check import check_gradient
from onnxgrad.verify.running.run import run
from tests.grad.numeric import normal
from tests.helpers import parse

# an input, one made in between, one with elements of several shapes; the last element of s is read by nobody
MODEL = """g (seq(float[3]) s, float[5] x, int64[2] parts, seq(int64) n) => (float l) {
    i = Constant <value_int = 1> ()
    j = Constant <value_int = 0> ()
    a = SequenceAt (s, i)
    b = SequenceAt (s, j)
    q = Mul (a, b)
    p = SplitToSequence (x, parts)
    d = SequenceAt (p, i)
    e = Sin (d)
    f = ReduceSum <keepdims = 0> (e)
    h = ReduceSum <keepdims = 0> (q)
    l = Mul (f, h)
}"""
FEEDS = {
    "s": [normal(3, seed=i) for i in range(3)],
    "x": normal(5),
    "parts": np.array([2, 3]),
    "n": [np.array(1)],
}


def test_the_gradient_of_a_sequence_is_one() -> None:
    graph = gradient(parse(MODEL), ["s", "p"])
    onnx.checker.check_model(graph)
    found = run(graph, FEEDS)
    a, b, d = FEEDS["s"][1], FEEDS["s"][0], FEEDS["x"][2:]
    f, h = np.sin(d).sum(), (a * b).sum()
    for got, expected in zip(found["s_grad"], [f * a, f * b, np.zeros(3)], strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-7)
    for got, expected in zip(found["p_grad"], [np.zeros(2), h * np.cos(d)], strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-7)


def test_every_float_input_means_sequences_too_and_zero_is_a_sequence_of_zeros() -> None:
    graph = gradient(parse(MODEL))
    assert [v.name for v in graph.graph.output] == ["l", "s_grad", "x_grad"]
    cut = MODEL.replace("SequenceAt (s, i)", "Identity (c)").replace(
        "SequenceAt (s, j)", "Identity (c)"
    )
    cut = cut.replace("{", "{ c = Constant <value_floats = [1.0, 2.0, 3.0]> ()", 1)
    with pytest.warns(UserWarning, match="no requested value reaches"):
        unreached = gradient(parse(cut), ["s"])
    assert [list(v) for v in run(unreached, FEEDS)["s_grad"]] == [[0.0] * 3] * 3


def test_the_numeric_check_moves_every_element() -> None:
    report = check_gradient(parse(MODEL), ["s", "p", "x"], inputs=FEEDS)
    assert report.ok and [v.name for v in report.values] == ["s", "p", "x"]
    assert all(v.judged and v.gradient != 0 for v in report.values)


def test_a_sequence_of_integers_is_refused() -> None:
    with pytest.raises(InputError, match=r"wrt 'n' is seq\(i64\[\]\), not a floating-point tensor"):
        gradient(parse(MODEL), ["n"])
