"""Row by row: what is equal, what is not, and when nothing is proved."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from onnxgrad.errors import InputError
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
    assert [check.name for check in report.checks.values()] == [
        "onnxruntime",
        "float64",
        "independence",
    ]
    assert report.checks["independence"].compared == 12  # two rows of three, twice


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
    assert report.checks["onnxruntime"].worst is None or report.checks["onnxruntime"].worst.ok
    assert not report.ok and "changes with row 1" in report.summary


def test_other_results() -> None:
    report = proof("g (float[N,3] x) => (float[N,3] y) { a = Constant <value_ints = [0]> ()  m = ReduceMean (x, a)"
                   "  d = Sub (x, m) y = Exp (d) }").report()  # fmt: skip
    assert report.verdict == "different"


def of_rows(body: str) -> str:
    original = parse(f"g (float[1,3] x) => (float[1,3] y) {{ {body} }}")
    report = proof(f"g (float[N,3] x) => (float[N,3] y) {{ {body} }}", original).report()
    return f"{report.verdict}: {report.summary}"


@pytest.mark.parametrize(
    "body",
    [
        "y = Sub (x, x)",
        # no value of a row is an operand, and yet they decide
        "z = Greater (x, x)  n = NonZero (z)  s = Shape (n)  i = Constant <value_int = 1> ()  k = Gather (s, i)"
        " f = Cast <to = 1> (k)  d = Shape (x)  y = Expand (f, d)",
    ],
)  # fmt: skip
def test_rows_with_one_answer_prove_nothing(body: str) -> None:
    said = of_rows(body)
    assert said.startswith("not proved") and "every row has the same y" in said


def test_rows_that_no_value_decides_have_one_answer() -> None:
    assert of_rows("s = Shape (x)  y = ConstantOfShape (s)").startswith("equal")


def test_a_shared_output_must_be_the_same() -> None:
    report = proof("g (float[N,3] x) => (float[1,3] y) { b = Constant <value_ints = [0]> () e = Constant <value_ints = [1]> ()"
                   " f = Slice (x, b, e, b)  y = Exp (f) }", rows=Rows(None)).report()  # fmt: skip
    assert not report.ok and "should be the same in all rows" in report.summary


LOOP = """{ n = Constant <value_int = 5> ()  c = Constant <value = bool {1}> ()
  k = Constant <value_float = 1.5> ()  l = Constant <value_float = 40.0> ()  a = Constant <value_ints = [-1]> ()
  %s }"""
ALONE = """y = Loop (n, c, x) <body = b (int64 i, bool ci, float[2] s) => (bool co, float[2] t) {
  t = Mul (s, k)  q = ReduceSum <keepdims = 0> (t)  co = Less (q, l) }>"""
TOGETHER = """e = Constant <value = bool[1,1] {1}> ()  f = Shape (x)  g = Constant <value_ints = [1]> ()
  h = Gather (f, i0)  i0 = Constant <value_ints = [0]> ()  u = Concat <axis = 0> (h, g)  v = Expand (e, u)
  w, y = Loop (n, c, v, x) <body = b (int64 i, bool ci, bool[M,1] p, float[M,2] s)
    => (bool co, bool[M,1] r, float[M,2] t) {
    d = Mul (s, k)  t = Where (p, d, s)  q = ReduceSum (t, a)  o = Less (q, l)  r = And (p, o)
    z = Cast <to = 6> (r)  m = ReduceMax <keepdims = 0> (z)  co = Cast <to = 9> (m) }>"""


@pytest.mark.parametrize("right", [True, False])
def test_rows_of_other_numbers_of_steps(right: bool) -> None:
    """Usual values never end the loop early: a row that goes on until all have ended is found by larger ones."""
    lines = TOGETHER.replace("h = Gather (f, i0)  i0 = Constant <value_ints = [0]> ()",
                             "i0 = Constant <value_ints = [0]> ()  h = Gather (f, i0)")  # fmt: skip
    many = lines if right else lines.replace("t = Where (p, d, s)", "t = Identity (d)")
    original = parse(f"g (float[2] x) => (float[2] y) {LOOP % ALONE}")
    opened = parse(f"g (float[N,2] x) => (float[N,2] y) {LOOP % many}")
    rows = Grouping({"x": 0}, {"y": Rows(0, own=True)}, own=True)
    report = RowProof(original, opened, rows).report()
    assert report.verdict == ("equal" if right else "different"), report.summary


@pytest.mark.parametrize(
    ("where", "shape"), [(Rows(0), (1, 6)), (Rows(1, 2, 6), (3, 6)), (Rows(0, own=True), (4,))]
)
def test_stacking_and_taking_rows(where: Rows, shape: tuple[int, ...]) -> None:
    rows = [np.arange(np.prod(shape)).reshape(shape) + 100 * k for k in range(3)]
    stacked = where.stacked(rows)
    for k, row in enumerate(rows):
        assert np.array_equal(where.row(stacked, k, 3).reshape(shape), row)


def test_noise_of_the_original() -> None:
    """A sum that float32 cannot hold differs between two orders: the original's own error excuses it, in float64 nothing."""
    w = ", ".join("4e4" if i % 2 else "-4e4" for i in range(64))
    body = "y = MatMul (x, w)"
    other = "r = MatMul (v, w)  p = MatMul (u, w)  y = Add (r, p)"
    halves = "b = Constant <value_ints = [0]> () m = Constant <value_floats = [" + ", ".join(["1.0", "0.0"] * 32) + "]> ()" \
        " n = Constant <value_floats = [" + ", ".join(["0.0", "1.0"] * 32) + "]> () v = Mul (x, m)  u = Mul (x, n)"  # fmt: skip
    original = parse(f"g (float[1,64] x) => (float[1,1] y) <float[64,1] w = {{{w}}}> {{ {body} }}")
    split = f"g (float[N,64] x) => (float[N,1] y) <float[64,1] w = {{{w}}}> {{ {halves} {other} }}"
    report = proof(split, original).report()
    assert report.verdict == "equal" and report.checks["float64"].ran
    wrong = split.replace(
        "y = Add (r, p)", "t = Add (r, p)  k = Constant <value_float = 1.000001> ()  y = Mul (t, k)"
    )
    assert proof(wrong, original).report().verdict == "different"


