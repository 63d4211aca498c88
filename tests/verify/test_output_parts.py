"""A small part of an output beside a large one is judged by its own values, or named."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from onnxgrad.verify import verify
from onnxgrad.verify.output_parts import Joins
from tests.helpers import parse

TEXT = """g (float[N,4] x) => (float[%s] y) <float big = {1e9}, float k = {%s}> {
    a = Mul(x, big) b = Mul(x, k) %s }"""
ENDS = {
    "columns": ("N,8", "y = Concat <axis = 1> (a, b)"),
    "columns, counted from the end": ("N,8", "y = Concat <axis = -1> (b, a)"),
    "transposed": ("8,N", "c = Concat <axis = 1> (a, b) y = Transpose(c)"),
    "moved twice": (
        "1,8,N",
        """c = Concat <axis = -1> (a, b) i = Identity(c) t = Transpose(i)
        ax = Constant <value = int64[1] {0}> () u = Unsqueeze(t, ax)
        y = Identity(u)""",
    ),
}


def model(factor: float, end: str) -> onnx.ModelProto:
    return parse(TEXT % (ENDS[end][0], factor, ENDS[end][1]))


@pytest.mark.parametrize("end", [e for e in ENDS if e != "moved twice"])
@pytest.mark.parametrize("check", ["onnxruntime", "float64"])
def test_a_small_part_is_judged_by_itself(end: str, check: str) -> None:
    report = verify(model(1.0, end), model(0.3, end), checks=[check])
    assert report.verdict == "different" and report.worst is not None, str(report)
    assert report.worst.output.startswith("y[") and report.worst.rel > 0.5
    assert verify(model(1.0, end), model(1.0, end), checks=[check]).verdict == "equal"


def test_a_bound_of_the_users_own_is_for_the_whole() -> None:
    report = verify(model(1.0, "columns"), model(0.3, "columns"), rtol=0.0, atol=10.0)
    assert report.verdict == "within bounds"


def test_counts_are_those_of_the_output() -> None:
    report = verify(model(1.0, "columns"), model(1.0, "columns"), dims={"N": 2}, seeds=[0])
    assert report.ok and set(report.compared) == {"y"}
    assert all(n % 16 == 0 for n in report.compared.values())


def test_a_part_that_is_all_noise_is_named() -> None:
    """4e6 added and taken away: of the small part float32 keeps a digit, the original as little as
    the second model differs by.
    """
    text = """g (float[N,4] x) => (float[N,8] y) <float big = {1e12}, float k = {4e6}> {
        a = Mul(x, big) m = Neg(x) p = Add(m, k) b = %s y = Concat <axis = 1> (a, b) }"""
    report = verify(parse(text % "Sub(p, k)"), parse(text % "Identity(m)"))
    assert report.verdict == "equal", str(report)
    assert any("too small beside the rest to be judged" in note for note in report.notes)


def test_parts_of_unknown_sizes_are_named() -> None:
    text = """g (float[N] x, float[M] z) => (float[K] y) <float big = {1e9}, float k = {%s}> {
        a = Mul(x, big) b = Mul(z, k) y = Concat <axis = 0> (a, b) }"""
    report = verify(parse(text % "1"), parse(text % "1"))
    assert report.ok and "y joins parts of unknown sizes: small ones are not judged" in report.notes


@pytest.mark.parametrize(
    ("end", "axis", "bounds"),
    [("columns", 1, [(4, 8)]), ("columns, counted from the end", 1, [(0, 4)]), ("transposed", 0, [(4, 8)])],
)  # fmt: skip
def test_where_parts_are(end: str, axis: int, bounds: list[tuple[int, int]]) -> None:
    value = np.ones((2, 8), np.float32)
    small = slice(*bounds[0])
    value[:, small] = 1e-6
    value = value.T if end == "transposed" else value
    parts, unknown = Joins(model(1.0, end)).parts({"y": value})
    assert [(p.axis, (p.start, p.stop)) for p in parts] == [(axis, b) for b in bounds]
    assert not unknown and parts[0].name == (
        "y[4:8]" if axis == 0 else f"y[:, {small.start}:{small.stop}]"
    )


def test_even_parts_and_other_ends_are_left_alone() -> None:
    value = np.ones((2, 8), np.float32)
    assert Joins(model(1.0, "columns")).parts({"y": value}) == ([], [])
    assert not Joins(model(1.0, "moved twice")).joins
