"""Where a run stands is what it says."""

from __future__ import annotations

import pytest

from onnxgrad.errors import InputError
from onnxgrad.train.checkpoint import Progress


def test_what_was_said_comes_back() -> None:
    stands = Progress(steps=7, epoch=2, batches=1, best=0.5, stale=1, seed=3, micro=2, micro_loss=1)
    assert Progress.of(stands.words(), "run") == stands
    for said in ({}, {"progress": "{"}, {"progress": '{"step": 3}'}, {"progress": "3"}):
        with pytest.raises(InputError, match="run does not say where training stands"):
            Progress.of(said, "run")


def test_a_run_without_a_step() -> None:
    Progress().check_trained(3)
    with pytest.raises(InputError, match="3 micro-batches make a step, and there were 2"):
        Progress(micro=2).check_trained(3)


def test_nothing_left() -> None:
    assert Progress(steps=4, epoch=2).nothing_left(3, None) == ""
    assert "epochs=4 goes on" in Progress(steps=4, epoch=2).nothing_left(2, None)
    assert "steps=7 goes on" in Progress(steps=4, epoch=2).nothing_left(9, 3)
