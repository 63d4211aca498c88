"""The learning rate of each step, by what a trainer was given or the step itself says."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.train.manifest import Manifest
from onnxgrad.train.schedules import schedule_of

Rate: TypeAlias = "float | Callable[[int], float]"


def rate_of(manifest: Manifest, given: Rate | None) -> Rate:
    """A number, or a function of the step's number such as a schedule; where none is given, the
    schedule inside the step, or the optimiser's own `lr`.

    Of a schedule inside that is a class of your own, and of a step that somebody else wrote without
    such an input, the rate is not known: NaN. Raises InputError for a rate beside either, and one
    that is no finite number from 0 on.
    """
    if manifest.schedule is not None:
        if given is not None:
            raise InputError("the step has its schedule inside: give no learning rate beside it")
        return schedule_of(manifest.schedule) or (lambda number: math.nan)
    if not manifest.of_role("learning_rate"):
        if given is not None:
            raise InputError("the step takes no learning rate, as its graph has its own: give none")
        return lambda number: math.nan
    if given is None:
        given = manifest.optimizer.get("lr")
        if given is None:
            raise InputError("the step's optimiser has no learning rate of its own: give one")
    if not callable(given) and finite_rate(given) < 0:
        raise InputError(f"the learning rate must be at least 0, not {given}")
    return given


def finite_rate(rate: object) -> float:
    """The rate as a number. Raises InputError for one that is not finite, and what is none."""
    number = isinstance(rate, (int, float, np.number)) and not isinstance(rate, bool)
    if not number or not np.isfinite(rate):  # type: ignore[call-overload]
        raise InputError(f"the learning rate must be finite, not {rate}")
    return float(rate)  # type: ignore[arg-type]
