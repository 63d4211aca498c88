"""Integers, booleans and strings have no tolerance: what may differ is excused element by element."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxgrad.verify import verify
from onnxgrad.verify.proof_model import proof_model
from onnxgrad.verify.ties import Ties, _doubtful
from onnxgrad.verify.tolerance import Ranges
from tests.helpers import parse

ROWS = 300
UP, DOWN = 1 + 2.0**-22, 1 - 2.0**-22


def model(text: str, factor: float, *, declared: str = "int64[N] i") -> onnx.ModelProto:
    """A product by a factor near 1, and what is decided by it."""
    made = parse(f"g (float[N,4] x) => ({declared}) {{ p = Mul(x, f) {text} }}")
    made.graph.initializer.append(numpy_helper.from_array(np.float32([1, 1, factor, 1]), "f"))
    return made


def rows(ties: int) -> dict[str, np.ndarray[Any, Any]]:
    """Rows of distinct numbers, some with two equal largest ones (at 1 and 2)."""
    x = np.random.default_rng(0).uniform(0.1, 0.5, (ROWS, 4)).astype(np.float32)
    x[:, 3] = 0.9
    x[:ties, 1:3] = 1.0
    return {"x": x}


ARGMAX = "i = ArgMax <axis = 1, keepdims = 0> (p)"


@pytest.mark.parametrize("check", ["onnxruntime", "float64"])
def test_an_index_at_a_tie_is_excused_and_counted(check: str) -> None:
    a, b = model(ARGMAX, 1.0), model(ARGMAX, UP)
    report = verify(a, b, inputs=rows(2), checks=[check], weights="rounded")
    assert report.verdict == "equal", str(report)
    assert "2 of 300 elements of i differ at ties" in report.notes
    assert [d["excused"] for d in report.to_dict()["differences"]] == [2]


def test_many_indices_at_ties_prove_nothing() -> None:
    a, b = model(ARGMAX, 1.0), model(ARGMAX, UP)
    report = verify(a, b, inputs=rows(4), checks=["onnxruntime"])
    assert report.verdict == "not proved"
    assert report.unproved == ("4 of 300 elements of i differ at ties",)


def test_an_index_that_is_no_tie_is_a_difference() -> None:
    a, b = model(ARGMAX, 1.0), model(ARGMAX, 1.001)
    x = rows(0)
    x["x"][0, 1:3] = 1.0, 0.9995
    report = verify(a, b, inputs=x, checks=["onnxruntime"])
    assert report.verdict == "different" and report.worst is not None
    assert report.worst.index == (0,) and (report.worst.a, report.worst.b) == (1, 2)


def test_an_index_outside_of_those_that_tie_is_a_difference() -> None:
    wrong = "m = Neg(p) j = ArgMax <axis = 1, keepdims = 0> (m) i = Identity(j)"
    report = verify(
        model(ARGMAX, 1.0), model(wrong, 1.0), inputs=rows(ROWS), checks=["onnxruntime"]
    )
    assert report.verdict == "different"


@pytest.mark.parametrize(
    ("text", "declared"),
    [
        ("b = Greater(p, k) i = Identity(b)", "bool[N,4] i"),
        ("b = Less(k, p) i = Not(b)", "bool[N,4] i"),
        ("b = GreaterOrEqual(p, k) c = Cast <to = 7> (b) i = ReduceSum <keepdims = 0> (c, one)", "int64[N] i"),
        ("s = Div(p, k) i = Cast <to = 6> (s)", "int32[N,4] i"),
        ("s = Div(p, k) r = Floor(s) h = Mul(r, two) i = Cast <to = 6> (h)", "int32[N,4] i"),
        ("v, i = TopK <axis = 1> (p, one)", "int64[N,1] i"),
    ],
)  # fmt: skip
def test_every_kind_of_decision(text: str, declared: str) -> None:
    """One row's number at a threshold, on either side of it; the same number off by 1e-3 is none."""
    made = [model(text, f, declared=declared) for f in (DOWN, UP, 1.001)]
    for m in made:
        for name, value in (("k", np.float32(0.75)), ("two", np.float32(2)), ("one", [1])):
            kind = np.int64 if name == "one" else np.float32
            m.graph.initializer.append(numpy_helper.from_array(np.asarray(value, kind), name))
    x = rows(0)
    x["x"][:2, 2] = 0.75, 0.7496
    if "TopK" in text:
        x["x"][:2, 1:3] = [[1.0, 1.0], [1.0, 0.9995]]
    report = verify(made[0], made[1], inputs=x, checks=["onnxruntime"])
    assert report.verdict == "equal" and any("at ties" in n for n in report.notes), str(report)
    assert verify(made[0], made[2], inputs=x, checks=["onnxruntime"]).verdict == "different"


