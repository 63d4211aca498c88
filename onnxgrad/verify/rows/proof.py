"""Proves that a model computes for every row what another computes on its fixed batch, and that
rows do not influence each other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from onnx import ModelProto

from onnxgrad.errors import CannotRun, InputError
from onnxgrad.frozen import frozen
from onnxgrad.ir.protobufs import model_nodes, reads, scheduled
from onnxgrad.verify.bounds import Bounds
from onnxgrad.verify.compare import Difference, finite_elements
from onnxgrad.verify.coverage.summary import Coverage
from onnxgrad.verify.feeds.generate import Feeder, bound_by
from onnxgrad.verify.feeds.proof_cases import Inputs, Results, runnable, sets_of
from onnxgrad.verify.float64_check import Oracle, float64_check
from onnxgrad.verify.interface import Demands
from onnxgrad.verify.onnxruntime_check import calibrate, held_against, open_original
from onnxgrad.verify.output_dependencies import float_types, new_weights
from onnxgrad.verify.proof_model import Model, ProofModel, proof_model
from onnxgrad.verify.random_operators import Draws, same_draws
from onnxgrad.verify.report import Case, Check, Report
from onnxgrad.verify.request import Settings
from onnxgrad.verify.rows.grouping import Grouping
from onnxgrad.verify.running.child_process import RunFailed
from onnxgrad.verify.running.session import Session
from onnxgrad.verify.tolerance import Range
from onnxgrad.verify.trials import Found, Trial
from onnxgrad.verify.values import Value
from onnxgrad.wording import option

_TRIES = 12
_FAR = 7  # from this try on inputs are larger
_STAGE = "independence"
_BUDGET = 20.0  # seconds of the float64 check
_PLANS = 2  # sizes per symbolic dimension
_OTHER_ROW = 1
# operators whose number of steps, or the size of whose result, depends on values
_RAGGED = frozenset({"Compress", "Loop", "NonMaxSuppression", "NonZero", "Range", "Unique"})
# one row at several scales, with this whole number in inputs of one element, such as a count
_UNLIKE = ((0.1, 1), (1.0, 2), (10.0, 3), (-10.0, 1))


@frozen
class _Batch:
    """Runs of the original on feeds of one size, and the numbers of rows to compare at."""

    dims: Mapping[str, int]
    seed: int | None
    groups: Sequence[Mapping[str, Value]]
    results: Sequence[Results]
    sizes: Sequence[int]


@frozen
class RowProof:
    """The models, the axes of the rows, and where to run.

    `inputs`: the user's rows, several in each set. `allow_same`: outputs that may be equal in every
    row; None: any, if another differs.
    """

    original: Model
    opened: Model
    rows: Grouping
    providers: Sequence[str] = ("cpu",)
    dims: Mapping[str, int] | None = None
    seed: int = 0
    inputs: Inputs | None = None
    allow_same: Sequence[str] | None = ()
    budget: float = _BUDGET
    _models: list[ProofModel] = field(default_factory=list, init=False, repr=False)
    _draws: list[Draws] = field(default_factory=list, init=False, repr=False)

    @cached_property
    def _proto(self) -> ModelProto:
        return proof_model(self.original).proto

    @cached_property
    def _constant(self) -> set[str]:
        """The outputs that depend on no value of a row, only on its sizes, such as a gradient that
        is zero everywhere.
        """
        rows = {*self.rows.inputs}
        behind = {*rows}
        for node in scheduled(list(self._proto.graph.node)):
            sizes = node.op_type in ("Shape", "Size") and node.input[0] in rows
            if not sizes and not behind.isdisjoint(reads(node)):
                behind.update(filter(None, node.output))
        return {*self.rows.outputs} - behind

    def report(self) -> Report:
        """Compares rows with the original's runs at several batches, in onnxruntime and in float64,
        within the original's own noise, and checks that no row influences others. Raises CannotRun
        if the original runs on no generated inputs.
        """
        self._draws.append(same_draws(proof_model(self.original), proof_model(self.opened)))
        self._models.extend((self._draws[0].original, self._draws[0].candidate))
        reports = [
            self._on(Settings(provider, 1), first=i == 0)
            for i, provider in enumerate(self.providers)
        ]
        return Report.merge(reports, self.providers)

    def _on(self, settings: Settings, *, first: bool) -> Report:
        start = time.monotonic()
        original, opened = self._models
        session = open_original(original, settings)
        batches = self._given(session) if self.inputs is not None else self._generated(session)
        demands = Demands(of="the opened model", dtypes=float_types(original.proto))
        oracle = _RowOracle(original, opened, self.budget, demands) if first else None
        if oracle is not None:
            oracle.rows = self.rows
        trials, why = self._trials(batches, settings, oracle)
        found, ran = Found(), dict[str, Check]()
        ran["onnxruntime"] = held_against(opened, trials, found, settings, demands, why)
        if oracle is not None:
            # constants of several rows were folded, in their own dtype
            folded = new_weights(original, opened, claimed=True) if self.rows.count > 1 else {}
            ran["float64"] = float64_check(oracle, trials, found, folded)
        ran[_STAGE] = self._independent(batches[0], settings)
        leak = ran[_STAGE].worst
        same = self._same(batches)
        if same:
            how = f"try another {option('--seed', 'seed')}"
            if self.allow_same is not None:
                accept = option(" ".join(f"--allow-same {n}" for n in same), f"allow_same={same}")
                how += f", or accept it: {accept}"
            found.unproved.append(f"every row has the same {', '.join(same)} ({how})")
        found.unproved += self._draws[0].reasons(Bounds())
        found.unproved += [
            f"output '{n}' should be the same in all rows, and is not" for n in self._apart(batches)
        ]
        differences = (*found.differences.values(), *(() if leak is None else (leak,)))
        return Report(
            ok=all(d.ok for d in differences) and not found.reasons(),
            differences=differences,
            checks=ran,
            cases=tuple(trial.case for trial in trials),
            provider=found.ran_on(settings.provider),
            idle=tuple(found.idle),
            notes=(*self._draws[0].notes, *found.remarks()),
            noise={n: max(t.noise.get(n, 0.0) for t in trials) for n in self.rows.outputs},
            compared=found.compared(),
            unproved=found.reasons(),
            coverage=Coverage(),
            seconds=time.monotonic() - start,
        )

    # ---- rows ------------------------------------------------------------------------------------

    def _generated(self, session: Session) -> list[_Batch]:
        """Returns rows on which the original runs, those with different results first, at two sizes
        of other dimensions.
        """
        count = self.rows.count
        sizes = (2, 3) if count == 1 else (1, count + 1)
        plans = runnable(self._proto, self.dims, self.seed, session.run, count=_PLANS)
        batches = [
            self._at(session, dims, sizes if i == 0 else sizes[-1:]) for i, dims in enumerate(plans)
        ]
        ragged = any(node.op_type in _RAGGED for node in model_nodes(self._proto))
        return [*batches, *(self._unlike(session, batches[0]) if ragged else ())]

    def _unlike(self, session: Session, like: _Batch) -> list[_Batch]:
        """Returns a batch of rows that differ in steps and lengths on the way to results of the
        same shapes, or none if the original runs on fewer than two of them.
        """
        feeder, groups = Feeder(self._proto), list[tuple[Results, Results]]()
        shapes = {name: np.asarray(value).shape for name, value in like.results[0].items()}
        given = feeder.feeds(seed=self.seed + _TRIES, dims=like.dims)
        for scale, count in _UNLIKE:
            rows = {n: _scaled(given[n], scale, count) for n in self.rows.inputs if n in given}
            feeds = {**like.groups[0], **rows}
            try:
                results = session.run(feeds)
            except (RunFailed, InputError):
                continue
            if shapes == {name: np.asarray(value).shape for name, value in results.items()}:
                groups.append((feeds, results))
        if len(groups) < 2:
            return []
        feeds_of, results_of = zip(*groups, strict=True)
        size = len(groups) * self.rows.count
        return [_Batch(like.dims, self.seed, feeds_of, results_of, (size,))]

    def _at(self, session: Session, dims: Mapping[str, int], sizes: Sequence[int]) -> _Batch:
        feeder, needed = Feeder(self._proto), -(-(sizes[-1] + 1) // self.rows.count)
        given = feeder.feeds(seed=self.seed, dims=dims)
        shared = {name: value for name, value in given.items() if name not in self.rows.inputs}
        groups = [(given, session.run(given))]
        for turn in range(1, _TRIES):
            if len(groups) >= needed and not self._quiet(groups):
                break
            try:
                feeds = {**feeder.feeds(seed=self.seed + turn, dims=dims), **shared}
                if turn >= _FAR:
                    feeds = {n: self._farther(n, v, turn) for n, v in feeds.items()}
                groups.append((feeds, session.run(feeds)))
            except (RunFailed, InputError):
                continue
            groups[1:] = sorted(groups[1:], key=lambda g: -self._news(groups[0][1], g[1]))
        if len(groups) < needed:
            raise CannotRun(f"the model runs on {len(groups)} of {_TRIES} generated rows only")
        feeds_of, results = zip(*groups[:needed], strict=True)
        return _Batch(dims, self.seed, feeds_of, results, sizes)

    def _farther(self, name: str, value: Value, turn: int) -> Value:
        """Returns larger floats of both signs for a row, because all usual values had the same
        result.
        """
        array = np.asarray(value)
        if name not in self.rows.inputs or array.dtype.kind != "f":
            return value
        return (array * (-3.0) ** (turn - _FAR + 1)).astype(array.dtype)

    def _news(self, first: Results, other: Results) -> int:
        """Returns the number of outputs that differ between two runs."""
        return sum(not _equal(first[n], other[n]) for n in self._with_rows())

    def _quiet(self, groups: Sequence[tuple[Results, Results]]) -> list[str]:
        """Returns the outputs that are equal in the first two runs, although they need not be."""
        a, b = groups[0][1], groups[min(1, len(groups) - 1)][1]
        return self._not_allowed([n for n in self._with_rows() if _equal(a[n], b[n])])

    def _not_allowed(self, same: Sequence[str]) -> list[str]:
        """Returns the outputs among `same`, equal in every row, that need a difference."""
        same = [n for n in same if n not in self._constant]
        if self.allow_same is None:
            return [*same] if len(same) == len(self._with_rows()) else []
        return [n for n in same if n not in self.allow_same]

    def _given(self, session: Session) -> list[_Batch]:
        """Returns the user's rows; sets of other sizes become separate batches. Raises
        InputError.
        """
        where, sets = option("--input", "feeds="), dict[tuple[object, ...], list[Results]]()
        feeder = Feeder(self._proto)
        for given in sets_of(self.inputs or {}, self._proto):
            missing = [name for name in self.rows.inputs if name not in given]
            if missing:
                raise InputError(f"{where}: rows of {missing[0]!r} are missing")
            counts = {n: np.asarray(given[n]).shape[a : a + 1] for n, a in self.rows.inputs.items()}
            if len({*counts.values()}) > 1 or () in counts.values() or (0,) in counts.values():
                text = ", ".join(
                    f"{size[0] if size else 'no'} in {n}" for n, size in counts.items()
                )
                raise InputError(f"{where}: inputs have several numbers of rows: {text}")
            groups = [feeder.feeds(seed=self.seed, given=g) for g in self.rows.apart(given)]
            sizes = bound_by(self._proto, groups[0])
            shared = [_bytes(v) for n, v in groups[0].items() if n not in self.rows.inputs]
            rows = self.rows.rows_in(given)
            stacked = self.rows.some(self.rows.feeds(groups), range(rows))
            sets.setdefault((*sizes.items(), *shared), []).append(stacked)
        joined = replace(self.rows, own=False)  # the sets have the axis of the rows already
        return [self._of_set(session, joined.feeds(each), where) for each in sets.values()]

    def _of_set(self, session: Session, feeds: Results, where: str) -> _Batch:
        rows, groups = self.rows.rows_in(feeds), self.rows.apart(feeds)
        if rows < 2:
            raise InputError(
                f"{where}: one row cannot show that rows are independent: pass two or more"
            )
        try:
            results = [session.run(g) for g in groups]
        except RunFailed as error:
            raise CannotRun(f"the model does not run on the given rows: {error.reason}") from error
        return _Batch(bound_by(self._proto, groups[0]), None, groups, results, (rows,))

    def _with_rows(self) -> list[str]:
        return [name for name, rows in self.rows.outputs.items() if rows.axis is not None]

    def _same(self, batches: Sequence[_Batch]) -> list[str]:
        """Returns the outputs that are equal in every row, because swapped rows would not be
        noticed.
        """
        found = []
        for name in self._with_rows():
            if all(
                _equal(a, b)
                for batch in batches
                for a, b in pairwise(
                    row
                    for group in batch.results
                    for row in self.rows.of_result(name, group[name], batch.dims)
                )
            ):
                found.append(name)
        return self._not_allowed(found)

    def _apart(self, batches: Sequence[_Batch]) -> list[str]:
        """Returns the outputs that should be equal in all rows and are not."""
        return [
            name
            for name, rows in self.rows.outputs.items()
            if rows.axis is None
            and any(not _equal(r[name], b.results[0][name]) for b in batches for r in b.results)
        ]

    # ---- checks ----------------------------------------------------------------------------------

    def _trials(
        self, batches: Sequence[_Batch], settings: Settings, oracle: Oracle | None
    ) -> tuple[list[Trial], str]:
        """Returns stacked runs with the noise of the original in its own runs, and why it did not
        run with optimisations.
        """
        each = [
            [
                Trial(Case(b.dims, b.seed), dict(f), r)
                for f, r in zip(b.groups, b.results, strict=True)
            ]
            for b in batches
        ]
        every = [trial for trials in each for trial in trials]
        for trial in every:
            trial.exact = None if oracle is None else Oracle.original(oracle, trial.feeds)
        why = calibrate(self._models[0], every, settings)
        return [
            self._stacked(b, trials, size)
            for b, trials in zip(batches, each, strict=True)
            for size in b.sizes
        ], why

    def _stacked(self, batch: _Batch, trials: Sequence[Trial], size: int) -> Trial:
        trials = trials[: -(-size // self.rows.count)]
        ranges = {
            name: Range(
                *(
                    where.take(
                        where.stacked([getattr(t.ranges[name], end) for t in trials], batch.dims),
                        range(size),
                        len(trials) * self.rows.count,
                        batch.dims,
                    )
                    for end in ("low", "high")
                )
            )
            for name, where in self.rows.outputs.items()
            if all(name in t.ranges for t in trials)
        }
        feeds = self.rows.some(self.rows.feeds([t.feeds for t in trials]), range(size))
        exact = [t.exact for t in trials if t.exact is not None]
        return Trial(
            Case({**batch.dims, "batch": size}, batch.seed),
            feeds,
            self.rows.results([t.expected for t in trials], size, batch.dims),
            self.rows.results(exact, size, batch.dims) if len(exact) == len(trials) else None,
            noise={n: max(t.noise.get(n, 0.0) for t in trials) for n in self.rows.outputs},
            ranges=ranges,
        )

    def _independent(self, batch: _Batch, settings: Settings) -> Check:
        """Replaces row 1 by another row, then by NaN: every bit of all other rows must stay."""
        stacked = self.rows.feeds(batch.groups)
        count, total = batch.sizes[-1], self.rows.rows_in(stacked)
        feeds = self.rows.some(stacked, range(count))
        session = settings.open(self._models[1].source, optimize=True)
        spare = total - 1 if total - 1 > _OTHER_ROW else 0
        swapped = [spare if i == _OTHER_ROW else i for i in range(count)]
        others = [self.rows.some(stacked, swapped)]
        poisoned = {n: self._poisoned(n, v) for n, v in feeds.items()}
        if any(poisoned[name] is not feeds[name] for name in self.rows.inputs):
            others.append(poisoned)
        compared, cases, worst = 0, 0, None
        try:
            before = session.run(feeds)
        except RunFailed as error:
            return Check(_STAGE, False, f"it does not run: {error.reason}")
        for other in others:
            try:
                after = session.run(other)
            except RunFailed as error:
                return Check(
                    _STAGE, cases > 0, f"a changed row does not run: {error.reason}", cases
                )
            cases += 1
            for name, where in self.rows.outputs.items():
                for i in (i for i in range(count) if i != _OTHER_ROW):
                    a, b = (
                        where.row(np.asarray(y[name]), i, count, batch.dims)
                        for y in (before, after)
                    )
                    compared += finite_elements(a)[0]
                    if not _equal(a, b):
                        worst = worst or _leak(name, i)
        return Check(_STAGE, True, "", cases, worst, compared)

    def _poisoned(self, name: str, value: Value) -> Value:
        array = np.asarray(value)
        if name not in self.rows.inputs or array.dtype.kind != "f":
            return value
        made = np.moveaxis(array.copy(), self.rows.inputs[name], 0)
        made[_OTHER_ROW] = np.nan
        return np.moveaxis(made, 0, self.rows.inputs[name])


class _RowOracle(Oracle):
    """The original in float64, on stacked feeds, run by run."""

    rows: Grouping

    def original(self, feeds: Results, jitter: float = 0.0, seed: int = 0) -> Results | None:
        """Returns the results of stacked feeds, as `Oracle.original`."""
        run: Callable[..., Results | None] = super().original
        groups = self.rows.apart(feeds)
        results = [run(group, jitter, seed) for group in groups]
        known = [r for r in results if r is not None]
        if len(known) < len(results):
            return None
        dims = bound_by(self.subjects["original"].proto, groups[0])
        return self.rows.results(known, self.rows.rows_in(feeds), dims)


def _leak(name: str, row: int) -> Difference:
    reason = f"row {row} changes with row {_OTHER_ROW}"
    return Difference(name, None, None, None, float("inf"), 0.0, reason, check=_STAGE)


def _scaled(value: Value, scale: float, count: int) -> Value:
    """Returns floats times the scale, and a whole number in place of a single one."""
    array = np.asarray(value)
    if array.dtype.kind == "f":
        return (array * scale).astype(array.dtype)
    return np.full_like(array, count) if array.dtype.kind in "iu" and array.size == 1 else value


def _bytes(value: Value) -> object:
    array = np.asarray(value)
    return array.tobytes() if array.dtype != object else str(array)


def _equal(a: Value, b: Value) -> bool:
    x, y = np.asarray(a), np.asarray(b)
    if x.shape != y.shape or x.dtype != y.dtype:
        return False
    return x.tobytes() == y.tobytes() if x.dtype != object else bool((x == y).all())
