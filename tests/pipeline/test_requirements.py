"""What a recipe may require, and what misses it."""

from __future__ import annotations

import pytest

import onnxgrad
from onnxgrad.errors import InputError
from onnxgrad.pipeline.requirements import miss, operators_of, requirement, unknown_operator
from tests.helpers import parse

PROGRAM = onnxgrad.load(
    parse("""<ir_version: 10, opset_import: ["": 20, "d": 1]> g (float[2,2] x) => (float[2,2] y) {
      a = MatMul(x, x) b = MatMul(a, x) y = d.f(b) }
      <domain: "d", opset_import: ["": 20]> f (p) => (q) { q = Tanh(p) }""")
)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("MatMul", 2, None),
        ("MatMul", "<=1", "2 MatMul, not <= 1"),
        ("MatMul + Tanh", "== 3", None),
        ("MatMul+Tanh", "<3", "3 MatMul+Tanh, not < 3"),
        ("nodes", ">=4", None),
        ("d::f", "!=1", "1 d::f, not != 1"),
    ],
)
def test_counts(name: str, text: int | str, words: str | None) -> None:
    assert miss(PROGRAM, name, text) == words


def test_unknown_operators() -> None:
    known = operators_of(PROGRAM)
    assert known == {"MatMul", "Tanh", "d::f"}
    assert unknown_operator(["nodes", "d::f + MatMul", "Gemm"], known) == ""
    assert "'Gem', which is no operator" in unknown_operator(["MatMul+Gem"], known)
    assert "did you mean 'MatMul'" in unknown_operator(["MatMull"], known)
    assert (
        unknown_operator(["own::g"], known)
        and unknown_operator(["own::g"], known, others=True) == ""
    )


def test_requirements_as_text() -> None:
    assert requirement(3) == ("==", 3) and requirement(" <= 164 ") == ("<=", 164)
    for text in ("164", "<= 1.5", True, 1.5, None):
        with pytest.raises(InputError, match="cannot read the requirement"):
            requirement(text)