def test_rows_of_the_user() -> None:
    opened, rows = (
        parse("g (float[N,3] x) => (float[N,3] y) { y = Exp (x) }"),
        Grouping({"x": 0}, {"y": FRONT}),
    )

    def report(inputs: object) -> str:
        return RowProof(ORIGINAL, opened, rows, inputs=inputs).report().verdict  # type: ignore[arg-type]

    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
    assert report({"x": x}) == "equal"
    assert report([{"x": x[:1]}, {"x": x[1:2]}]) == "equal"
    assert report({"x": np.repeat(x[:1], 4, 0)}) == "not proved"
    with pytest.raises(InputError, match="one row cannot show that rows are independent"):
        report({"x": x[:1]})
    with pytest.raises(InputError, match="rows of 'x' are missing"):
        report({})


def test_several_rows_in_a_run() -> None:
    rows = Grouping({"x": 0}, {"y": Rows(0, size=2)}, 2)
    original = parse(
        "g (float[2,4] x) => (float[4,2] y) { s = Constant <value_ints = [-1, 2]> ()  r = Reshape (x, s)  y = Exp (r) }"
    )
    opened = parse(
        "g (float[N,4] x) => (float[M,2] y) { s = Constant <value_ints = [-1, 2]> ()  r = Reshape (x, s)  y = Exp (r) }"
    )
    report = RowProof(original, opened, rows).report()
    assert report.verdict == "equal"
    assert [case.dims["batch"] for case in report.cases] == [1, 3]
