"""The options of a step's update, and parameter groups: which optimiser updates which weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeAlias

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.named_options import read
from onnxgrad.train.optimizers import OPTIMIZERS, AdamW
from onnxgrad.train.optimizers.base import Optimizer
from onnxgrad.train.schedules import Schedule
from onnxgrad.train.update.mixed_precision import LossScaling
from onnxgrad.train.update.moving_average import ExponentialMovingAverage
from onnxgrad.wording import perhaps

Change: TypeAlias = "Optimizer | Mapping[str, Any]"
Groups: TypeAlias = "Mapping[str, Change] | Sequence[tuple[str, Change]]"


@dataclass(frozen=True)
class Group:
    """The weights that one glob means and no glob before it did.

    optimizer: theirs. factor: of the step's learning rate, which makes it theirs.
    """

    glob: str
    optimizer: Optimizer
    factor: float = 1.0

    def to_dict(self) -> dict[str, Any]:
        """As a manifest has it."""
        return {"glob": self.glob, "optimizer": self.optimizer.to_dict(), "factor": self.factor}


def grouped(groups: Groups, default: Optimizer) -> tuple[Group, ...]:
    """The groups that were asked for, and behind them that of all other weights, whose optimiser is
    `default`.

    A group is an optimiser, or the hyperparameters in which it differs from `default`. Its `lr`
    counts as in PyTorch's param_groups: with a learning rate of `default.lr` the group has its own,
    and whatever the learning rate is multiplied by, as by a schedule, so is the group's. Raises
    InputError for a hyperparameter that the optimiser lacks, and an `lr` of which none can be a
    multiple.
    """
    entries = groups.items() if isinstance(groups, Mapping) else groups
    found = [_group(entry, default) for entry in _listed(entries)]
    return (*found, Group("*", default))


def _listed(entries: Any) -> list[Any]:
    if isinstance(entries, str) or not isinstance(entries, Iterable):
        raise InputError(
            f'groups must be like {{"*.bias": {{"weight_decay": 0.0}}}}, not {entries!r}'
        )
    return list(entries)


def _group(entry: Any, default: Optimizer) -> Group:
    if not isinstance(entry, (tuple, list)) or len(entry) != 2 or not isinstance(entry[0], str):
        raise InputError(
            f"a group must be a glob with an optimiser or its hyperparameters, not {entry!r}"
        )
    glob, change = entry
    optimizer = _changed(glob, change, default)
    if optimizer.lr == default.lr:
        return Group(glob, optimizer)
    if default.lr == 0:
        raise InputError(
            f"group '{glob}': its lr of {optimizer.lr:g} is no multiple of the optimiser's, "
            "which is 0"
        )
    return Group(glob, optimizer, optimizer.lr / default.lr)


def _changed(glob: str, change: Any, default: Optimizer) -> Optimizer:
    if isinstance(change, Optimizer):
        return change
    if not isinstance(change, Mapping):
        raise InputError(
            f"group '{glob}' must be an optimiser or hyperparameters by name, not {change!r}"
        )
    known = [f.name for f in fields(default)]
    for key in change:
        if key not in known:
            raise InputError(
                f"group '{glob}': {default.name} has no '{key}'{perhaps(str(key), known)}; it has "
                f"{', '.join(known)}"
            )
    return replace(default, **change)


def members(groups: Sequence[Group], names: Sequence[str]) -> dict[str, Group]:
    """The group of each weight: the first whose glob, or name, means it. Raises InputError for a
    group without any, but the last.
    """
    found = {
        name: next(g for g in groups if name == g.glob or fnmatchcase(name, g.glob))
        for name in names
    }
    for group in groups[:-1]:
        if not any(g is group for g in found.values()):
            raise InputError(
                f"group '{group.glob}' means no weight that is trained and in no group before it"
                f"{perhaps(group.glob, names)}"
            )
    return found


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
