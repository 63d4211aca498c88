"""The table of built-in laws under exact evaluation is complete, and no law is refuted."""

from __future__ import annotations

import re

import pytest

from scripts.sweep_exact import RECORD, _verdict, decided, random_window, sweep
from scripts.sweep_laws import laws
from scripts.sweeping.windows import harvest

# laws with a random model that they rewrite (seed 0), and its number
RANDOM = {
    "simplify-transpose: gemm_of_transpose_right": 0, "gradient: left_of_expand": 0,
    "gradient: mul_of_neg_number": 2, "remove-noops: reshape_of_reshape": 0,
    "divide-by-root: times_reciprocal_of_equal_shape": 0, "merge-consecutive: add_of_neg": 0,
}  # fmt: skip


def recorded() -> dict[str, str]:
    rows = re.findall(r"^\| ([\w-]+: \w+) \| ([\w ]+) \|", RECORD.read_text("utf-8"), re.MULTILINE)
    return dict(rows)


def test_the_table_has_every_law_and_refutes_none() -> None:
    """If a law is missing: python scripts/sweep_exact.py --write"""
    assert recorded().keys() == {law.name for law in laws()}
    assert not {"refuted", "no window"} & set(recorded().values())
    assert sum(v in ("exact", "exact up to rounding") for v in recorded().values()) >= 120


@pytest.mark.parametrize("name", RANDOM)
def test_laws_on_random_models(name: str) -> None:
    law = next(law for law in laws() if law.name == name)
    found = random_window(law, 0, RANDOM[name])
    assert found is not None
    assert decided(found)


@pytest.mark.slow
def test_windows_of_all_laws() -> None:
    """If verdicts differ because tests have other windows now: python scripts/sweep_exact.py --write"""
    verdicts = {name: _verdict(found) for name, found in sweep(harvest(), models=4).items()}
    assert verdicts == recorded()
