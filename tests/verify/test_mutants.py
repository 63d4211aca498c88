"""One small change of a model that moves an output does not pass the proof."""

from __future__ import annotations

import pytest

from onnxgrad.verify import verify
from scripts.sweep_proof import Base, missed, sweep
from scripts.sweep_verdicts import KINDS
from scripts.sweep_verdicts import sweep as verdicts
from scripts.sweeping.mutants import Mutant
from tests.helpers import parse


@pytest.mark.slow
def test_mutants_of_models_are_caught() -> None:
    """500 by hand: scripts/sweep_proof.py --mutants 500 --seed 0."""
    counts, misses = sweep(1, mutants=100)
    assert misses == []
    assert counts["caught of same weights"] >= 5 and counts["caught of computed weights"] >= 5


def test_the_sweep_would_see_a_miss() -> None:
    """Judged by a proof of something else, a mutant that moves its output has passed."""
    model, wrong = (
        parse(f"g (float[N] x) => (float[N] y) {{ a = Tanh(x) y = {op}(a) }}")
        for op in ("Neg", "Exp")
    )
    base = Base.of("tiny", model, (0,))
    assert base is not None and base.moved(model) == {"y": 0.0}
    moved = base.moved(wrong)
    assert moved["y"] > 0.1
    blind = verify(model, model)
    assert missed(moved, blind, Mutant(wrong, "operator")).startswith("y moves by")
    assert missed(moved, blind, Mutant(wrong, "weight", computed=True)).startswith("y moves by")
    assert missed(moved, verify(model, wrong), Mutant(wrong, "operator")) == ""


@pytest.mark.slow
def test_noise_ties_and_draws_excuse_no_other_weights() -> None:
    """20 of each kind by hand: scripts/sweep_verdicts.py --models 20."""
    found = list(verdicts(1, 1, list(KINDS)))
    assert [one for one in found if not one[3]] == [] and len(found) > 80
