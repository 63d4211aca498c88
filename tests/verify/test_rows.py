"""Row by row: what is equal, what is not, and when nothing is proved."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from onnxgrad.verify.rows.grouping import Grouping, Rows
from onnxgrad.verify.rows.proof import RowProof
from tests.helpers import parse

FRONT = Rows(0)
ORIGINAL = parse("g (float[1,3] x) => (float[1,3] y) { y = Exp (x) }")


def proof(text: str, original: onnx.ModelProto = ORIGINAL, rows: Rows = FRONT) -> RowProof:
    return RowProof(original, parse(text), Grouping({"x": 0}, {"y": rows}))


def test_equal_rows() -> None:
    report = proof("g (float[N,3] x) => (float[N,3] y) { y = Exp (x) }").report()
    assert report.verdict == "equal"
    assert [leg.name for leg in report.legs.values()] == [
        "onnxruntime",
        "float64",
        "independence",
    ]
    assert report.legs["independence"].compared == 12  # two rows of three, twice


@pytest.mark.parametrize(
    "body",
    [
        "m = ReduceSum <keepdims = 0> (x)  z = Sub (m, m) e = Exp (x) y = Add (e, z)",  # NaN alone shows it
        "a = Constant <value_ints = [0]> () m = ReduceMean (x, a) d = Sub (x, m) f = Constant <value_float = 1e-7> ()"
        " s = Mul (d, f) e = Exp (x) y = Add (e, s)",  # within any tolerance
    ],
)  # fmt: skip
def test_a_row_that_reaches_another(body: str) -> None:
    report = proof(f"g (float[N,3] x) => (float[N,3] y) {{ {body} }}").report()
    assert report.legs["onnxruntime"].worst is None or report.legs["onnxruntime"].worst.ok
    assert not report.ok and "changes with row 1" in report.summary


def test_other_results() -> None:
    report = proof("g (float[N,3] x) => (float[N,3] y) { a = Constant <value_ints = [0]> ()  m = ReduceMean (x, a)"
                   "  d = Sub (x, m) y = Exp (d) }").report()  # fmt: skip
    assert report.verdict == "different"


def test_rows_with_one_answer_prove_nothing() -> None:
    constant = "{ s = Shape (x)  y = ConstantOfShape (s) }"
    original = parse(f"g (float[1,3] x) => (float[1,3] y) {constant}")
    report = proof(f"g (float[N,3] x) => (float[N,3] y) {constant}", original).report()
    assert report.verdict == "not proved" and "every row has the same y" in report.summary


def test_a_shared_output_must_be_the_same() -> None:
    report = proof("g (float[N,3] x) => (float[1,3] y) { b = Constant <value_ints = [0]> () e = Constant <value_ints = [1]> ()"
                   " f = Slice (x, b, e, b)  y = Exp (f) }", rows=Rows(None)).report()  # fmt: skip
    assert not report.ok and "should be the same in all rows" in report.summary


@pytest.mark.parametrize(
    ("where", "shape"), [(Rows(0), (1, 6)), (Rows(1, 2, 6), (3, 6)), (Rows(0, own=True), (4,))]
)
def test_stacking_and_taking_rows(where: Rows, shape: tuple[int, ...]) -> None:
    rows = [np.arange(np.prod(shape)).reshape(shape) + 100 * k for k in range(3)]
    stacked = where.stacked(rows)
    for k, row in enumerate(rows):
        assert np.array_equal(where.row(stacked, k, 3).reshape(shape), row)
