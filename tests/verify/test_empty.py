"""Nothing compared is nothing proved."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper

from onnxgrad.errors import InputError
from onnxgrad.functions import optimize
from onnxgrad.jobs.rewriting import RewriteRefuted
from onnxgrad.verify import verify
from onnxgrad.verify.compare import compare
from tests.helpers import parse

MASKED = """g (float[batch, seq] x, bool[batch, seq] mask) => (float[batch, 1] y) <float w = {%s}> {
  none = Log(zero) s = Where(mask, %s) p = Softmax <axis = -1> (s) r = ReduceSum <keepdims = 1> (p) y = Mul(r, w) }"""


@pytest.mark.parametrize("order", ["none, x", "x, none"], ids=["true-is-padding", "true-is-kept"])
def test_a_mask_leaves_something_alive_in_either_convention(order: str) -> None:
    def model(scale: str) -> Any:
        made = parse(MASKED % (scale, order))
        made.graph.initializer.append(numpy_helper.from_array(np.float32(0), "zero"))
        return made

    report = verify(model("1"), model("3"))
    assert report.verdict == "different" and report.worst is not None
    assert report.worst.b == pytest.approx(3 * report.worst.a)
    report = verify(model("1"), model("1"), seeds=[0])
    # one sum each at batch=2, seq=8, usual, the other way round, of small numbers and of two wide
    # cases; at 1x1 one of the two masks
    assert report.ok and report.compared["y"] == 6


LOG = "g (float[4] x) => (float[4] y, float[4] z) { n = Abs(x) m = Neg(n) e = Exp(n) a = Sub(m, e) y = Log(a) z = %s(x) }"


def test_nan_against_nan_is_not_proved() -> None:
    a, b = (
        parse(LOG % "Neg"),
        parse(LOG.replace("Sub(m, e)", "Sub(e, m) b = Neg(a)").replace("Log(a)", "Log(b)") % "Neg"),
    )
    report = verify(a, b)
    assert not report and report.verdict == "not proved"
    assert str(report).startswith("not proved: nothing finite to compare in y ")
    assert report.compared["y"] == 0 and report.compared["z"] > 0
    assert report.to_dict()["compared"]["y"] == 0 and report.to_dict()["verdict"] == "not proved"
    assert verify(a, b, allow_empty=["y"]).ok
    # what differs elsewhere differs
    assert verify(a, parse(LOG % "Relu"), allow_empty=["y"]).verdict == "different"
    with pytest.raises(InputError, match="allow_empty: q: the model has no such output"):
        verify(a, a, allow_empty=["q"])


@pytest.mark.parametrize(
    "text",
    [
        "g (float[0, 3] x) => (float[0, 3] y) { y = Neg(x) }",
        "g (float[3] x) => (seq(float[3]) y) { y = SequenceEmpty <dtype = 1> () }",
        "g (float[3] x) => (float[3] y) <float[3] k = {1e38, 1e38, 1e38}> { n = Abs(x) e = Exp(n) a = Mul(k, k) y = Mul(e, a) }",
    ],
    ids=["empty", "empty-sequence", "infinite"],
)
def test_an_output_without_a_finite_element_is_not_proved(text: str) -> None:
    model = parse(text)
    checks = ["onnxruntime"]  # float64 holds 1e76
    assert verify(model, model, checks=checks).verdict == "not proved"
    assert verify(model, model, checks=checks, allow_empty=["y"]).ok


def test_an_output_that_is_declared_empty_needs_no_elements() -> None:
    """Beside another output: as the gradient by an input without elements."""
    text = "g (float[N,4] x, float[N,%s] e) => (float[N,4] y, float[N,%s] z) { y = Neg (x) z = Neg (e) }"
    empty, other = parse(text % ("0", "0")), parse(text.replace("Neg (x)", "Abs (x)") % ("0", "0"))
    assert verify(empty, empty).verdict == "equal" and verify(empty, other).verdict == "different"
    open_ = parse(text % ("M", "M"))
    assert verify(open_, open_, dims={"M": 0}).verdict == "not proved"
    alone = parse("g (float[N,0] e) => (float[N,0] z) { z = Neg (e) }")
    assert verify(alone, alone).verdict == "not proved"


def test_optimize_asks_for_something_to_compare_too() -> None:
    model = parse(
        "g (float[3] x) => (float[3] y) { n = Abs(x) i = Identity(n) m = Neg(i) s = Sub(m, i) y = Sqrt(s) }"
    )
    model.graph.node.insert(4, parse("g (float[3] s) => (float[3] t) { t = Exp(s) }").graph.node[0])
    model.graph.node[-1].op_type, model.graph.node[-1].input[0] = "Log", "s"
    with pytest.raises(
        RewriteRefuted, match="not proved: nothing finite to compare in y"
    ) as refused:
        optimize(model)
    assert refused.value.exit_code == 1 and refused.value.culprit is None
    assert len(optimize(model, allow_empty=["y"]).graph.node) < len(model.graph.node)


def test_what_is_counted() -> None:
    nan = np.array([np.nan, 1, np.inf, 2], np.float32)
    values = {
        "f": nan,
        "i": np.arange(3),
        "s": np.array(["a"], object),
        "c": np.array([1j, np.nan]),
        "l": [nan, nan],
    }
    counts = {d.output: d.compared for d in compare(values, values)}
    assert counts == {"f": 2, "i": 3, "s": 1, "c": 1, "l[0]": 2, "l[1]": 2}
    # the original's own runs disagree about shape or NaN, and the results are still identical
    assert [d.compared for d in compare({"f": nan}, {"f": nan}, {"f": np.inf})] == [2]
    assert [d.compared for d in compare({"f": nan}, {"f": nan[:2]})] == [0]


ROWS = """g (float[batch, seq, 3] x, int64[batch, seq] mask) => (float[batch, seq, 3] y, int64[batch, seq] n)
    <float one = {1}, int64 top = {1}, int64[1] last = {-1}> {
  m = Cast <to = 1> (mask) p = Sub(one, m) u = Unsqueeze(p, last) e = Exp(x) y = %s
  r = ReduceSum <keepdims = 0> (e, last) f = %s n = Cast <to = 7> (f) }"""


def rows(padding: bool) -> Any:
    """With `padding`, rows where the mask is 0 are other ones."""
    return parse(ROWS % (("Add(e, u)", "Add(r, p)") if padding else ("Identity(e)", "Identity(r)")))


BOTH = {"y": "mask", "n": "mask"}


@pytest.mark.slow
def test_rows_that_a_mask_leaves_empty_are_excused_by_name() -> None:
    a, b = rows(False), rows(True)
    assert verify(a, b).verdict == "different"
    assert verify(a, b, excuse={"y": "mask"}).verdict == "different"  # n is another output
    report = verify(a, b, excuse=BOTH)
    assert report.verdict == "equal" and report.compared["n"] * 3 == report.compared["y"]
    note = next(n for n in report.notes if n.startswith("y: "))
    assert note.endswith("elements are not compared, where mask is 0") and note in str(report)
    wrong = rows(True)
    wrong.graph.node[3].op_type = "Erf"
    assert verify(a, wrong, excuse=BOTH).verdict == "different"


def test_with_stored_results_bounds_and_nan() -> None:
    feeds = {"x": np.ones((1, 2, 3), np.float32), "mask": np.array([[1, 0]])}
    stored = {"y": np.full((1, 2, 3), np.e, np.float32), "n": np.array([[8, -7]])}
    stored["y"][0, 1] = np.nan
    assert verify(rows(True), expect=stored, inputs=feeds).verdict == "different"
    report = verify(rows(True), expect=stored, inputs=feeds, excuse=BOTH)
    assert report.ok and report.compared == {"y": 3, "n": 1}
    assert verify(rows(False), rows(True), inputs=feeds, excuse=BOTH, metric="worst=0.01").ok


def test_where_all_rows_are_excused_nothing_is_proved() -> None:
    feeds = {"x": np.ones((1, 2, 3), np.float32), "mask": np.zeros((1, 2), np.int64)}
    report = verify(rows(False), rows(True), inputs=feeds, excuse=BOTH)
    assert report.verdict == "not proved" and "nothing finite to compare in y, n" in str(report)


@pytest.mark.parametrize(
    ("excuse", "words"),
    [
        ({"z": "mask"}, "no output 'z' "),
        ({"y": "masks"}, "no input 'masks' "),
        ({"n": "x"}, r"the shape of 'n', \[.*\], must begin with that of 'x', \[.*\]"),
    ],
)
def test_rows_and_masks_that_there_are_not(excuse: dict[str, str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        verify(rows(False), rows(True), excuse=excuse)


def test_a_half_that_is_not_a_number_is_said() -> None:
    """Equal on 20 of 40 is less than equal."""
    model = parse("g (float[40] x) => (float[40] y, int64 n) { y = Sqrt (x) n = Size (x) }")
    x = np.where(np.arange(40) % 2, 1, -1).astype(np.float32)
    report = verify(model, model, inputs={"x": x})
    assert report.ok
    assert report.notes == ("y: 20 of 40 compared; the others are NaN or infinite",)
    assert "20 of 40 compared" in str(report)
    assert not verify(model, model, inputs={"x": abs(x)}).notes
