"""Searches for more cases of a proof, guided by the decisions that its usual cases did not reach,
and computes the coverage.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np
from onnx import ModelProto

from onnxgrad.errors import InputError
from onnxgrad.ir.protobufs import elements, model_nodes, weight_elements
from onnxgrad.limits import LimitReached, current, limited
from onnxgrad.verify.coverage.cases import MODELS, Cases
from onnxgrad.verify.coverage.counters import DEFAULTS, Goal, Item
from onnxgrad.verify.coverage.differing import MOST_ROWS, Differing, Unread, as_counts
from onnxgrad.verify.coverage.goals import parted
from onnxgrad.verify.coverage.lookups import Lookups, Runs, same_lookups
from onnxgrad.verify.coverage.summary import NOT_ASKED, Coverage, Sizes
from onnxgrad.verify.feeds.dims import roles
from onnxgrad.verify.feeds.edge_cases import SEARCH, SMALL, Variation, overridden
from onnxgrad.verify.feeds.proof_cases import Results, small
from onnxgrad.verify.float64_check import Oracle
from onnxgrad.verify.non_finite import Apart
from onnxgrad.verify.onnxruntime_check import as_computed
from onnxgrad.verify.reference.client import Float64
from onnxgrad.verify.report import Case
from onnxgrad.verify.running.child_process import RunFailed
from onnxgrad.verify.running.session import Session
from onnxgrad.verify.tolerance import CHAOTIC
from onnxgrad.verify.trials import Trial

_FEW_TRIES = 1  # for a model that is not small, up to this many elements of weights
_MOST_WEIGHTS = 1 << 18
_ALONE = 16  # defaults that are overridden one at a time, if all at once fail
_ROW_CASES = 16
_ROUNDS = 8  # of values that are solved for
_WIDE_SECONDS = 20.0  # for a run of values beyond the usual ones
_APART_ROWS = 4  # for NaN, both infinities, and none of them
_IDLE = 3  # rounds that may reach nothing more in turn
# cases, and rows of each, in which weights that differ may matter
_ROWS = 32
_SCALES = (None, Variation(scale=1e3), Variation(scale=1e3, sign=1), Variation(scale=1e3, sign=-1))
_ALL_ROWS = 1 << 16  # that a small model reads
_RECURRENT = {"LSTM", "GRU", "RNN"}  # these crash onnxruntime at an empty batch


@dataclass
class Search(Cases):
    """The search for more cases of one proof. `at_zero` gets the cases with an empty dimension,
    which are compared in onnxruntime only.
    """

    all_constants: bool = True  # also weights that differ have to be read, not tables alone
    at_zero: list[Trial] = field(default_factory=list)
    apart: Apart | None = None  # inputs with NaN and infinite values
    _defaults: list[Item] = field(default_factory=list)
    _not_at: dict[str, dict[int, str]] = field(default_factory=dict)
    _not_empty: dict[str, str] = field(default_factory=dict)

    def run(self) -> None:
        """Searches for all kinds of cases."""
        for trial in self.trials:
            self._answered(trial, usual=True)
        self._sizes()
        self._override()
        if self._counts and small(self._model):
            # small numbers, beside which an epsilon is visible
            usual = self._feeds(self._plan, self.seeds[0])
            varied = self._feeds(self._plan, self.seeds[0], SMALL)
            if any(not _same(usual[name], varied[name]) for name in usual):
                self._add(self._plan, self.seeds[0], SMALL)
        if self.wide:
            self._widen()
            self._solve()
        self._raise()
        self._read_rows()
        self._meet()
        self._empty()
        if self.wide:
            self._not_finite()

    def coverage(
        self,
        zero_refused: Mapping[str, str],
        given: bool = False,
        opened: Callable[[ModelProto], Session] | None = None,
    ) -> Coverage:
        """Returns the coverage. `zero_refused`: by symbol, why the second model does not run at
        size 0 although the original does. `given`: the user's own inputs ran, and no cases were
        searched for. `opened` loads a model in onnxruntime: lookups of tables that differ run
        alone.
        """
        sizes = () if given else tuple(self._ran(zero_refused))
        oracle = self.oracle
        if oracle is None:
            return Coverage(sizes=sizes, why=NOT_ASKED)
        items = oracle.covered("original")
        if not any(trial.exact is not None for trial in self.trials) or oracle.left <= 0:
            return Coverage(sizes=sizes, why=f"the float64 check did not run: {oracle.why}")
        unread = self.differing.unread(oracle.reached("original"))
        if opened is not None and not given:
            self._look_up(oracle, unread, opened)
            unread = {n: found for n, found in unread.items() if n not in self.differing.explained}
        return Coverage(
            (*items, *self._defaults),
            tuple(oracle.covered("candidate")),
            sizes,
            as_counts(unread, True),
            as_counts(unread, False),
        )

    def _look_up(
        self, oracle: Oracle, unread: Mapping[str, Unread], opened: Callable[[ModelProto], Session]
    ) -> None:
        """Runs the lookups of tables that differ alone; their rows count as read if all are
        equal.
        """
        names = [name for name, found in unread.items() if found.rows]
        if not names or not self.all_constants:
            return
        runs: list[Runs] = [lambda model: Float64(model).run({}, seconds=oracle.left)]
        if self.session is not None:
            runs.append(lambda model: opened(model).run({}))
        sides = Lookups(self.original), Lookups(self.candidate)
        self.differing.explained |= {*same_lookups(*sides, self.differing.partners(names), runs)}

    @cached_property
    def differing(self) -> Differing:
        """The constants that differ. A caller that can prove some of them otherwise adds their
        names to its `explained`.
        """
        return Differing(self.original, self.candidate, self.all_constants)

    def _raise(self) -> None:
        """Adds cases that reach more thresholds, branches and turns."""
        if not self._counts:
            return
        plan, tries = self._plan, tuple(SEARCH)
        if not small(self._model):
            few = weight_elements(self._model.graph) <= _MOST_WEIGHTS
            tries = SEARCH[:_FEW_TRIES] if few else ()
            plan = min(
                (t.case.dims for t in self.trials), key=lambda dims: math.prod(dims.values())
            )
        for seed, how in enumerate(tries, max(self.seeds) + 1):
            if not self._score()[1] or not self._counts:
                return
            self._better(partial(self._add, plan, seed, how))
        if small(self._model) and self._score()[1] and self._counts:
            self._better(self._spiked)

    def _widen(self) -> None:
        """Adds cases with values beyond the usual ones, if the original runs on them: of a model
        that is not small at its smallest sizes, and after the first while there is time for more.
        """
        plan, few = self._plan, not small(self._model)
        if few:
            plan = min(
                (t.case.dims for t in self.trials), key=lambda dims: math.prod(dims.values())
            )
        usual = self._feeds(plan, self.seeds[0])
        for level in range(1, 4):
            if few and level > 1 and not self._counts:
                return
            how = Variation(wide=level)
            feeds = self._feeds(plan, self.seeds[0], how)
            if all(_same(usual[name], feeds[name]) for name in usual):
                continue
            count = len(self.trials)
            self._mark("mark")
            try:
                with limited(_WIDE_SECONDS):
                    trial = self._add(plan, self.seeds[0], how)
            except LimitReached as error:
                current().left()  # raises if the time for all work is up
                case = Case(dict(plan), self.seeds[0], how=str(how))
                self.dropped.append(f"left out: {case} ({error})")
                del self.trials[count:]
                trial = None
            if trial is not None and trial.exact is not None:
                trial.widen(as_computed(trial.exact, trial.expected))
                if max(trial.noise.values(), default=0.0) > CHAOTIC:
                    del self.trials[count:]  # the original's own rounding would excuse too much
            self._mark("keep" if len(self.trials) > count else "back")

    def _mark(self, then: str) -> None:
        """Saves what both models reached, or returns to it, as `Targets`."""
        if self.oracle is not None and self._runs:
            self.oracle.mark(then)

    def _not_finite(self) -> None:
        """Runs the original on NaN and infinite values, at its smallest sizes."""
        if self.session is None:
            return
        plan = min((t.case.dims for t in self.trials), key=lambda dims: math.prod(dims.values()))
        plan = self._with_rows(lambda name: _APART_ROWS, plan)
        usual, how = self._feeds(plan, self.seeds[0]), Variation(non_finite=True)
        feeds = self._feeds(plan, self.seeds[0], how)
        if all(_same(usual[name], feeds[name]) for name in usual):
            return
        try:
            results = self.session.run(feeds, optional=True)
        except RunFailed as error:
            if error.stage != "run":
                case = Case(dict(plan), self.seeds[0], how=str(how))
                self.dropped.append(f"left out: {case} ({error.reason})")
        else:
            self.apart = Apart(feeds, [results])

    # ---- values that are solved for ------------------------------------------------------------

    def _solve(self) -> None:
        """Adds cases with values and sizes at the thresholds of both models."""
        if not self._counts or not small(self._model):
            return
        idle, finite = 0, True
        for turn in range(_ROUNDS):
            wishes = self._wishes({which: self._goals(which) for which in MODELS})
            reached, missing = self._score()
            if not missing or not self._counts:
                return
            for plan in self._sized(wishes.sizes):
                self._better(partial(self._add, plan, self.seeds[0]))
            wanted = parted(wishes.values, finite)
            if wanted:
                self._better(partial(self._filled, wanted, turn))
            now = self._score()[0]
            idle = 0 if now > reached else idle + 1
            if idle == _IDLE or not wanted:
                if not finite:
                    return
                idle, finite = 0, False  # NaN and infinite values come last

    def _goals(self, which: str) -> list[Goal]:
        return [] if self.oracle is None else self.oracle.goals(which)

    # ---- tables ----------------------------------------------------------------------------------

    def _read_rows(self) -> None:
        """Adds cases that read rows in which the tables of the two models differ: 64 of each, or
        all of a small model.
        """
        if self.oracle is None or not self._runs:
            return
        most, left = _ALL_ROWS if small(self._model) else MOST_ROWS, -1
        for _ in range(_ROW_CASES):
            goals, tables = self.differing.goals(self.oracle.reached("original"), most)
            now = sum(len(goal.wanted) for goal in goals)
            if not goals or now == left:
                return
            left = now
            wishes, how = self._wishes({"original": goals}), f"rows that differ of {tables[0]}"
            for symbol, sizes in wishes.sizes.items():
                for plan in self._sized({symbol: {max(sizes)}}):
                    self._add(plan, self.seeds[0])
            if wishes.values and self._filled(wishes.values, 0, how) is None:
                return

    def _meet(self) -> None:
        """Adds cases of more rows in which weights that differ matter, such as those behind units
        that were 0.
        """
        if self.oracle is None or not self._runs or not self.all_constants:
            return
        if self.wide and small(self._model) and self._counts and self.differing.any:
            # weights behind units that are 0 at usual values
            self._add(self._with_rows(lambda name: _ROWS), self.seeds[0], _SCALES[1])
        for seed, how in enumerate(_SCALES, max(self.seeds) + 1):
            if not self._unmet():
                return
            plan = self._with_rows(lambda name: _ROWS)
            self._better(partial(self._add, plan, seed, how), lambda: -self._unmet())

    def _unmet(self) -> int:
        """Returns the number of elements of weights that differ and mattered in no run."""
        assert self.oracle is not None
        found = self.differing.unread(self.oracle.reached("original"))
        return sum(as_counts(found, False).values())

    # ---- defaults --------------------------------------------------------------------------------

    def _override(self) -> None:
        """Adds a case in which every input with a default gets another value. If the model does not
        run with all of them, each gets a case.
        """
        if self._model.ir_version < 4:
            return  # the initializers among the inputs are weights
        inputs = {v.name for v in self._model.graph.input}
        defaults = [t for t in self._model.graph.initializer if t.name in inputs]
        if not defaults:
            return
        weights = {t.name: t for t in self.original.weights().graph.initializer}
        values = {t.name: overridden(elements(weights[t.name]), self.seeds[0]) for t in defaults}
        together = self._with({name: found[0] for name, found in values.items()})
        for number, (name, found) in enumerate(values.items()):
            done = together
            for value in found if not done and number < _ALONE else ():
                done = done or self._with({name: value})
            missing = "" if done else "its default is overridden in no run"
            self._defaults.append(Item(DEFAULTS, name, int(done), 1, missing))

    def _with(self, values: Results) -> bool:
        feeds = {**self._feeds(self._plan, self.seeds[0]), **values}
        trial = self._try(
            feeds, Case(dict(self._plan), self.seeds[0], how=f"other values of {', '.join(values)}")
        )
        if trial is not None:
            self.trials.append(trial)
        return trial is not None

    # ---- sizes -----------------------------------------------------------------------------------

    def _sizes(self) -> None:
        """Tries size 2 for every dimension that ran only at 1."""
        for symbol in self._open() if self.refused else ():
            if {t.case.dims.get(symbol, 1) for t in self.trials} != {1}:
                continue
            plan = {**self._plan, symbol: 2}
            feeds = self._feeds(plan, self.seeds[0])
            try:
                if self.session is not None:
                    self.session.run(feeds, optional=True)
            except RunFailed as error:
                self._not_at[symbol] = {2: f"does not run in onnxruntime: {error.reason}"}
                continue
            trial = self._try(feeds, Case(plan, self.seeds[0]))
            if trial is not None:
                self.trials.append(trial)

    def _empty(self) -> None:
        """Runs the original with each open dimension empty, and adds the cases to `at_zero`."""
        if self.session is None:
            return
        if _RECURRENT & {node.op_type for node in model_nodes(self._model)}:
            why = "not tried: a recurrent operator with an empty batch ends onnxruntime"
            self._not_empty = dict.fromkeys(self._open(), why)
            return
        known = roles(self._model.graph)
        for role in dict.fromkeys(known.values()):  # two inputs mostly share their batch
            symbols = [s for s in self._open() if known[s] == role]
            if not symbols:
                continue
            plan = {**self._plan, **dict.fromkeys(symbols, 0)}
            try:
                feeds = self._feeds(plan, self.seeds[0])
                results = self.session.run(feeds, optional=True)
                case, excuse = Case(plan, self.seeds[0]), self.trials[0].excuse
                self.at_zero.append(Trial(case, feeds, results, excuse=excuse))
            except RunFailed as error:
                why = f"does not run in onnxruntime: {error.reason}"
                self._not_empty.update(dict.fromkeys(symbols, why))
                if error.limit:
                    return
            except InputError as error:
                self._not_empty.update(dict.fromkeys(symbols, str(error)))

    def _ran(self, zero_refused: Mapping[str, str]) -> Iterator[Sizes]:
        for symbol in roles(self._model.graph):
            ran = {t.case.dims[symbol] for t in self.trials if symbol in t.case.dims}
            zero = any(t.case.dims[symbol] == 0 for t in self.at_zero)
            refused = dict(self._not_at.get(symbol, {}))
            if symbol in zero_refused:
                refused[0] = zero_refused[symbol]
            elif zero:
                ran.add(0)
            yield Sizes(symbol, tuple(sorted(ran)), refused, self._not_empty.get(symbol, ""))


def _same(a: object, b: object) -> bool:
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return np.array_equal(a, b)
    return a is b or (isinstance(a, list) and isinstance(b, list) and all(map(_same, a, b)))