QUANTIZED = "i = QuantizeLinear(p, s, z)"


def quantized(factor: float, zero: int = 0) -> onnx.ModelProto:
    made = model(QUANTIZED, factor, declared="int8[N,4] i")
    made.graph.initializer.append(numpy_helper.from_array(np.float32(0.01), "s"))
    made.graph.initializer.append(numpy_helper.from_array(np.int8(zero), "z"))
    return made


def test_a_quantized_element_at_a_tie_may_be_off_by_one_quantum() -> None:
    x = rows(0)
    x["x"][:2, 2] = 0.125, 0.135  # 12.5 and 13.5 quanta
    report = verify(quantized(DOWN), quantized(UP), inputs=x, checks=["onnxruntime"])
    assert report.verdict == "equal" and any("at ties" in n for n in report.notes), str(report)
    assert verify(quantized(1.0), quantized(1.0, 1), inputs=x).verdict == "different"
    assert verify(quantized(1.0), quantized(1.02), inputs=x).verdict == "different"


def test_a_range_of_8_bits_is_one_quantum_however_far_floats_move() -> None:
    made = quantized(1.0)
    x = rows(0)
    base = {"i": np.round(x["x"] / np.float32(0.01)).astype(np.int8)}
    ranges: Ranges = {}
    Ties(proof_model(made), 5.0).widen(ranges, base, x, amount=0.1)
    assert (ranges["i"].high - ranges["i"].low).max() == 2
    assert (abs(ranges["i"].high - base["i"].astype(np.int16)) <= 1).all()


def test_what_no_rounding_touched_is_no_tie() -> None:
    """A comparison of inputs and of whole numbers is exact in every order of sums."""
    made = parse("""g (float[N] x, float[N] k) => (bool[N] i, int32[N] j) {
        i = Greater(x, k) f = Floor(x) g = Add(f, f) j = Cast <to = 6> (g) }""")
    wrong = parse("""g (float[N] x, float[N] k) => (bool[N] i, int32[N] j) {
        i = GreaterOrEqual(x, k) f = Floor(x) g = Add(f, f) j = Cast <to = 6> (g) }""")
    x = np.linspace(0.1, 50, 500, dtype=np.float32)
    k = x + 1
    k[7] = x[7]
    report = verify(made, wrong, inputs={"x": x, "k": k}, checks=["onnxruntime"])
    assert report.verdict == "different" and report.worst is not None
    assert report.worst.output == "i" and report.worst.index == (7,)


def test_a_decision_in_a_branch_is_seen() -> None:
    text = """i = If (c) <then_branch = t () => (bool[N,4] b) { b = Greater(p, k) },
        else_branch = e () => (bool[N,4] d) { d = Less(p, k) }>"""
    made = [model(text, f, declared="bool[N,4] i") for f in (DOWN, UP)]
    for m in made:
        m.graph.initializer.append(numpy_helper.from_array(np.float32(0.75), "k"))
        m.graph.initializer.append(numpy_helper.from_array(np.bool_(True), "c"))
    x = rows(0)
    x["x"][0, 2] = 0.75
    report = verify(*made, inputs=x, checks=["onnxruntime"])
    assert report.verdict == "equal" and any("at ties" in n for n in report.notes), str(report)


@pytest.mark.parametrize("kind", ["float", "float16", "double", "int32", "bool"])
@pytest.mark.parametrize("like", [False, True])
@pytest.mark.parametrize("name", ["p", "x"])
def test_a_cast_decides_if_it_rounds_to_integers(kind: str, like: bool, name: str) -> None:
    """Only of a number that was rounded before: p, not x."""
    code = getattr(onnx.TensorProto, kind.upper())
    node = f"CastLike ({name}, k)" if like else f"Cast <to = {code}> ({name})"
    made = model(f"i = {node}", 1.0, declared=f"{kind}[N,4] i")
    k = np.ones((), onnx.helper.tensor_dtype_to_np_dtype(code))
    made.graph.initializer.append(numpy_helper.from_array(k, "k"))
    assert (_doubtful(proof_model(made)) is not None) == (kind in ("int32", "bool") and name == "p")
