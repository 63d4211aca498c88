"""`--tune`: measures each choice against the pipeline so far, and keeps those that are faster."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from onnx import ModelProto

from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.ir.load import ModelLike, load_own
from onnxgrad.ir.save import to_proto
from onnxgrad.jobs.tuning import LATE
from onnxgrad.jobs.tuning.choices import Choice, Choices
from onnxgrad.passes.pipeline import Pipeline
from onnxgrad.results import Plain
from onnxgrad.verify.bench import Conditions, Spread, bench
from onnxgrad.vocabulary import TUNE_SECONDS

# why a choice was not measured
_ROUNDS = 16
# a smaller gain counts as none, however quiet the machine
_LEAST = 0.01
# seconds to measure one choice, for each of the two models
_SHORTEST, _LONGEST = 0.1, 2.0

OnChoice = Callable[[str, float], None]


@frozen
class Decision(Plain):
    """A decided choice: the ratio of its time to that of the pipeline before it, and the
    uncertainty. Both are None if it was not measured; `why` has the reason.
    """

    choice: str
    kept: bool
    ratio: float | None = None
    spread: float | None = None
    why: str = ""


@frozen
class Tuned:
    """The pipeline after all decisions, every decision, and the ratio of the result's time to that
    of the static rule.
    """

    pipeline: Pipeline
    decisions: tuple[Decision, ...]
    total: Decision | None = None


@frozen
class Measuring:
    """The conditions of measurements: those of `verify.bench.Conditions`, by name."""

    options: Mapping[str, Any]
    seconds: float = TUNE_SECONDS

    @property
    def is_cpu_time(self) -> bool:
        """Whether CPU time is measured: with one thread it equals wall time, without the influence
        of other work.
        """
        return (self.options.get("provider", "cpu"), self.options.get("threads", 1)) == ("cpu", 1)

    def ratio(self, a: ModelProto, b: ModelProto, seconds: float) -> tuple[float, float]:
        """Returns the ratio of the time of `b` to that of `a`, and the uncertainty of the median.
        Raises InputError if either does not run.
        """
        conditions, models = Conditions(**self.options), {"before": a, "after": b}
        report = bench(models, conditions, rounds=_ROUNDS, seconds=seconds)
        if report.refused:
            raise InputError(next(iter(report.refused.values())))
        after = report.timings[1]
        found: Spread = after.cpu_ratio if self.is_cpu_time else after.wall_ratio
        return found.median, found.uncertainty


def tune(
    model: ModelLike, pipeline: Pipeline, measuring: Measuring, on_choice: OnChoice | None = None
) -> Tuned:
    """Decides every choice for `model`, greedily in order, within `measuring.seconds`; `on_choice`
    receives each choice and the share done.

    A choice is kept if its median ratio is below 1 by more than the spread and more than a
    hundredth. If all together are not faster than the static rule, none is kept. Raises InputError
    if the model does not run.
    """
    report = on_choice or (lambda what, part: None)
    choices = Choices.of(model, pipeline)
    search = _Search(model, choices, measuring)
    for i, choice in enumerate(choices.all):
        report(choice.name, i / len(choices.all))
        search.decide(choice, len(choices.all) - i)
    total = search.confirmed()
    return Tuned(choices.made(search.kept), tuple(search.decisions), total)


class _Search:
    """The state of one search: the kept choices, and their model."""

    def __init__(self, model: ModelLike, choices: Choices, measuring: Measuring) -> None:
        self.model, self.choices, self.measuring = model, choices, measuring
        self.kept: list[Choice] = []
        self.decisions: list[Decision] = []
        self.static = self.current = self._built([])
        self.deadline = time.monotonic() + measuring.seconds

    def _built(self, kept: list[Choice]) -> ModelProto:
        program = load_own(self.model)
        self.choices.made(kept).run(program)
        return to_proto(program, weights=True)

    def decide(self, choice: Choice, left: int) -> None:
        """Measures one choice, with `left` choices to share the time, and keeps it or not."""
        if time.monotonic() >= self.deadline:
            self.decisions.append(Decision(choice.name, False, why=LATE))
            return
        candidate = self._built([*self.kept, choice])
        if candidate == self.current:
            self.decisions.append(Decision(choice.name, False, why="it changes nothing"))
            return
        try:
            ratio, spread = self._measured(self.current, candidate, left)
        except InputError as error:
            self.decisions.append(Decision(choice.name, False, why=str(error)))
            return
        kept = wins(ratio, spread)
        self.decisions.append(Decision(choice.name, kept, ratio, spread))
        if kept:
            self.kept.append(choice)
            self.current = candidate

    def confirmed(self) -> Decision | None:
        """Compares the result with the static rule, and keeps nothing if it is not faster."""
        if not self.kept:
            return None
        ratio, spread = self._measured(self.static, self.current, 1)
        if ratio >= 1:
            self.kept, why = [], "all together are not faster"
            self.decisions = [
                replace(d, kept=False, why=why) if d.kept else d for d in self.decisions
            ]
        return Decision("all that was kept", ratio < 1, ratio, spread)

    def _measured(self, a: ModelProto, b: ModelProto, left: int) -> tuple[float, float]:
        share = (self.deadline - time.monotonic()) / (2 * (left + 1))
        return self.measuring.ratio(a, b, min(max(share, _SHORTEST), _LONGEST))


def wins(ratio: float, spread: float) -> bool:
    """Whether a ratio is below 1 beyond the noise."""
    return ratio + max(spread, _LEAST) < 1
