"""Cuts keep degrees small, and hide no difference."""

from __future__ import annotations

from onnxgrad.verify.exact.decide import decide
from tests.verify.exact.test_decide import window

# 40 squarings have degree 2**40, for which no bound holds without a cut
SQUARES = " ".join(f"v{i + 1} = Mul(v{i}, v{i})" for i in range(40))


def body(first: str, last: str) -> str:
    return f"<float[1] c = {{2}}> {{ v0 = {first} {SQUARES} y = {last} }}"


def test_a_degree_beyond_every_prime() -> None:
    old = body("Add(x, x)", "Add(v40, v0)")
    found = decide(window(old, body("Mul(x, c)", "Add(v0, v40)")))
    assert found.verdict == "exact" and found.bound < 1e-9


def test_a_difference_before_and_behind_a_cut() -> None:
    old = body("Add(x, x)", "Add(v40, v0)")
    for new in (body("Identity(x)", "Add(v40, v0)"), body("Add(x, x)", "Sub(v40, v0)")):
        assert decide(window(old, new)).verdict == "refuted"


def test_values_of_one_name_that_differ_are_no_cut() -> None:
    swapped = body("Add(x, x)", "Add(v40, v0)").replace("v20 = Mul(v19, v19)", "v20 = Mul(c, v19)")
    assert decide(window(body("Add(x, x)", "Add(v40, v0)"), swapped)).verdict == "refuted"
