"""What becomes of gradients until they are new weights: the options of a step's update, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.named_options import read
from onnxgrad.train.averaging import ExponentialMovingAverage
from onnxgrad.train.groups import Group, Groups, grouped
from onnxgrad.train.loss_scaling import LossScaling
from onnxgrad.train.optimizers import OPTIMIZERS, AdamW
from onnxgrad.train.optimizers.base import Optimizer
from onnxgrad.train.schedules import Schedule

NORM = "gradient_norm"  # among metrics
Scaling: TypeAlias = "Literal['dynamic'] | float | LossScaling | None"
Average: TypeAlias = "float | ExponentialMovingAverage | None"


@dataclass(frozen=True)
class Plan:
    """The update of one step, in the order in which it is made: gradients of `accumulate`
    micro-batches are averaged, unscaled, clipped by value, then by their global norm; each group's
    optimiser makes new weights of them, whose moving average is taken.
    """

    optimizer: Optimizer
    groups: tuple[Group, ...]
    clip_value: float | None = None
    clip_norm: float | None = None
    norm: bool = False  # the global norm is returned
    accumulate: int = 1
    average: ExponentialMovingAverage | None = None
    scaling: LossScaling | None = None
    schedule: Schedule | None = None

    def told(self) -> dict[str, Any]:
        """What a manifest says of it beside the optimiser."""
        several = len(self.groups) > 1
        return {
            "update": "update.onnx" if self.accumulate > 1 else None,
            "accumulate": self.accumulate,
            "groups": tuple(g.to_dict() for g in self.groups) if several else (),
            "clip_value": self.clip_value,
            "clip_norm": self.clip_norm,
            "average": None if self.average is None else self.average.decay,
            "loss_scaling": None if self.scaling is None else self.scaling.to_dict(),
            "schedule": None if self.schedule is None else self.schedule.to_dict(),
        }


def plan_of(
    optimizer: Optimizer | str | None,
    *,
    groups: Groups | None,
    clip_value: float | None,
    clip_norm: float | None,
    norm: bool,
    accumulate: int,
    average: Average,
    loss_scale: Scaling,
    schedule: Schedule | None,
) -> Plan:
    """The options of `training_step`, checked: raises InputError for each that is none."""
    optimizer = AdamW() if optimizer is None else optimizer
    if isinstance(optimizer, str):
        optimizer = read(optimizer, OPTIMIZERS, "optimiser")
    if not isinstance(optimizer, Optimizer):
        raise InputError(f"the optimizer must be one, like AdamW(), not {optimizer!r}")
    if schedule is not None and not isinstance(schedule, Schedule):
        raise InputError(
            f"the schedule must be one, like Cosine(1e-3, T_max=100), not {schedule!r}"
        )
    return Plan(
        optimizer,
        grouped(groups or {}, optimizer),
        _limit("clip_value", clip_value),
        _limit("clip_norm", clip_norm),
        norm or clip_norm is not None,
        _count(accumulate),
        _average(average),
        _scaling(loss_scale),
        schedule,
    )


def _is_number(value: Any) -> bool:
    return (
        isinstance(value, (int, float, np.number))
        and not isinstance(value, bool)
        and bool(np.isfinite(value))
    )


def _limit(name: str, value: Any) -> float | None:
    if value is None:
        return None
    if not _is_number(value) or value <= 0:
        raise InputError(f"{name} must be a number above 0, not {value!r}")
    return float(value)


def _count(value: Any) -> int:
    if not _is_number(value) or value < 1 or value != int(value):
        raise InputError(
            f"accumulate must be a whole number of micro-batches from 1 on, not {value!r}"
        )
    return int(value)


def _average(value: Any) -> ExponentialMovingAverage | None:
    if value is None or isinstance(value, ExponentialMovingAverage):
        return value
    if not _is_number(value):
        raise InputError(f"average must be a decay from 0 to 1, not {value!r}")
    return ExponentialMovingAverage(float(value))


def _scaling(value: Any) -> LossScaling | None:
    if value is None or isinstance(value, LossScaling):
        return value
    if value == "dynamic":
        return LossScaling()
    if not _is_number(value) or value <= 0:
        raise InputError(f"loss_scale must be 'dynamic' or a number above 0, not {value!r}")
    return LossScaling(float(value), dynamic=False)
