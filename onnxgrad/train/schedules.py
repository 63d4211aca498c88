"""Schedules: the learning rate as a function of the step, by one formula in Python and in a graph.

Steps count from 1, as the input `step` of a training step does: `schedule(1)` is the rate of the
first update, at PyTorch's `last_epoch` 0. Classes and fields have the names of
torch.optim.lr_scheduler, without "LR"; CosineAnnealingLR is Cosine. The first field is the rate
that the schedule scales. To add a schedule, write a subclass with one method, `after`.

    schedule = warm_up(Cosine(1e-3, T_max=900), steps=100)
    schedule(1), schedule(100)            # floats, for the input `learning_rate`
    schedule.emit(step)                   # or the same as a value of the graph

A step with the schedule inside has no input `learning_rate`: the learning rate of its `Moment` is
the value of `emit`.
"""

from __future__ import annotations

import math
import sys
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
from onnx import TensorProto

from onnxgrad.errors import InputError
from onnxgrad.ir.emission.emit import constant
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var
from onnxgrad.named_options import declared, name_of, read
from onnxgrad.options import Count, Declared, NonNegative, Positive, Range, Share, check_fields
from onnxgrad.results import Plain
from onnxgrad.train import array_math
from onnxgrad.train.manifest import Manifest
from onnxgrad.wording import option

# a float64 scalar: a Var while a graph is built, a number while one computes
Number = Any


@dataclass(frozen=True)
class Schedule(Plain, metaclass=Declared):
    """A learning rate as a function of the step. Raises InputError for invalid numbers."""

    json_keys = "name *"

    def __post_init__(self) -> None:
        check_fields(self, self.name)

    @property
    def name(self) -> str:
        """The name in files and in text; that of your own class begins with its module."""
        return name_of(type(self))

    @abstractmethod
    def after(self, done: Number, math: Any) -> Number:
        """Returns the rate after this many updates. The formula uses + - * / and `math`, which is
        `op` or `train.array_math`.
        """

    def __call__(self, step: int) -> float:
        """Returns the rate of the update with this number, which counts from 1. Raises InputError
        below 1.
        """
        if step < 1:
            raise InputError(f"{self.name}: a step counts from 1, not {step}")
        return float(self.after(np.float64(step - 1), array_math))

    def emit(self, step: Var) -> Var:
        """Emits the rate as a float64 scalar, from the integer scalar of the step, which counts
        from 1.
        """
        rate = self.after(op.Cast(step, to=TensorProto.DOUBLE) - 1.0, op)
        return rate if isinstance(rate, Var) else constant(np.float64(rate))


@dataclass(frozen=True)
class Constant(Schedule):
    """lr, at every update."""

    lr: NonNegative

    def after(self, done: Number, math: Any) -> Number:
        return np.float64(self.lr)


@dataclass(frozen=True)
class Linear(Schedule):
    """From lr start_factor to lr end_factor in total_iters updates, then constant."""

    lr: NonNegative
    start_factor: NonNegative = 1 / 3
    end_factor: NonNegative = 1.0
    total_iters: Count = 5

    def after(self, done: Number, math: Any) -> Number:
        part = math.Min(done, float(self.total_iters)) / float(self.total_iters)
        return self.lr * (self.start_factor + (self.end_factor - self.start_factor) * part)


@dataclass(frozen=True)
class Polynomial(Schedule):
    """lr (1 - k / total_iters)^power after k updates, then 0."""

    lr: NonNegative
    total_iters: Count = 5
    power: NonNegative = 1.0

    def after(self, done: Number, math: Any) -> Number:
        left = 1.0 - math.Min(done, float(self.total_iters)) / float(self.total_iters)
        return self.lr * math.Pow(left, np.float64(self.power))


