"""Proof that a model computes row by row what another computes on each row alone, and that no row
reaches another.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from onnx import ModelProto

from onnxgrad.errors import CannotRun, InputError
from onnxgrad.ir.types import Array
from onnxgrad.verify.compare import Difference, finite_elements
from onnxgrad.verify.coverage.summary import Coverage
from onnxgrad.verify.feeds.generate import Feeder
from onnxgrad.verify.feeds.proof_cases import runnable
from onnxgrad.verify.proof import verify
from onnxgrad.verify.report import Case, Leg, Report, joined
from onnxgrad.verify.running.child_process import RunFailed
from onnxgrad.verify.running.session import Session, open_session
from onnxgrad.verify.values import Value
from onnxgrad.wording import option

_BATCHES = (2, 3)
_NEEDED = 4  # rows of the largest batch, and one to put in the place of another
_TRIES = 12
_FAR = 7  # from this try on inputs are larger
_STAGE = "independence"


@dataclass(frozen=True)
class Rows:
    """Where the rows of an output are: `axis` holds outer x rows x inner positions, and `size` is
    its size in one row; None: all rows share the value. `own`: one row lacks the axis.
    """

    axis: int | None
    outer: int = 1
    size: int = 1
    own: bool = False

    def stacked(self, rows: Sequence[Array]) -> Array:
        """The results of single rows as one array."""
        if self.axis is None:
            return rows[0]
        if self.own:
            return np.stack(rows, self.axis)
        before = rows[0].shape[: self.axis]
        after = rows[0].shape[self.axis + 1 :]
        parts = [r.reshape(*before, self.outer, -1, *after) for r in rows]
        found: Array = np.concatenate(parts, self.axis + 1).reshape(*before, -1, *after)
        return found

    def row(self, array: Array, index: int, count: int) -> Array:
        """One row of an array that holds `count`."""
        if self.axis is None:
            return array
        before, after = array.shape[: self.axis], array.shape[self.axis + 1 :]
        parts = array.reshape(*before, self.outer, count, -1, *after)
        found: Array = np.take(parts, index, self.axis + 1)
        return found


@dataclass(frozen=True)
class _Row:
    """The inputs of one row, and the original's results."""

    feeds: Mapping[str, Value]
    results: Mapping[str, Value]


