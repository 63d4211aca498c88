"""onnxgrad/verify/non_finite.py: NaN and infinite inputs are compared apart from the verdict."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from onnxgrad.report.html.page import proof_verdict
from onnxgrad.report.parts import Text
from onnxgrad.report.proof import proof_lines
from onnxgrad.verify import verify
from onnxgrad.verify.evidence import NonFinite
from onnxgrad.verify.feeds.edge_cases import Variation
from onnxgrad.verify.feeds.generate import Feeder
from onnxgrad.verify.report import Report
from tests.helpers import parse


def pair(first: str, second: str, given: str = "float[N,6] x", y: str = "float[N,6] y") -> Report:
    constants = "<float three = {3}, float zero = {0}, float one = {1}, float far = {2000}>"
    return verify(*(parse(f"g ({given}) => ({y}) {constants} {{ {n} }}") for n in (first, second)))


def line(report: Report) -> str:
    return "" if report.non_finite is None else report.non_finite.line


def test_a_difference_at_nan_is_reported_apart() -> None:
    report = pair(
        "c = IsNaN (x) a = Mul (x, x) y = Where (c, three, a)",
        "y = Mul (x, x)",
    )
    assert report.verdict == "different"  # the search reaches NaN as a threshold of IsNaN
    assert line(report).startswith("non-finite inputs: differ at output y")


def test_the_line_names_both_values() -> None:
    report = pair("a = Mul (x, zero) y = Add (a, three)", "s = Shape (x) z = Expand (zero, s) y = Add (z, three)")  # fmt: skip
    assert report.verdict == "equal"
    assert (
        line(report) == "non-finite inputs: differ at output y[0, 0] (3 where the original has NaN)"
    )
    back = pair("s = Shape (x) z = Expand (zero, s) y = Add (z, three)", "a = Mul (x, zero) y = Add (a, three)")  # fmt: skip
    assert back.verdict == "equal"
    assert (
        line(back) == "non-finite inputs: differ at output y[0, 0] (NaN where the original has 3)"
    )
    found = back.to_dict()["non_finite"]
    assert not found["equal"] and found["line"] == line(back)
    assert found["difference"]["output"] == "y"
    assert line(back) in str(back)
    assert line(back) in [str(part).strip() for part in proof_lines(back, False) if isinstance(part, Text)]  # fmt: skip
    assert line(back) in str(proof_verdict(back))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("y = Relu (x)", "y = Max (x, zero)"),
        ("a = Neg (x) y = Neg (a)", "y = Identity (x)"),
        ("a = Add (x, three) y = Mul (a, three)", "n = Mul (three, three) b = Mul (x, three) y = Add (b, n)"),
    ],
)  # fmt: skip
def test_equal_models_are_equal_there_too(first: str, second: str) -> None:
    report = pair(first, second)
    assert report.verdict == "equal" and line(report) == "non-finite inputs: equal"


def test_what_has_no_such_inputs_has_no_line() -> None:
    integers = pair("y = Neg (x)", "y = Neg (x)", "int64[N,6] x", "int64[N,6] y")
    assert integers.non_finite is None and "non-finite" not in str(integers)
    bounds = verify(*[parse("g (float[N] x) => (float[N] y) { y = Neg (x) }")] * 2, atol=1e-3)
    assert bounds.non_finite is None
    refused = "d = ReduceMax <keepdims = 0> (x) c = Cast <to = 7> (d) e = Mul (c, k) f = Abs (e) s = Unsqueeze (f, a) y = Expand (one, s)"
    text = "<int64 k = {1}, int64[1] a = {0}, float one = {1}>"
    counts = parse(f"g (float[N] x) => (float[M] y) {text} {{ {refused} }}")
    assert verify(counts, counts).non_finite is None  # its values decide a size


def test_each_kind_of_value_is_in_another_row() -> None:
    model = parse(
        "g (float[8,6] x, float[8,6] z, float[3] v, float s) => (float[8,6] y) { y = Add (x, z) }"
    )
    feeds = Feeder(model).feeds(seed=0, how=Variation(non_finite=True))
    x, z, v, s = (np.asarray(feeds[name]) for name in "xzvs")
    assert np.isnan(x[0, 0]) and x[1, 1] == math.inf and x[2, 2] == -math.inf
    assert np.isfinite(x[3]).all() and np.isfinite(x).mean() > 0.8
    assert z[0, 0] == math.inf and np.isfinite(z[3]).all()
    assert len(v) == 3 and not np.isfinite(v[0]) and not np.isfinite(s)
    assert str(Variation(non_finite=True)) == "NaN and infinite values"


def test_reports_of_several_sizes_keep_what_any_of_them_found() -> None:
    differs = pair("a = Mul (x, zero) y = Add (a, three)", "s = Shape (x) z = Expand (zero, s) y = Add (z, three)")  # fmt: skip
    same = replace(differs, non_finite=NonFinite(), noise={"y": 0.25}, infinite=("y",))
    whole = Report.merge([same, replace(differs, noise={"y": 0.5})], ["N = 1", "N = 2"], "at")
    assert line(whole) == line(differs) != line(same)
    assert whole.noise == {"y": 0.5} and whole.infinite == ("y",)
    assert whole.seconds == same.seconds + differs.seconds
    at = [str(case) for case in whole.cases[len(same.cases) :]]
    assert at == [f"{case}, at N = 2" for case in differs.cases]  # every proof's are named