@dataclass(frozen=True)
class Cosine(Schedule):
    """From lr to eta_min in T_max updates along half a wave of the cosine, then back up in the same
    number of updates.

    Source: Loshchilov and Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts", 2017,
    without restarts.
    """

    lr: NonNegative
    T_max: Count
    eta_min: NonNegative = 0.0

    def after(self, done: Number, math: Any) -> Number:
        return _cosine(self.lr, self.eta_min, done / float(self.T_max), math)


@dataclass(frozen=True)
class CosineWarmRestarts(Schedule):
    """From lr to eta_min along half a wave of the cosine in T_0 updates, then again from lr; each
    period is T_mult times as long as the one before.

    Source: Loshchilov and Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts", 2017.
    """

    lr: NonNegative
    T_0: Count
    T_mult: Count = 1
    eta_min: NonNegative = 0.0

    def after(self, done: Number, math: Any) -> Number:
        first, factor = float(self.T_0), float(self.T_mult)
        if self.T_mult == 1:
            since, length = done - first * math.Floor((done + 0.5) / first), first
        else:
            # half an update later than now, so that no restart is missed by a rounding
            grown = math.Log((done + 0.5) * ((factor - 1) / first) + 1.0)
            times = math.Pow(np.float64(factor), math.Floor(grown / float(np.log(factor))))
            since, length = done - first * (times - 1.0) / (factor - 1), first * times
        return _cosine(self.lr, self.eta_min, since / length, math)


@dataclass(frozen=True)
class Exponential(Schedule):
    """lr gamma^k after k updates."""

    lr: NonNegative
    gamma: NonNegative

    def after(self, done: Number, math: Any) -> Number:
        return self.lr * math.Pow(np.float64(self.gamma), done)


@dataclass(frozen=True)
class Step(Schedule):
    """lr, multiplied by gamma after every step_size updates."""

    lr: NonNegative
    step_size: Count
    gamma: NonNegative = 0.1

    def after(self, done: Number, math: Any) -> Number:
        return self.lr * math.Pow(np.float64(self.gamma), math.Floor(done / float(self.step_size)))


@dataclass(frozen=True)
class MultiStep(Schedule):
    """lr, multiplied by gamma after each of the milestones, which count updates."""

    lr: NonNegative
    milestones: tuple[Count, ...]
    gamma: NonNegative = 0.1

    def __post_init__(self) -> None:
        given: Any = self.milestones
        if not isinstance(given, Iterable):
            object.__setattr__(self, "milestones", (given,))
        super().__post_init__()

    def after(self, done: Number, math: Any) -> Number:
        rate: Number = np.float64(self.lr)
        for count, milestone in enumerate(sorted(self.milestones), 1):
            reached = np.float64(self.lr * self.gamma**count)
            rate = math.Where(math.Less(done, float(milestone)), rate, reached)
        return rate


@dataclass(frozen=True)
class OneCycle(Schedule):
    """From max_lr / div_factor up to max_lr in a share pct_start of total_steps, then down in the
    remaining steps.

    The rate ends, and stays, at the initial rate divided by final_div_factor. three_phase: down to
    the initial rate in as many steps as up, then to the end. The momentum does not change, as with
    PyTorch's cycle_momentum=False. Source: Smith and Topin, "Super-Convergence: Very Fast Training
    of Neural Networks Using Large Learning Rates", 2018.
    """

    max_lr: NonNegative
    total_steps: Count
    pct_start: Share = 0.3
    anneal_strategy: Literal["cos", "linear"] = "cos"
    div_factor: Positive = 25.0
    final_div_factor: Positive = 1e4
    three_phase: bool = False

    def after(self, done: Number, math: Any) -> Number:
        between = _cosine if self.anneal_strategy == "cos" else _line
        done = math.Min(done, self.total_steps - 1.0)
        rate: Number = None
        for begin, end, start, stop in reversed(self._phases()):
            phase = between(start, stop, (done - begin) / (end - begin), math)
            rate = phase if rate is None else math.Where(math.Less(end, done), rate, phase)
        return np.float64(self.max_lr / self.div_factor) if rate is None else rate

    def _phases(self) -> list[tuple[np.float64, np.float64, float, float]]:
        """Returns (first update, last update, rate at the first, rate at the last) of each phase
        that is not empty.
        """
        low, up = self.max_lr / self.div_factor, self.pct_start * self.total_steps
        turns = [(up - 1, low, self.max_lr)]
        if self.three_phase:
            turns.append((2 * up - 2, self.max_lr, low))
        turns.append((self.total_steps - 1.0, turns[-1][2], low / self.final_div_factor))
        found, begin = [], 0.0
        for end, start, stop in turns:
            if end > begin:
                found.append((np.float64(begin), np.float64(end), start, stop))
            begin = end
        return found


