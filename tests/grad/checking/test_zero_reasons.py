"""onnxgrad/grad/checking/zero_reasons.py: zeros that an operator explains agree, others are not judged."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper

from onnxgrad import check_gradient
from tests.grad.numeric import normal
from tests.helpers import parse

# nodes that read x and make z, beside a gradient of w that is not 0; the explanation
EXPLAINED = {
    "Floor": ("f = Floor (x) z = Mul (f, f)", "no path"),
    "an integer": ("i = Cast <to = 7> (x) c = Cast <to = 1> (i) z = Add (c, x0)", "no path"),
    "a comparison": ("b = Greater (x, w) z = Where (b, w, x0)", "no path"),
    "Relu": ("a = Abs (x) n = Neg (a) z = Relu (n)", "an idle Relu 'z'"),
    "Clip": ("a = Abs (x) b = Add (a, two) z = Clip (b, zero, one)", "an idle Clip 'z'"),
    "Max": ("a = Abs (x) b = Add (a, two) n = Neg (b) z = Max (n, zero)", "an idle Max 'z'"),
    "Where": ("b = Less (w, zero) c = Not (b) d = Or (b, c) z = Where (d, w, x)", "an idle Where 'z'"),
    "a factor": ("z = Mul (x, x0)", "a factor of 0 in Mul 'z'"),
    "MatMul": ("t = Transpose (x0) m = MatMul (x, t) z = ReduceSum (m)", "a factor of 0 in MatMul 'm'"),
    "cancels": ("z = Sub (x, x)", "terms cancel in Sub 'z'"),
}  # fmt: skip
TEXT = """g (float[4,4] x, float[4,4] w) => (float s) <float zero = {0}, float one = {1}, float two = {2}> {
  NODES q = Mul (w, w) r = Add (z, q) s = ReduceSum <keepdims = 0> (r) }"""


@pytest.mark.parametrize("name", EXPLAINED)
def test_zeros_that_an_operator_explains_agree(name: str) -> None:
    nodes, words = EXPLAINED[name]
    model = parse(TEXT.replace("NODES", nodes))
    model.graph.initializer.append(numpy_helper.from_array(np.zeros((4, 4), np.float32), "x0"))
    report = check_gradient(model, ["x", "w"])
    assert report.verdict == "agrees", str(report)
    assert words in str(report), str(report)


def test_a_zero_of_saturation_is_not_judged_and_refused_if_named() -> None:
    """The difference of Tanh is 0 at 100 in float64; no operator stops the gradient."""
    model = parse(
        TEXT.replace("NODES", "a = Abs (x) b = Add (a, far) t = Tanh (b) z = Identity (t)")
    )
    model.graph.initializer.append(numpy_helper.from_array(np.float32(1e4), "far"))
    report = check_gradient(model, ["x", "w"])
    assert report.verdict == "not proved" and "0 at all inputs tried" in str(report)
    assert not report.values[0].judged and report.values[1].judged
    assert check_gradient(model, "?").ok, "a glob names no value"
    assert check_gradient(model).ok
    assert check_gradient(model, ["x", "w"], allow_empty=["x"]).ok


def test_other_masks_and_seeds_are_tried() -> None:
    """The mask of the usual inputs hides the rows that v reaches."""
    text = """g (float[4,6] x, float[4,6] v, bool[4,6] mask) => (float s) <float far = {-10000}> { FLIP
      h = Where (keep, far, x) p = Softmax (h) m = Slice (p, start, end, axis) n = Slice (v, start, end, axis)
      q = Mul (m, n) r = Mul (x, x) t = ReduceSum <keepdims = 0> (q) u = ReduceSum <keepdims = 0> (r) s = Add (t, u) }"""
    model = parse(text.replace("FLIP", "keep = Identity (mask)"))
    for name, value in (("start", 0), ("end", 1), ("axis", 1)):
        model.graph.initializer.append(numpy_helper.from_array(np.array([value]), name))
    report = check_gradient(model, ["v"])
    assert report.ok and report.values[0].judged and not report.values[0].zero, str(report)
    given = {
        "x": normal(4, 6),
        "v": normal(4, 6),
        "mask": np.arange(6)[None].repeat(4, 0) < 3,
    }
    report = check_gradient(model, ["v", "x"], inputs=given)
    assert report.ok and "a factor of 0 in Mul 'q'" in str(report), str(report)