@dataclass(frozen=True)
class RowProof:
    """The models, the axes of the inputs that hold rows, and where the outputs hold them.

    `allow_same`: outputs that may be the same in every row.
    """

    original: ModelProto
    opened: ModelProto
    inputs: Mapping[str, int]
    outputs: Mapping[str, Rows]
    provider: str = "cpu"
    dims: Mapping[str, int] | None = None
    seed: int = 0
    allow_same: Sequence[str] = ()

    def report(self) -> Report:
        """Compare each row with the original's run at batches 2 and 3, and look for traces of a
        row in others. Raises CannotRun if the original runs on no inputs that we make.
        """
        start = time.monotonic()
        rows = self._rows()
        same = self._same(rows)
        reports = [self._at(rows[:count]) for count in _BATCHES]
        report = joined(reports, [f"batch {count}" for count in _BATCHES])
        legs = {
            f"rows at batch {count}": replace(leg, name=f"rows at batch {count}")
            for count, leg in zip(_BATCHES, (r.legs["onnxruntime"] for r in reports), strict=True)
        }
        legs[_STAGE] = self._independent(rows)
        found = legs[_STAGE].worst
        unproved = tuple(dict.fromkeys(u for r in reports for u in r.unproved))
        if same:
            accept = option(" ".join(f"--allow-same {n}" for n in same), f"allow_same={same}")
            unproved += (
                f"every row has the same {', '.join(same)} (try another "
                f"{option('--seed', 'seed')}, or accept it: {accept})",
            )
        differences = report.differences + (() if found is None else (found,))
        return replace(
            report,
            ok=all(reports) and not unproved and (found is None or found.ok),
            differences=differences,
            legs=legs,
            cases=tuple(Case({"batch": count}, self.seed) for count in _BATCHES),
            unproved=unproved,
            provider=self.provider,
            coverage=Coverage(),
            seconds=time.monotonic() - start,
        )

    def _rows(self) -> list[_Row]:
        """Rows on which the original runs, those first whose results differ."""
        session = open_session(self.original, provider=self.provider)
        feeder = Feeder(self.original)
        sizes = runnable(self.original, self.dims, self.seed, session.run, count=1)[0]
        given = feeder.feeds(seed=self.seed, dims=sizes)
        shared = {name: value for name, value in given.items() if name not in self.inputs}
        first, others = _Row(given, session.run(given)), list[_Row]()
        for turn in range(1, _TRIES):
            if len(others) >= _NEEDED - 1 and not self._same([first, *others]):
                break
            try:
                feeds = {**feeder.feeds(seed=self.seed + turn, dims=sizes), **shared}
                if turn >= _FAR:
                    feeds = {n: self._farther(n, v, turn) for n, v in feeds.items()}
                others.append(_Row(feeds, session.run(feeds)))
            except (RunFailed, InputError):
                continue
            others.sort(key=lambda row: -self._news(first, row))
        if len(others) < _NEEDED - 1:
            raise CannotRun(f"the model runs on {len(others) + 1} of {_TRIES} generated rows only")
        return [first, *others]

    def _farther(self, name: str, value: Value, turn: int) -> Value:
        """Floats of a row, larger and of both signs: the usual ones all had the same answer."""
        array = np.asarray(value)
        if name not in self.inputs or array.dtype.kind != "f":
            return value
        return (array * (-3.0) ** (turn - _FAR + 1)).astype(array.dtype)

    def _news(self, first: _Row, other: _Row) -> int:
        """How many outputs differ between two rows."""
        return sum(not _equal(first.results[n], other.results[n]) for n in self._with_rows())

    def _with_rows(self) -> list[str]:
        return [name for name, rows in self.outputs.items() if rows.axis is not None]

    def _same(self, rows: Sequence[_Row]) -> list[str]:
        """The outputs that are the same in the rows of the smallest batch: swapped rows would not
        show.
        """
        a, b = rows[0], rows[min(1, len(rows) - 1)]
        found = [n for n in self._with_rows() if _equal(a.results[n], b.results[n])]
        return [n for n in found if n not in self.allow_same]

    def _feeds(self, rows: Sequence[Mapping[str, Value]]) -> dict[str, Value]:
        return {
            name: np.concatenate([r[name] for r in rows], self.inputs[name])
            if name in self.inputs
            else value
            for name, value in rows[0].items()
        }

    def _at(self, rows: Sequence[_Row]) -> Report:
        expected = {
            name: where.stacked([np.asarray(r.results[name]) for r in rows])
            for name, where in self.outputs.items()
        }
        report = verify(
            self.opened,
            expect=expected,
            inputs=self._feeds([r.feeds for r in rows]),
            provider=self.provider,
            legs=("onnxruntime",),
            allow_empty=[n for n, value in expected.items() if not value.size],
        )
        apart = [n for n, w in self.outputs.items() if w.axis is None and not _all_equal(rows, n)]
        if not apart:
            return report
        why = tuple(f"output '{n}' should be the same in all rows, and is not" for n in apart)
        return replace(report, ok=False, unproved=(*report.unproved, *why))

    def _independent(self, rows: Sequence[_Row]) -> Leg:
        """Row 1 becomes another, then NaN: all others must keep every bit."""
        count = _BATCHES[-1]
        feeds = [r.feeds for r in rows[:count]]
        session = open_session(self.opened, provider=self.provider)
        before = session.run(self._feeds(feeds))
        others = [rows[count].feeds]
        nan = {name: _poisoned(v) if name in self.inputs else v for name, v in feeds[1].items()}
        if any(nan[name] is not feeds[1][name] for name in self.inputs):
            others.append(nan)
        compared, cases, worst = 0, 0, None
        for other in others:
            try:
                after = self._run(session, [feeds[0], other, *feeds[2:]])
            except RunFailed as error:
                return Leg(_STAGE, cases > 0, f"a changed row does not run: {error.reason}", cases)
            cases += 1
            for name, where in self.outputs.items():
                for i in (0, *range(2, count)):
                    a, b = (where.row(np.asarray(y[name]), i, count) for y in (before, after))
                    compared += finite_elements(a)[0]
                    if not _equal(a, b):
                        worst = worst or _leak(name, i)
        return Leg(_STAGE, True, "", cases, worst, compared)

    def _run(self, session: Session, rows: Sequence[Mapping[str, Value]]) -> dict[str, Value]:
        return session.run(self._feeds(rows))


def _leak(name: str, row: int) -> Difference:
    reason = f"row {row} changes with row 1"
    return Difference(name, None, None, None, float("inf"), 0.0, reason, leg=_STAGE)


def _equal(a: Value, b: Value) -> bool:
    x, y = np.asarray(a), np.asarray(b)
    if x.shape != y.shape or x.dtype != y.dtype:
        return False
    return x.tobytes() == y.tobytes() if x.dtype != object else bool((x == y).all())


def _all_equal(rows: Sequence[_Row], name: str) -> bool:
    return all(_equal(rows[0].results[name], r.results[name]) for r in rows)


def _poisoned(value: Value) -> Value:
    array = np.asarray(value)
    return np.full_like(array, np.nan) if array.dtype.kind == "f" else value
