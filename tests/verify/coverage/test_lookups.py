"""Lookups that run alone: which tables are the same in two models, and what they do not show."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from onnxgrad.verify import verify
from onnxgrad.verify.coverage.lookups import Lookups, equal_rows, same_lookups
from onnxgrad.verify.proof_model import proof_model
from onnxgrad.verify.reference.client import Float64
from tests.verify.coverage.planted import ROWS, model

f32 = np.float32
GIVEN, RESULT = "int64[N,S] ids", "float[N,S,6] y"
NEXT = np.nextafter(ROWS, f32(9))
INTEGERS = np.random.default_rng(4).integers(-60, 60, (400, 6)).astype(np.int8)
TWICE = (INTEGERS * 2).astype(np.int8)
LOOKUP = "v = Gather (t, ids) y = Add (v, v)"
BEFORE = "d = DequantizeLinear (t, s) v = Gather (d, ids) y = Add (v, v)"
AFTER = "g = Gather (t, ids) v = DequantizeLinear (g, s) y = Add (v, v)"
FLAT = "r = Reshape (t, shape) v = Gather (r, ids) y = Add (v, v)"
SCALES = np.linspace(0.01, 0.02, 400).astype(f32)


def changed(table: Any, row: int, by: float) -> Any:
    other = table.copy()
    other[row, 2] += table.dtype.type(by)
    return other


def same(a: onnx.ModelProto, b: onnx.ModelProto, name: str = "t", other: str = "t") -> bool:
    """Returns whether the lookups of one table run alone show that it is the same."""
    sides = (Lookups(proof_model(m)) for m in (a, b))
    return [*same_lookups(*sides, {name: other}, [lambda m: Float64(m).run({})])] == [name]


def of(body: str, result: str = RESULT, **constants: Any) -> onnx.ModelProto:
    return model(GIVEN, body, result, **constants)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (of(LOOKUP, t=ROWS), of(LOOKUP, t=NEXT)),
        (of(BEFORE, t=INTEGERS, s=f32(0.25)), of(BEFORE, t=TWICE, s=f32(0.125))),
        (of(BEFORE, t=INTEGERS, s=f32(0.25)), of(AFTER, t=TWICE, s=f32(0.125))),
        (of(LOOKUP, t=ROWS), of(FLAT, t=NEXT.reshape(-1), shape=[400, 6])),
        (
            of("v = Gather <axis = 1> (t, ids) y = Shape (v)", "int64[4] y", t=ROWS),
            of("v = Gather <axis = -1> (t, ids) y = Shape (v)", "int64[4] y", t=NEXT),
        ),
    ],
    ids=["rounding", "scaled", "other side", "reshaped", "columns"],
)
def test_tables_whose_rows_are_equal(a: onnx.ModelProto, b: onnx.ModelProto) -> None:
    assert same(a, b)


SHOWN = f"{RESULT}, float z"


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (of(LOOKUP, t=ROWS), of(LOOKUP, t=changed(NEXT, 399, 1e-4))),
        (of(BEFORE, t=INTEGERS, s=f32(0.25)), of(AFTER, t=changed(TWICE, 399, 1), s=f32(0.125))),
        (of(BEFORE, t=INTEGERS, s=f32(0.25)), of(BEFORE, t=TWICE, s=f32(0.12501))),
        # its readers differ
        (of(LOOKUP, t=ROWS), of("v = Gather (t, ids) y = Mul (v, k)", t=NEXT, k=f32(2))),
        (of("y = Gather (t, ids)", t=ROWS), of(LOOKUP, t=NEXT)),
        # something else reads the table of one of the models
        (of(LOOKUP, t=ROWS), of(LOOKUP + " z = ReduceMax <keepdims = 0> (t)", SHOWN, t=NEXT)),
        (of(LOOKUP + " w = Relu (t) z = ReduceMax <keepdims = 0> (w)", SHOWN, t=ROWS),
         of(LOOKUP, t=NEXT)),
        # another table, and another number of rows
        (of(LOOKUP, t=ROWS), of(LOOKUP, t=NEXT[:399])),
        (of(FLAT, t=ROWS, shape=[400, 6]), of(FLAT, t=NEXT, shape=[200, 12])),
        # an axis that counts from the rank of the indices, and a table that is computed otherwise
        (of(BEFORE.replace("Linear", "Linear <axis = 0>"), t=INTEGERS, s=SCALES),
         of(AFTER.replace("Linear", "Linear <axis = 0>"), t=INTEGERS, s=SCALES)),
        (of("d = Abs (t) v = Gather (d, ids) y = Add (v, v)", t=ROWS),
         of("d = Abs (t) v = Gather (d, ids) y = Add (v, v)", t=NEXT)),
    ],
    ids=["an element", "an integer", "a scale", "readers", "a reader", "its maximum", "our maximum",
         "rows", "shape", "axis", "arithmetic"],
)  # fmt: skip
def test_tables_that_stay_unread(a: onnx.ModelProto, b: onnx.ModelProto) -> None:
    assert not same(a, b)


def test_nested_readers_and_defaults_are_readers() -> None:
    branch = """v = Gather (t, ids) y = Add (v, v) c = Cast <to = 9> (n) z = If (c) <
      then_branch = p () => (float[400,6] o) { o = Identity (t) },
      else_branch = q () => (float[400,6] u) { u = Neg (t) }>"""
    a, b = (
        model(f"{GIVEN}, int64 n", branch, f"{RESULT}, float[400,6] z", t=t) for t in (ROWS, NEXT)
    )
    assert not same(a, b)
    a, b = (model(f"{GIVEN}, float[400,6] t", LOOKUP, RESULT, t=t) for t in (ROWS, NEXT))
    assert not same(a, b)


def test_rows_and_columns_have_their_own_scale() -> None:
    table = ROWS.copy()
    table[7] *= 1e-8
    table[:, 2] *= f32(1e-6)
    for at in ((7, 1), (3, 2)):
        other = table.copy()
        other[at] *= f32(1.001)
        assert not equal_rows(table, other, {onnx.TensorProto.FLOAT})
    assert equal_rows(table, np.nextafter(table, f32(9)), {onnx.TensorProto.FLOAT})
    assert equal_rows(ROWS, NEXT, {onnx.TensorProto.FLOAT})
    numbers = ROWS.reshape(-1)
    assert equal_rows(numbers, np.nextafter(numbers, f32(9)), {onnx.TensorProto.FLOAT})
    assert not equal_rows(numbers, changed(ROWS, 99, 1e-3).reshape(-1), {onnx.TensorProto.FLOAT})
    special = changed(ROWS, 3, np.inf)
    assert equal_rows(special, special, {onnx.TensorProto.FLOAT})
    assert not equal_rows(special, changed(ROWS, 3, np.nan), {onnx.TensorProto.FLOAT})


# more rows than a proof reads, of more elements than a small model has
LARGE = np.random.default_rng(5).standard_normal((70_000, 2)).astype(f32)
NEAR = np.nextafter(LARGE, f32(9))
PAIRS = "float[N,S,2] y"


def test_rounded_rows_that_no_run_reads_are_equal() -> None:
    a, b = (of(LOOKUP, PAIRS, t=t) for t in (LARGE, NEAR))
    assert verify(a, b).verdict == "equal"


def test_a_wrong_row_among_rounded_ones_is_found() -> None:
    wrong = NEAR.copy()
    wrong[61_234] *= 3
    a, b = (of(LOOKUP, PAIRS, t=t) for t in (LARGE, wrong))
    assert verify(a, b).verdict == "different"


@pytest.mark.slow
def test_what_a_lookup_alone_does_not_show() -> None:
    mul = "v = Gather (t, ids) y = Mul (v, k)"
    a = of(mul, PAIRS, t=LARGE, k=f32(2))
    assert verify(a, of(mul, PAIRS, t=NEAR, k=f32(2.01))).verdict == "different"
    assert verify(a, of(LOOKUP, PAIRS, t=NEAR)).verdict == "not proved"
    assert verify(a, of(mul, PAIRS, t=LARGE * 4, k=f32(0.5))).verdict == "not proved"
    # a bound behind the table that one row alone exceeds: the coverage names it
    far = LARGE.copy()
    far[61_234] = 500
    clip = "v = Gather (t, ids) y = Clip (v, l, h)"
    low, high, other = f32(-100), f32(100), f32(200)
    a = of(clip, PAIRS, t=far, l=low, h=high)
    report = verify(a, of(clip, PAIRS, t=np.nextafter(far, f32(900)), l=low, h=other))
    assert report.verdict != "equal" or "never above 100" in report.coverage.line
