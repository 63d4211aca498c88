"""Tries cases of one proof: with other values and sizes, within the time of the float64 check."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from onnx import ModelProto

from onnxgrad.verify.compare import has_finite
from onnxgrad.verify.coverage.counters import DECISIONS, Array, Goal, progress
from onnxgrad.verify.coverage.goals import Wishes, filled, solved, whole_rows
from onnxgrad.verify.feeds.data_flow import DataFlow
from onnxgrad.verify.feeds.dims import evaluate, required_inputs, roles, shape_of
from onnxgrad.verify.feeds.edge_cases import Variation
from onnxgrad.verify.feeds.generate import Feeder
from onnxgrad.verify.feeds.proof_cases import Results
from onnxgrad.verify.float64_check import Oracle
from onnxgrad.verify.onnxruntime_check import as_computed
from onnxgrad.verify.proof_model import ProofModel
from onnxgrad.verify.report import Case
from onnxgrad.verify.running.child_process import RunFailed
from onnxgrad.verify.running.session import Session
from onnxgrad.verify.trials import Trial

_ALONE = 16  # inputs that get wanted values one at a time, if all at once fail
_LARGE_BATCH = 256  # rows of wanted values in one run
_MOST_ELEMENTS = 1 << 16  # of all inputs at a size that is solved for
_SIZES_AT_ONCE = 4
_SPIKE = 10.0
MODELS = ("original", "candidate")


@dataclass
class Cases:
    """The cases of one proof. `trials` gets new cases after the usual ones. `wide`: also values
    beyond the usual ones, for which the bounds of a user are not meant.
    """

    original: ProofModel
    candidate: ProofModel
    session: Session | None
    oracle: Oracle | None
    trials: list[Trial]
    seeds: Sequence[int]
    dims: Mapping[str, int]
    refused: list[tuple[Mapping[str, int], RunFailed]]
    feeder: Feeder
    wide: bool = field(default=True, kw_only=True)
    # may begin other runs on the feeds of a case that the original accepts
    go_on: Callable[[Results], None] = field(default=lambda feeds: None, kw_only=True)
    # cases at which the original died or took too long, with the reason
    dropped: list[str] = field(default_factory=list, kw_only=True)

    @property
    def _model(self) -> ModelProto:
        return self.original.proto

    # ---- one case --------------------------------------------------------------------------------

    def _try(self, feeds: Results, case: Case) -> Trial | None:
        """Returns a trial if the original runs on the feeds and agrees with itself, and both models
        run in float64 in time. Otherwise the run does not count.
        """
        oracle = self.oracle if self._runs else None
        if oracle is None:
            return self._tried(feeds, case)
        oracle.mark("mark")
        oracle.cut = False
        trial = self._tried(feeds, case)
        if trial is not None:
            self.go_on(feeds)
            trial = trial if self._answered(trial) else None
        if oracle.cut:
            self.dropped.append(f"left out: {case} (too slow in float64)")
        oracle.mark("back" if trial is None else "keep")
        return trial

    def _tried(self, feeds: Results, case: Case) -> Trial | None:
        try:
            session = self.session
            expected = None if session is None else session.run(feeds, optional=True)
        except RunFailed as error:
            if error.stage != "run":
                self.dropped.append(f"left out: {case} ({error.reason})")
            return None
        exact = None if self.oracle is None else self.oracle.optional("original", feeds)
        if expected is None:
            expected = exact
        if expected is None or (self.oracle is not None and self._runs and exact is None):
            return None
        if not all(map(has_finite, expected.values())):
            return None
        first = self.trials[0]
        trial = Trial(case, feeds, expected, exact=exact, ties=first.ties, excuse=first.excuse)
        agrees = exact is None or trial.agrees(as_computed(exact, expected))
        return trial if agrees else None

    def _feeds(self, plan: Mapping[str, int], seed: int, how: Variation | None = None) -> Results:
        return self.feeder.feeds(seed=seed, dims=dict(plan), how=how)

    def _add(
        self, plan: Mapping[str, int], seed: int, how: Variation | None = None
    ) -> Trial | None:
        """Tries sizes or a variation, and adds the case to the trials if it runs."""
        words = "" if how is None else str(how)
        trial = self._try(self._feeds(plan, seed, how), Case(dict(plan), seed, how=words))
        if trial is not None:
            self.trials.append(trial)
        return trial

    @property
    def _runs(self) -> bool:
        """True if the float64 check runs the original."""
        return bool(self.trials) and self.trials[0].exact is not None

    @property
    def _plan(self) -> Mapping[str, int]:
        return self.trials[0].case.dims

    # ---- what was reached ------------------------------------------------------------------------

    @property
    def _counts(self) -> bool:
        """True if coverage is counted and there is time for more cases."""
        oracle = self.oracle
        return oracle is not None and self._runs and oracle.left > oracle.budget / 2

    def _answered(self, trial: Trial, *, usual: bool = False) -> bool:
        """Runs the second model in float64, so that its coverage counts too. Returns whether it had
        the time. `usual`: a case that has to run.
        """
        if self.oracle is None or trial.exact is None or trial.answer is not None:
            return True
        trial.answer = self.oracle.optional("candidate", trial.feeds, short=not usual)
        return not self.oracle.cut

    def _score(self) -> tuple[int, int]:
        """Returns how much of the decisions of both models was reached, in sides, and how many are
        missing. If the second may be narrower (not `wide`), its own ends do not count.
        """
        assert self.oracle is not None
        both = {which: self.oracle.covered(which) for which in MODELS}
        found = [
            i for which, items in both.items() for i in items if self.wide or which == "original"
        ]
        decisions = [i for i in found if i.kind in DECISIONS]
        return sum(map(progress, decisions)), sum(i.of - i.reached for i in decisions)

    # ---- values that are solved for ------------------------------------------------------------

    def _better(
        self, make: Callable[[], Trial | None], measure: Callable[[], int] | None = None
    ) -> bool:
        """Makes a case, and keeps it if it reaches more, or raises the `measure`."""
        assert self.oracle is not None
        self.oracle.mark("mark")
        measured = measure or (lambda: self._score()[0])
        before, count = measured(), len(self.trials)
        made = make()
        if made is not None and measured() > before:
            self.oracle.mark("keep")
            return True
        self.oracle.mark("back")
        del self.trials[count:]
        return False

    def _spiked(self) -> Trial | None:
        """Adds a case with one large element in each row of the inputs, the others 0."""
        feeds = self._feeds(self._plan, self.seeds[0])
        for name, value in feeds.items():
            if (
                isinstance(value, np.ndarray)
                and value.dtype.kind == "f"
                and value.ndim
                and value.size
            ):
                rows = np.zeros_like(value).reshape(-1, value.shape[-1])
                places = np.arange(len(rows)) % value.shape[-1]
                rows[np.arange(len(rows)), places] = _SPIKE
                ends = self.feeder.limits(name, self._plan)
                feeds[name] = np.clip(rows, *ends).astype(value.dtype).reshape(value.shape)
        case = Case(dict(self._plan), self.seeds[0], how="one large element in each row")
        trial = self._try(feeds, case)
        if trial is not None:
            self.trials.append(trial)
        return trial

    @cached_property
    def _flows(self) -> dict[str, DataFlow]:
        return {"original": self.feeder.flow, "candidate": DataFlow(self.candidate.proto)}

    def _wishes(self, goals: Mapping[str, Sequence[Goal]]) -> Wishes:
        """Returns the values and sizes with which the goals of both models may be reached, under
        the names of the original.
        """
        total = Wishes()
        for which in (w for w in MODELS if goals.get(w)):
            flow = self._flows[which].at(dict(self._plan))
            inputs, symbols = self._renamed if which == "candidate" else ({}, {})
            for goal in goals[which]:
                found = solved(flow, goal)
                total.add(
                    Wishes(
                        {inputs.get(n, n): v for n, v in found.values.items()},
                        {symbols.get(n, n): v for n, v in found.sizes.items()},
                    )
                )
        return total

    @cached_property
    def _renamed(self) -> tuple[dict[str, str], dict[str, str]]:
        """Returns the original's names for the inputs and the symbols of the second model."""
        names = self.oracle.demands.names.inputs if self.oracle is not None else {}
        inputs = {theirs: ours for ours, theirs in names.items()}
        ours = {v.name: v for v in self._model.graph.input}
        symbols: dict[str, str] = {}
        for value in self.candidate.proto.graph.input:
            same = ours.get(inputs.get(value.name, value.name))
            if same is None:
                continue
            shapes = [shape_of(v.name, v.type.tensor_type) or [] for v in (value, same)]
            symbols |= {str(a): str(b) for a, b in zip(*shapes) if not isinstance(b, int)}
        return inputs, symbols

    def _sized(self, sizes: Mapping[str, set[int]]) -> Iterator[dict[str, int]]:
        """Yields the plan with other sizes of one symbol, none of them too large."""
        free = set(self._open())
        for symbol in (s for s in sizes if s in free):
            for size in sorted(sizes[symbol])[:_SIZES_AT_ONCE]:
                plan = {**self._plan, symbol: size}
                if self._elements(plan) <= _MOST_ELEMENTS:
                    yield plan

    def _elements(self, plan: Mapping[str, int]) -> int:
        total = 0
        for value in required_inputs(self._model.graph):
            shape = shape_of(value.name, value.type.tensor_type) or ()
            total += math.prod(evaluate(dim, plan) for dim in shape)
        return total

    def _roomy(self, wanted: Mapping[str, Sequence[Array]]) -> dict[str, int]:
        """Returns a plan whose first axes have room for all wanted values, if they are open."""
        return self._with_rows(lambda name: min(whole_rows(wanted.get(name, ())), _LARGE_BATCH))

    def _with_rows(
        self, rows: Callable[[str], int], plan: Mapping[str, int] | None = None
    ) -> dict[str, int]:
        """Returns a plan in which open first axes have this many rows, by the name of the input."""
        plan, free = dict(plan or self._plan), set(self._open())
        for value in required_inputs(self._model.graph):
            shape = shape_of(value.name, value.type.tensor_type) or [0]
            if shape[0] in free and rows(value.name):
                larger = {**plan, str(shape[0]): max(plan[str(shape[0])], rows(value.name))}
                plan = larger if self._elements(larger) <= _MOST_ELEMENTS else plan
        return plan

    def _filled(
        self, wanted: Mapping[str, Sequence[Array]], turn: int, how: str = ""
    ) -> Trial | None:
        """Adds a case with wanted values in all inputs. If the original refuses it, the inputs get
        them one at a time, and the usual sizes.
        """
        each = [[name] for name in list(wanted)[:_ALONE]]
        ways = [(self._roomy(wanted), list(wanted)), (dict(self._plan), list(wanted))]
        ways += [(dict(self._plan), names) for names in each if len(each) > 1]
        found = None
        for plan, names in ways:
            feeds, changed = self._feeds(plan, self.seeds[0] + turn), False
            for name in names:
                usual = feeds.get(name)
                made = None if not isinstance(usual, np.ndarray) else filled(
                    usual, wanted[name], turn, self.seeds[0], self.feeder.limits(name, plan)
                )  # fmt: skip
                if made is not None:
                    feeds[name], changed = made, True
            if not changed:
                continue
            words = how or f"values at thresholds of {', '.join(names)}"
            trial = self._try(feeds, Case(plan, self.seeds[0] + turn, how=words))
            if trial is not None:
                self.trials.append(trial)
                found = trial
                if len(names) == len(wanted):
                    return found
        return found

    def _open(self) -> Iterator[str]:
        """Yields the symbols whose size is not fixed by the user."""
        yield from (s for s in roles(self._model.graph) if s not in self.dims)