@dataclass(frozen=True)
class ReduceOnPlateau(Schedule):
    """lr, multiplied by factor each time a held-out result has not improved for more than patience
    evaluations: torch's ReduceLROnPlateau.

    metric: "loss" or the name of a metric, which should fall (mode "min") or rise ("max"). An
    improvement is larger than threshold, relative to the best result so far ("rel") or as a number
    ("abs"). cooldown: the number of evaluations after each reduction that do not count. The rate
    never falls below min_lr, and reductions of less than eps are skipped. Training evaluates after
    each epoch; a graph cannot contain this schedule.
    """

    lr: NonNegative
    mode: Literal["min", "max"] = "min"
    factor: Annotated[float, Range(0, math.nextafter(1, 0), words="from 0 to below 1")] = 0.1
    patience: Annotated[int, Range(0)] = 10
    threshold: NonNegative = 1e-4
    threshold_mode: Literal["rel", "abs"] = "rel"
    cooldown: Annotated[int, Range(0)] = 0
    min_lr: NonNegative = 0.0
    eps: NonNegative = 1e-8
    metric: str = "loss"

    def after(self, done: Number, math: Any) -> Number:
        return np.float64(self.lr)

    def emit(self, step: Var) -> Var:
        """Raises InputError: a graph has no held-out data."""
        rate = option("--rate", "Trainer(rate=...)")
        raise InputError(
            f"{self.name} depends on held-out data, which a graph lacks: pass it as {rate}"
        )

    def check(self, names: Sequence[str]) -> None:
        """Raises InputError unless the metric is one of these results."""
        if self.metric not in names:
            raise InputError(
                f"{self.name}: metric '{self.metric}' is not evaluated: choose from "
                f"{', '.join(names)}"
            )

    def judged(
        self, before: Mapping[str, float | None] | None, found: Mapping[str, float]
    ) -> dict[str, float | None]:
        """Returns the new state after an evaluation: the rate, the best result, the number of bad
        evaluations and of those left to cool down.
        """
        kept = before or {"rate": self.lr, "best": None, "bad": 0, "cooldown": 0}
        rate, best, bad, cooling = (kept[k] for k in ("rate", "best", "bad", "cooldown"))
        now = found[self.metric]
        better = not np.isnan(now) if best is None else self._is_better(now, best)
        bad = 0 if better or cooling else (bad or 0) + 1
        cooling = max((cooling or 0) - 1, 0)
        if bad > self.patience:
            lower = max((rate or 0.0) * self.factor, self.min_lr)
            rate = lower if (rate or 0.0) - lower > self.eps else rate
            bad, cooling = 0, self.cooldown
        return {"rate": rate, "best": now if better else best, "bad": bad, "cooldown": cooling}

    def _is_better(self, now: float, best: float) -> bool:
        margin = self.threshold * (best if self.threshold_mode == "rel" else 1.0)
        return now > best + margin if self.mode == "max" else now < best - margin


