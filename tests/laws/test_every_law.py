"""No law of ours slips on random models that its pattern may match, and what is declined leaves every byte."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

import pytest

from onnxgrad.rewrite import slips
from onnxgrad.rewrite.attempt import unknown_parameters
from onnxgrad.rewrite.combine import Family
from onnxgrad.rewrite.pattern import names_in
from onnxgrad.rewrite.worklist import Rule
from scripts.sweep_laws import laws, sweep


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    """The sweep counts slips, where tests make errors of them."""
    yield
    slips.raising = True


def test_each_law_requires_what_its_pattern_captures() -> None:
    """`rewrite` and `combine` check this for laws of callers alone."""
    modules = [
        importlib.import_module(module.name)
        for package in ("laws", "passes", "grad", "batching")
        for module in pkgutil.walk_packages(
            importlib.import_module(f"onnxgrad.{package}").__path__, f"onnxgrad.{package}."
        )
    ]
    found = {id(v): v for m in modules for v in vars(m).values() if isinstance(v, (Rule, Family))}
    for law in found.values():
        names, is_rule = names_in(law.pattern), isinstance(law, Rule)
        more = ("root",) if is_rule else ("roots", "group")
        assert unknown_parameters(law.build, {*names, *more}) == [], law.name
        assert is_rule or unknown_parameters(law.by, {*names, "root"}) == [], law.name
    assert len(found) > 150


def test_each_law_on_models_that_it_rewrites_and_declines() -> None:
    """If too few are left: python -c 'from scripts.sweep_laws import pick; pick(11, 40)'"""
    counts, failures = sweep(11, faults=1)
    assert not failures, failures
    assert counts["laws that matched"] > 110 and counts["laws that fired"] > 60
    assert counts["compared"] > 60 and counts["faults"] > 100 and counts["bent models"] > 30


@pytest.mark.slow
def test_many_models_of_each_law() -> None:
    counts, failures = sweep(12, models=60 * len(laws()))
    assert not failures, failures
    assert counts["laws that fired"] > 70
