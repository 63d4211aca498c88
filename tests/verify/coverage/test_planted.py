"""A sweep of planted faults at thresholds: each is refuted, or the coverage names its threshold; and
of equal pairs over the same operators: each is equal, whatever one of the forms does not reach.
"""

from __future__ import annotations

import pytest

from onnxgrad.verify import verify
from tests.verify.coverage.planted import Pair, deeper, faults, legal
from tests.verify.coverage.planted_numbers import numbers, tables

FAULTS = {**faults(), **deeper(), **numbers(), **tables()}
LEGAL = dict(legal())
KINDS = {name.partition(":")[0]: name for name in reversed(FAULTS)}  # the first of each
QUICK = [name for name in LEGAL if not name.startswith("itself")]


def refuted_or_named(pair: Pair) -> bool:
    """Returns whether the verdict is not `equal`, or thresholds that were not reached are named."""
    report = verify(*pair)
    missed = report.coverage.missed
    return not report.ok or bool(missed and missed[0] in report.coverage.line)


def test_there_are_many_kinds() -> None:
    assert len(KINDS) >= 18 and len(FAULTS) >= 140


@pytest.mark.parametrize("name", KINDS.values())
def test_a_fault_of_each_kind_is_refuted(name: str) -> None:
    assert verify(*FAULTS[name]).verdict == "different"


@pytest.mark.parametrize("name", QUICK)
def test_equal_forms_are_equal(name: str) -> None:
    assert verify(*LEGAL[name]).verdict == "equal"


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_is_refuted_or_named(name: str) -> None:
    assert refuted_or_named(FAULTS[name])


@pytest.mark.parametrize("name", ["overflow: Sigmoid", "overflow: Softplus"])
def test_values_at_which_the_original_overflows_are_named(name: str) -> None:
    """A model that overflows may be replaced by one that does not: nothing is compared there."""
    a, b = FAULTS[name]
    report = verify(b, a)
    assert report.verdict == "equal" and "Exp → 'e': never above 88.7228" in report.coverage.line


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_is_refuted_or_named_the_other_way_round(name: str) -> None:
    a, b = FAULTS[name]
    assert refuted_or_named((b, a))


@pytest.mark.slow
@pytest.mark.parametrize("name", LEGAL)
def test_every_legal_pair_is_equal(name: str) -> None:
    a, b = LEGAL[name]
    assert verify(a, b).verdict == "equal" and verify(b, a).verdict == "equal"
