"""Searches for more cases of a proof, guided by the decisions that its usual cases did not reach,
and computes the coverage.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto

from onnxgrad.errors import InputError
from onnxgrad.ir.protobufs import elements, every_graph, every_node, model_nodes, weight_elements
from onnxgrad.ir.storage.external_data import internalize
from onnxgrad.verify.compare import has_finite
from onnxgrad.verify.coverage.counters import DECISIONS, DEFAULTS, ROWS, Item, has_row
from onnxgrad.verify.coverage.summary import NOT_ASKED, Coverage, Sizes
from onnxgrad.verify.coverage.targets import LOOKUPS, axis_of
from onnxgrad.verify.feeds.dims import roles
from onnxgrad.verify.feeds.edge_cases import SEARCH, SMALL, Variation, overridden
from onnxgrad.verify.feeds.generate import Feeder
from onnxgrad.verify.feeds.proof_cases import Results, small
from onnxgrad.verify.float64_check import Oracle
from onnxgrad.verify.onnxruntime_check import as_computed
from onnxgrad.verify.proof_model import ProofModel
from onnxgrad.verify.report import Case
from onnxgrad.verify.running.child_process import RunFailed
from onnxgrad.verify.running.session import Session
from onnxgrad.verify.trials import Trial

MOST_ROWS = 64  # rows of a table that runs have to read, if more differ


def differing_rows(a: ProofModel, b: ProofModel) -> dict[str, list[int]]:
    """Returns, by table, the rows that differ between initializers of the same name, shape and
    type in which nodes of `a` look up rows. Raises InputError if data is damaged or missing.
    """
    theirs = {t.name: t for t in _initializers(b.proto)}
    found = {}
    axes = dict(_tables(a.proto))
    for tensor in _initializers(a.proto):
        other = theirs.get(tensor.name)
        if tensor.name not in axes or other is None or not tensor.dims:
            continue
        if list(tensor.dims) != list(other.dims) or tensor.data_type != other.data_type:
            continue
        rows = _rows(tensor, a, other, b, axes[tensor.name])
        if rows:
            found[tensor.name] = rows
    return found


def chosen(rows: list[int]) -> list[int]:
    """Returns at most MOST_ROWS of the rows, evenly spread."""
    if len(rows) <= MOST_ROWS:
        return rows
    return [rows[int(i)] for i in np.linspace(0, len(rows) - 1, MOST_ROWS).round()]


def _rows(x: TensorProto, a: ProofModel, y: TensorProto, b: ProofModel, axis: int) -> list[int]:
    if x.raw_data and x.raw_data == y.raw_data:
        return []
    p, q = (np.moveaxis(_values(t, s), axis, 0) for t, s in ((x, a), (y, b)))
    if p.dtype == object:
        differ = p != q
    else:  # by bits, because NaN differs from NaN
        p, q = (np.ascontiguousarray(v).reshape(len(v), -1).view(np.uint8) for v in (p, q))
        differ = p != q
    return [int(i) for i in np.flatnonzero(differ.reshape(len(p), -1).any(axis=1))]


def _values(tensor: TensorProto, subject: ProofModel) -> np.ndarray[Any, Any]:
    if tensor.data_location == TensorProto.EXTERNAL and isinstance(subject.source, Path):
        tensor = internalize(tensor, subject.source.parent)
    return elements(tensor)


def _initializers(model: ModelProto) -> Iterator[TensorProto]:
    for graph in every_graph(model.graph):
        yield from graph.initializer


def _tables(model: ModelProto) -> Iterator[tuple[str, int]]:
    for node in every_node(model.graph.node):
        for table, index in LOOKUPS.get(node.op_type, ()):
            if len(node.input) > max(table, index):
                yield node.input[table], axis_of(node)


_FEW_TRIES = 1  # for a model that is not small, up to this many elements of weights
_MOST_WEIGHTS = 1 << 18
_ALONE = 16  # defaults that are overridden one at a time, if all at once fail
_ROW_CASES = 16
_RECURRENT = {"LSTM", "GRU", "RNN"}  # these crash onnxruntime at an empty batch
_MODELS = ("original", "candidate")


@dataclass
class Search:
    """The search for more cases of one proof. `trials` gets new cases after the usual ones.
    `at_zero` gets the cases with an empty dimension, which are compared in onnxruntime only.
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
    at_zero: list[Trial] = field(default_factory=list)
    _defaults: list[Item] = field(default_factory=list)
    _rows: dict[str, list[int]] = field(default_factory=dict)
    _not_at: dict[str, dict[int, str]] = field(default_factory=dict)
    _not_empty: dict[str, str] = field(default_factory=dict)

    @property
    def _model(self) -> ModelProto:
        return self.original.proto

    def run(self) -> None:
        """Searches for all kinds of cases."""
        self._sizes()
        self._override()
        for trial in self.trials:
            self._answered(trial)
        if self._counts and small(self._model):
            # small numbers, beside which an epsilon is visible
            usual = self._feeds(self._plan, self.seeds[0])
            varied = self._feeds(self._plan, self.seeds[0], SMALL)
            if any(not _same(usual[name], varied[name]) for name in usual):
                self._add(self._plan, self.seeds[0], SMALL)
        self._raise()
        self._differing()
        self._empty()

    def coverage(self, zero_refused: Mapping[str, str], given: bool = False) -> Coverage:
        """Returns the coverage. `zero_refused`: by symbol, why the second model does not run at
        size 0 although the original does. `given`: the user's own inputs ran, and no cases were
        searched for.
        """
        sizes = () if given else tuple(self._ran(zero_refused))
        oracle = self.oracle
        if oracle is None:
            return Coverage(sizes=sizes, why=NOT_ASKED)
        items = oracle.covered("original")
        if not any(trial.exact is not None for trial in self.trials) or oracle.left <= 0:
            return Coverage(sizes=sizes, why=f"the float64 check did not run: {oracle.why}")
        return Coverage(
            (*items, *self._defaults),
            tuple(oracle.covered("candidate")),
            sizes,
            {} if given else self._unread(items),
        )

    # ---- one case --------------------------------------------------------------------------------

    def _try(self, feeds: Results, case: Case) -> Trial | None:
        """Returns a trial if the original runs on the feeds and agrees with itself."""
        try:
            expected = None if self.session is None else self.session.run(feeds)
        except RunFailed:
            return None
        exact = None if self.oracle is None else _tried(self.oracle, self.oracle.original, feeds)
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

    def _add(self, plan: Mapping[str, int], seed: int, how: Variation) -> Trial | None:
        """Tries a variation, and adds it to the trials if it runs."""
        trial = self._try(self._feeds(plan, seed, how), Case(dict(plan), seed, how=str(how)))
        if trial is not None:
            self._answered(trial)
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

    def _answered(self, trial: Trial) -> None:
        """Runs the second model in float64, so that its coverage counts too."""
        if self.oracle is not None and trial.exact is not None and trial.answer is None:
            trial.answer = _tried(self.oracle, self.oracle.candidate, trial.feeds)

    def _score(self, then: str = "") -> tuple[int, int]:
        """Returns how many decisions of both models were reached, and how many are missing."""
        assert self.oracle is not None
        found = [i for which in _MODELS for i in self.oracle.covered(which, then)]
        decisions = [i for i in found if i.kind in DECISIONS]
        reached = sum(i.reached for i in decisions)
        return reached, sum(i.of for i in decisions) - reached

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
            reached, missing = self._score()
            if not missing or not self._counts:
                return
            self._score("mark")
            trial = self._add(plan, seed, how)
            if trial is None or self._score()[0] <= reached:
                self._score("back")
                if trial is not None:
                    self.trials.remove(trial)

    # ---- tables ----------------------------------------------------------------------------------

    def _differing(self) -> None:
        """Adds cases that read rows in which the tables of the two models differ."""
        self._rows = differing_rows(self.original, self.candidate)
        if not self._rows:
            return
        plan = max((t.case.dims for t in self.trials), key=lambda dims: sum(dims.values()))
        for turn in range(_ROW_CASES):
            wanted = {t: rows for t, rows in self._left().items() if rows}
            if not wanted:
                return
            trial = self._add(plan, self.seeds[0] + turn, Variation(rows=wanted))
            if trial is None or (self._counts and self._left() == wanted):
                return

    def _left(self) -> dict[str, list[int]]:
        """Returns the rows that are still to be read: up to MOST_ROWS for each table."""
        known = _tables_of(self.oracle.covered("original") if self.oracle is not None else [])
        left = {}
        for table, rows in ((t, r) for t, r in self._rows.items() if t in known):
            item = known[table]
            read = sum(has_row(item, row) for row in rows)
            unread = [row for row in chosen(rows) if not has_row(item, row)]
            left[table] = unread[: max(0, min(MOST_ROWS, len(rows)) - read)]
        return left

    def _unread(self, items: Sequence[Item]) -> dict[str, int]:
        known = _tables_of(items)
        counts = {
            table: sum(not has_row(known[table], row) for row in rows)
            for table, rows in self._rows.items()
            if table in known
        }
        return {table: count for table, count in counts.items() if count}

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

    def _open(self) -> Iterator[str]:
        """Yields the symbols whose size is not fixed by the user."""
        yield from (s for s in roles(self._model.graph) if s not in self.dims)

    def _sizes(self) -> None:
        """Tries size 2 for every dimension that ran only at 1."""
        for symbol in self._open() if self.refused else ():
            if {t.case.dims.get(symbol, 1) for t in self.trials} != {1}:
                continue
            plan = {**self._plan, symbol: 2}
            feeds = self._feeds(plan, self.seeds[0])
            try:
                if self.session is not None:
                    self.session.run(feeds)
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
                results = self.session.run(feeds)
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
                refused[0] = (
                    f"runs in the original, and not in the second model: {zero_refused[symbol]}"
                )
            elif zero:
                ran.add(0)
            yield Sizes(symbol, tuple(sorted(ran)), refused, self._not_empty.get(symbol, ""))


def _tried(
    oracle: Oracle, run: Callable[[Results], Results | None], feeds: Results
) -> Results | None:
    """Runs a model for an optional case: a failure leaves no reason behind."""
    why = oracle.why
    found = run(feeds)
    if oracle.left > 0:
        oracle.why = why
    return found


def _tables_of(items: Sequence[Item]) -> dict[str, Item]:
    return {item.where: item for item in items if item.kind == ROWS}


def _same(a: object, b: object) -> bool:
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return np.array_equal(a, b)
    return a is b or (isinstance(a, list) and isinstance(b, list) and all(map(_same, a, b)))
