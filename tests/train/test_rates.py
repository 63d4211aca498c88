"""The learning rate is what was given, what is inside, or the optimiser's own."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from onnxgrad.errors import InputError
from onnxgrad.train import SGD
from onnxgrad.train.rates import finite_rate, rate_of
from onnxgrad.train.schedules import Cosine, Step, warm_up
from tests.train.common import step


def test_without_a_rate_the_optimiser_has_its_own() -> None:
    manifest = step(SGD(lr=0.25)).manifest
    assert rate_of(manifest, None) == 0.25
    assert rate_of(manifest, 0.5) == 0.5
    with pytest.raises(InputError, match="no learning rate of its own"):
        rate_of(replace(manifest, optimizer={"name": "sgd"}), None)
    with pytest.raises(InputError, match="must be at least 0, not -1"):
        rate_of(manifest, -1)


def test_the_schedule_inside_comes_back_from_the_manifest() -> None:
    for schedule in (Cosine(0.5, T_max=9), warm_up(Step(0.5, step_size=3), 4)):
        found: Any = rate_of(step(schedule=schedule).manifest, None)
        assert [found(n) for n in range(1, 9)] == [schedule(n) for n in range(1, 9)]


def test_a_schedule_of_ones_own_is_not_known() -> None:
    manifest = replace(step().manifest, schedule={"name": "mine:Cosine", "lr": 1.0})
    found: Any = rate_of(manifest, None)
    assert math.isnan(found(1))


@pytest.mark.parametrize("rate", [math.nan, math.inf, "fast", None, True])
def test_what_is_no_rate(rate: Any) -> None:
    with pytest.raises(InputError, match="learning rate must be finite"):
        finite_rate(rate)
    assert finite_rate(np.float32(0.5)) == 0.5