@dataclass(frozen=True)
class Sequential(Schedule):
    """One schedule after another. Each counts from its milestone, the number of updates
    before it.
    """

    schedules: Sequence[Schedule]
    milestones: Sequence[int]

    def __post_init__(self) -> None:
        if beside := [s.name for s in self.schedules if isinstance(s, ReduceOnPlateau)]:
            raise InputError(f"sequential: {beside[0]} depends on held-out data, not on the step")
        ends = [0, *self.milestones]
        if len(self.schedules) != len(ends) or any(a >= b for a, b in pairwise(ends)):
            raise InputError(
                f"sequential: {len(self.schedules)} schedules need {len(self.schedules) - 1} "
                f"milestones that rise from 1 on, not {list(self.milestones)}"
            )

    def after(self, done: Number, math: Any) -> Number:
        rate = self.schedules[0].after(done, math)
        for milestone, schedule in zip(self.milestones, self.schedules[1:], strict=True):
            own = schedule.after(math.Max(done - float(milestone), 0.0), math)
            rate = math.Where(math.Less(done, float(milestone)), rate, own)
        return rate


def warm_up(then: Schedule, steps: int, start_factor: float = 0.0) -> Schedule:
    """Returns a schedule that rises from start_factor times the first rate of `then` to that rate
    in this many updates, and then runs `then` from its beginning.
    """
    return Sequential((Linear(then(1), start_factor, 1.0, steps), then), (steps,))


def _cosine(start: float, end: float, part: Number, math: Any) -> Number:
    return end + (start - end) / 2 * (1.0 + math.Cos(np.pi * part))


def _line(start: float, end: float, part: Number, math: Any) -> Number:
    return start + (end - start) * part


SCHEDULES: dict[str, type[Schedule]] = {
    cls.__name__.lower(): cls for cls in declared(sys.modules[__name__], Schedule)
}


def schedule_of(entry: Mapping[str, Any]) -> Schedule | None:
    """Returns the schedule of a `to_dict`; None for your own class."""
    given = dict(entry)
    name = given.pop("name", None)
    if name == "sequential":
        each = [schedule_of(inner) for inner in given["schedules"]]
        known = [schedule for schedule in each if schedule is not None]
        return Sequential(known, tuple(given["milestones"])) if len(known) == len(each) else None
    return SCHEDULES[name](**given) if name in SCHEDULES else None


Rate: TypeAlias = "float | Callable[[int], float]"


def rate_of(manifest: Manifest, given: Rate | None) -> Rate:
    """Returns the learning rate of a run: the given number, schedule or function, else the schedule
    of the step, or the optimiser's own `lr`.

    If the schedule in the step is a class of your own, or another program wrote the step without an
    input for the rate, the rate is unknown: NaN. Raises InputError if a rate is given in addition
    to these, or is not a finite number of at least 0.
    """
    if manifest.schedule is not None:
        if given is not None:
            raise InputError("the step has its schedule inside: pass no learning rate")
        return schedule_of(manifest.schedule) or (lambda number: math.nan)
    if not manifest.of_role("learning_rate"):
        if given is not None:
            raise InputError("the step computes its own learning rate: do not pass one")
        return lambda number: math.nan
    if given is None:
        given = manifest.optimizer.get("lr")
        if given is None:
            raise InputError("the step's optimiser has no learning rate of its own: pass one")
    if not callable(given) and finite_rate(given) < 0:
        raise InputError(f"the learning rate must be at least 0, not {given}")
    return given


def rate_from(given: Rate | str | None) -> Rate | None:
    """Returns the number or schedule of a text, and anything else unchanged. Raises InputError."""
    if not isinstance(given, str):
        return given
    try:
        return float(given) if given else None
    except ValueError:
        return read(given, SCHEDULES, "schedule")


def finite_rate(rate: object) -> float:
    """Returns the rate as a float. Raises InputError unless it is a finite number."""
    number = isinstance(rate, (int, float, np.number)) and not isinstance(rate, bool)
    if not number or not np.isfinite(rate):  # type: ignore[call-overload]
        raise InputError(f"the learning rate must be finite, not {rate}")
    return float(rate)  # type: ignore[arg-type]
