"""The options of a step's update, and parameter groups, which assign optimisers to weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeAlias

from onnxgrad.errors import InputError
from onnxgrad.named_options import read
from onnxgrad.results import Plain
from onnxgrad.train.optimizers import OPTIMIZERS
from onnxgrad.train.optimizers.base import Optimizer
from onnxgrad.train.schedules import Schedule
from onnxgrad.train.update.mixed_precision import LossScaling
from onnxgrad.train.update.moving_average import ExponentialMovingAverage, WeightAverage
from onnxgrad.wording import perhaps, what_there_is

Change: TypeAlias = "Optimizer | Mapping[str, Any] | str"
AccumulateBy: TypeAlias = Literal["labels", "batches"]
Groups: TypeAlias = "Mapping[str, Change] | Sequence[tuple[str, Change]]"


@dataclass(frozen=True)
class Group(Plain):
    """The weights that one glob matches and no earlier glob.

    optimizer: the optimiser of these weights. factor: their learning rate over the step's.
    """

    glob: str
    optimizer: Optimizer
    factor: float = 1.0


def grouped(groups: Groups, default: Optimizer) -> tuple[Group, ...]:
    """Returns the requested groups and, last, the group of all other weights, whose optimiser is
    `default`.

    A group is an optimiser, or the hyperparameters in which it differs from `default`. Its `lr`
    works as in PyTorch's param_groups: if the step's learning rate is `default.lr`, the group's is
    its own, and a schedule multiplies both by the same factor. Raises InputError for a
    hyperparameter that the optimiser lacks, and for an `lr` that cannot be a multiple of the
    step's.
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
            f"group '{glob}': its lr of {optimizer.lr:g} is not a multiple of the optimiser's, "
            "which is 0"
        )
    return Group(glob, optimizer, optimizer.lr / default.lr)


def _changed(glob: str, change: Any, default: Optimizer) -> Optimizer:
    if isinstance(change, Optimizer):
        return change
    if isinstance(change, str):
        return read(change, OPTIMIZERS, "optimiser")
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
    """Returns the group of each weight: the first whose glob or name matches. Raises InputError for
    a group without weights, except the last.
    """
    found = {
        name: next(g for g in groups if name == g.glob or fnmatchcase(name, g.glob))
        for name in names
    }
    for group in groups[:-1]:
        if not any(g is group for g in found.values()):
            raise InputError(
                f"group '{group.glob}' matches no trained weight that is in no earlier group"
                f"{perhaps(group.glob, names) or what_there_is(names)}"
            )
    return found


NORM = "gradient_norm"  # among metrics


@dataclass(frozen=True)
class UpdateOptions:
    """The update of one step, in this order: gradients of `accumulate` micro-batches are averaged,
    unscaled, clipped by value, then by their global norm; each group's optimiser computes new
    weights, of which the moving average is updated. accumulate_by: the weights of micro-batches,
    None as the loss requires. norm: return the global norm as an output.
    """

    optimizer: Optimizer
    groups: tuple[Group, ...]
    clip_value: float | None = None
    clip_norm: float | None = None
    norm: bool = False
    accumulate: int = 1
    accumulate_by: AccumulateBy | None = None
    average: WeightAverage | None = None
    scaling: LossScaling | None = None
    schedule: Schedule | None = None

    def to_dict(self) -> dict[str, Any]:
        """Returns the entries of a manifest, except for the optimiser."""
        several, average = len(self.groups) > 1, self.average
        return {
            "update": "update.onnx" if self.accumulate > 1 else None,
            "accumulate": self.accumulate,
            "accumulate_by": None if self.accumulate == 1 else self.accumulate_by,
            "groups": tuple(g.to_dict() for g in self.groups) if several else (),
            "clip_value": self.clip_value,
            "clip_norm": self.clip_norm,
            "average": (
                average.decay
                if isinstance(average, ExponentialMovingAverage)
                else None
                if average is None
                else average.to_dict()
            ),
            "loss_scaling": None if self.scaling is None else self.scaling.to_dict(),
            "schedule": None if self.schedule is None else self.schedule.to_dict(),
        }
