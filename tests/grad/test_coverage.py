"""The registry as a whole: every operator with a derivative has one (closure: see test_closure)."""

from __future__ import annotations

import onnx
import pytest

from onnxgrad.grad.coverage import coverage, page
from onnxgrad.grad.registry import find
from tests.helpers import DATA_DIR, ROOT

GRAD = ROOT / "onnxgrad" / "grad"
# operators with a derivative that have no rule yet: an error says so; a rule takes its operator off this list
OPEN: list[str] = []


def test_every_operator_of_the_default_domain_is_accounted_for() -> None:
    rows = {row.name: row for row in coverage()}
    with_derivative = (DATA_DIR / "differentiable.txt").read_text().split()
    assert len(with_derivative) == 144
    assert [n for n in with_derivative if rows[n].kind not in ("rule", "body")] == OPEN
    assert [name for name, row in rows.items() if row.kind == "missing"] == OPEN


def test_the_page_is_current() -> None:
    assert (GRAD / "OPERATORS.md").read_text() == page(), (
        "run: python -m onnxgrad ops --markdown > onnxgrad/grad/OPERATORS.md"
    )


@pytest.mark.parametrize("name", ["Floor", "Round", "ArgMax", "Shape"])
def test_zero_is_declared(name: str) -> None:
    rule = find(name)
    assert rule is not None and rule.kind == "zero"


def test_a_schema_body_counts_only_when_there_is_one() -> None:
    for row in coverage():
        if row.kind == "body":
            schema = onnx.defs.get_schema(row.name)
            assert schema.has_function or schema.has_context_dependent_function
