"""Derivatives at further inputs: large, small and of other sizes, and on both sides of every
threshold of the derivative's graph.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto

from onnxgrad.errors import OnnxgradError
from onnxgrad.grad.checking.line import spot
from onnxgrad.grad.checking.looks import Checked, Look
from onnxgrad.grad.checking.report import Looks, ValueCheck
from onnxgrad.grad.checking.vectors import flat, flat_shape
from onnxgrad.limits import current
from onnxgrad.verify.coverage.counters import DECISIONS, progress
from onnxgrad.verify.coverage.goals import Wishes, filled, parted, solved
from onnxgrad.verify.coverage.summary import NOTHING_RAN, Coverage
from onnxgrad.verify.feeds.data_flow import DataFlow
from onnxgrad.verify.feeds.dims import dim_plans
from onnxgrad.verify.feeds.edge_cases import SEARCH, Variation
from onnxgrad.verify.feeds.generate import Feeder, bound_by
from onnxgrad.verify.feeds.proof_cases import small
from onnxgrad.verify.reference.client import Float64

_SCALES = (8.0, 1e-3, 100.0)
_PLANS = 3  # other sizes that are tried until the model runs
_ROUNDS = 6  # of values that are solved for
_SIZES = 2  # of one symbol that are tried in a round
_IDLE = 2  # rounds that may reach nothing more in turn
_OFF_KINKS = 2.0**-11  # how far beside a wanted value a float is put, relative above 1
# seconds for everything here: this part of those that the check itself took, if that is more
_LEAST_SECONDS, _PART_OF_CHECK, _PART_OF_REST = 10.0, 0.25, 0.25
_GROUPS = 8  # of values that are weights in a file
_MARKS = itertools.count()


class FurtherInputs:
    """One check at further inputs.

    feeds: the usual ones. given: those among them that the user gave, which stay. spent: the
    seconds that the check at the usual inputs took. zeros: the values whose derivatives and
    differences are 0 there.
    """

    def __init__(
        self,
        check: Checked,
        feeds: Mapping[str, Any],
        *,
        seed: int,
        dims: Mapping[str, int],
        given: Collection[str],
        spent: float,
        zeros: Collection[str],
    ) -> None:
        self.check, self.usual, self.seed, self.dims = check, dict(feeds), seed, dims
        self.given = {name: feeds[name] for name in given}
        self.exact = Float64(check.files.runnable(check.graph))
        self.reference = Float64(check.files.runnable(check.probe.model))
        self.feeder = Feeder(check.source)
        self.count = _count()
        self.compared = False  # whether the graph's coverage is that of a comparison
        left = current().left()
        seconds = min(max(_LEAST_SECONDS, spent * _PART_OF_CHECK), left * _PART_OF_REST)
        self.deadline = time.monotonic() + seconds
        self.base: Mapping[str, Any] | None = None  # the results of the probe at the usual inputs
        # what is wrong, and the values that are 0 at the usual inputs and right elsewhere
        self.wrong: dict[str, ValueCheck] = {}
        self.zeros, self.right = set(zeros), dict[str, ValueCheck]()
        self.inputs: list[str] = []  # descriptions of those at which derivatives were compared
        self.ended = False  # whether the time was up before all were

    def checks(self) -> Mapping[str, ValueCheck]:
        """Returns the checks of wrong values, and of those that are only 0 at the usual inputs."""
        self._look(self.usual, "in float64")
        self.inputs.clear()
        if all(name in self.given for name in self.usual):
            return self.wrong
        for scale in _SCALES:
            for feeds in self._scaled(scale):
                if self._look(feeds, f"at scale {scale:g}", deployed=scale <= 10):
                    break
        for plan in self._plans():
            feeds = self._feeds(plan)
            if self._runs(feeds) and self._look(feeds, "at other sizes"):
                break
        if small(self.check.source):
            self._search()
        for how in _MASKS if self.zeros - self.right.keys() else ():
            self._look(self._feeds(self.dims, how), f"with {how}" if str(how) else "")
        return {**self.right, **self.wrong}

    def looks(self) -> Looks:
        """Returns the inputs that were compared, and the coverage of the graph by these."""
        try:
            items = self.exact.covered(self.count) if self.compared else []
        except OnnxgradError as error:
            return Looks(tuple(self.inputs), self.ended, Coverage(why=str(error)))
        found = Coverage(tuple(i for i in items if i.kind in DECISIONS))
        return Looks(tuple(self.inputs), self.ended, found if self.compared else NOTHING_RAN)

    # ---- feeds -----------------------------------------------------------------------------------

    def _feeds(
        self, plan: Mapping[str, int], how: Variation | None = None, turn: int = 1
    ) -> dict[str, Any]:
        return self.feeder.feeds(seed=self.seed + turn, dims=dict(plan), given=self.given, how=how)

    def _scaled(self, scale: float) -> Iterator[dict[str, Any]]:
        """Yields the feeds with all floats times the scale, then with those alone that may have any
        value. Images are N(0, 1) first.
        """
        far = self._feeds(self.dims, Variation(scale=scale), 0)
        images = self._feeds(self.dims, Variation(wide=1), 0)
        bounded = {}
        for name, usual in self.usual.items():
            if name in self.given or not isinstance(usual, np.ndarray) or usual.dtype.kind != "f":
                continue
            if usual.size > 1 and 0 <= usual.min() < usual.max() <= 1:
                far[name] = images[name] * usual.dtype.type(scale)
            elif np.array_equal(far[name], usual) and not np.array_equal(usual, np.floor(usual)):
                bounded[name] = usual * usual.dtype.type(scale)
        changed = any(not _same(far[name], usual) for name, usual in self.usual.items())
        if bounded:
            yield {**far, **bounded}
            for name, value in bounded.items() if len(bounded) > 1 else ():
                yield {**far, name: value}
        if changed:
            yield far

    def _plans(self) -> Iterator[dict[str, int]]:
        if getattr(self.check.found, "sizes", None) is not None:
            return  # the numbers of seeds fit each other
        fixed = {name: size for name, size in self.dims.items() if name in self._fixed}
        for plan in dim_plans(self.check.source, fixed)[: _PLANS + 1]:
            if plan != {**plan, **self.dims}:
                yield plan

    @cached_property
    def _fixed(self) -> set[str]:
        return set(bound_by(self.check.source, self.given))

    def _left(self) -> float:
        return self.deadline - time.monotonic()

    def _runs(self, feeds: Mapping[str, Any]) -> bool:
        """Whether the model runs: the reference accepts sizes that an operator does not have, such
        as less than a kernel.
        """
        try:
            self.check.run(self.check.source, feeds)
        except OnnxgradError:
            return False
        return True

    # ---- one look --------------------------------------------------------------------------------

    def _look(self, feeds: Mapping[str, Any], words: str, *, deployed: bool = False) -> bool:
        """Compares derivatives with differences at these feeds. Returns whether the targets are
        finite there, or the time is up. Only a comparison that ended in time adds to the coverage.
        """
        if self._left() <= 0:
            self.ended = True
            return True
        self._score("mark")
        # the model need not run here, nor be finite
        with contextlib.suppress(OnnxgradError), np.errstate(all="ignore"):
            if self._compared(feeds, words, deployed) and self._left() > 0:
                self.inputs.append(words or "with another seed")
                self.compared = True
                self._score("keep")
                return True
        self.ended = self.ended or self._left() <= 0
        self._score("back")
        if not self.compared:  # nothing was saved before the first run
            self.count = _count()
        return self.ended

    def _counting(
        self,
        model: ModelProto,
        feeds: Mapping[str, Any],
        outputs: Sequence[str] | None = None,
        apart: Path | None = None,
    ) -> dict[str, Any]:
        return self.exact.run(
            feeds, outputs=outputs, seconds=self._left(), count=self.count, apart=apart
        )

    def _count(self, feeds: Mapping[str, Any]) -> None:
        """Adds a run to the coverage."""
        base = self.base  # of the same shapes, unless the sizes differ
        if base is None or any(np.shape(v) != np.shape(self.usual[n]) for n, v in feeds.items()):
            base = self.check.at_rest(self.reference, feeds, self._left())
        self.check.along(self._counting, feeds, base, self.seed, names=self._groups(base)[0])

    def _compared(self, feeds: Mapping[str, Any], words: str, deployed: bool) -> bool:
        check, probe = self.check, self.check.probe
        still = check.still(feeds)
        base = check.at_rest(self.reference, feeds, self._left())
        if not all(np.isfinite(flat(base[out])).all() for out in probe.outputs.values()):
            return False
        self.base = self.base or base
        for names in self._groups(base):
            found = check.along(self._counting, feeds, base, self.seed, names=names)
            at = spot(self.reference, still, found.weights, base)
            zeros = frozenset(self.zeros - self.right.keys())
            look = Look(
                check, feeds, base, replace(at, until=self.deadline), found, self.exact, self.seed,
                zeros, words,
            )  # fmt: skip
            del found  # the look replaces it
            look.nan(self._counting, "float64")
            if deployed:
                with contextlib.suppress(OnnxgradError):
                    look.nan(check.run, "float32")
            look.joint()
            self.wrong = {**look.wrong, **self.wrong}
            self.right |= look.right
            if self._left() <= 0:
                break
        return True

    def _groups(self, base: Mapping[str, Any]) -> list[list[str]]:
        """Returns the values in groups that move together: several times as much memory as a group
        is needed in float64. Products with derivatives move all values at once.
        """
        values = [*self.check.found.values]
        if self.check.found.kind != "gradient" or not self.check.stored:
            return [values]
        sizes = {name: math.prod(flat_shape(base[name])) for name in values}
        groups, most = [[values[0]]], sum(sizes.values()) / _GROUPS
        for name in values[1:]:
            if sum(sizes[n] for n in groups[-1]) + sizes[name] > most:
                groups.append([])
            groups[-1].append(name)
        return groups

    # ---- the search ------------------------------------------------------------------------------

    def _search(self) -> None:
        """Looks at inputs of one sign, then at those that reach more thresholds and branches of the
        graph.
        """
        for sign in (1, -1):
            how = Variation(scale=_SCALES[0], sign=sign)
            self._look(self._feeds(self.dims, how, 0), f"with {how}")
        for turn, how in enumerate(SEARCH, 2):
            if not self._missing():
                return
            self._better(self._feeds(self.dims, how, turn), f"with {how}")
        flow, idle = DataFlow(self.check.graph).at(self.dims), 0
        for turn in range(_ROUNDS):
            if not self._missing() or idle == _IDLE:
                return
            wishes = Wishes()
            for goal in self._goals():
                wishes.add(solved(flow, goal))
            better = [self._better(feeds, words) for feeds, words in self._wanted(wishes, turn)]
            idle = 0 if any(better) else idle + 1

    def _wanted(self, wishes: Wishes, turn: int) -> Iterator[tuple[dict[str, Any], str]]:
        """Yields feeds of wanted sizes, and feeds with wanted values beside the kinks."""
        for symbol in wishes.sizes.keys() & (self.dims.keys() - self._fixed):
            for size in sorted(wishes.sizes[symbol])[:_SIZES]:
                yield self._feeds({**self.dims, symbol: size}), f"at {symbol} = {size}"
        feeds, names = self._feeds(self.dims, None, 0), []
        for name, arrays in parted(wishes.values, True).items():
            usual = feeds.get(name)
            if name in self.given or not isinstance(usual, np.ndarray):
                continue
            beside = [_beside(a) if usual.dtype.kind == "f" else a for a in arrays]
            limits = self.feeder.limits(name, self.dims)
            made = filled(usual, beside, turn, self.seed, limits)
            if made is not None:
                feeds[name] = made
                names.append(name)
        if names:
            yield feeds, f"at thresholds of {', '.join(names)}"

    def _goals(self) -> list[Any]:
        try:
            return self.exact.goals(self.count)
        except OnnxgradError:
            return []

    def _score(self, then: str = "") -> tuple[int, int]:
        """Returns how much of the decisions was reached, and how many are missing."""
        try:
            found = [i for i in self.exact.covered(self.count, then) if i.kind in DECISIONS]
        except OnnxgradError:
            return 0, 0
        return sum(map(progress, found)), sum(i.of - i.reached for i in found)

    def _missing(self) -> int:
        return self._score()[1]

    def _better(self, feeds: Mapping[str, Any], words: str) -> bool:
        """Looks at feeds if they reach more."""
        if self._left() <= 0:
            self.ended = True
            return False
        before, more = self._score("mark")[0], False
        with contextlib.suppress(OnnxgradError), np.errstate(all="ignore"):
            self._count(feeds)
            more = self._score()[0] > before
        self._score("back")
        return more and self._look(feeds, words)


def _count() -> object:
    """Returns a new number for the runs that are counted together."""
    return "further", os.getpid(), next(_MARKS)


# inputs at which a value that was 0 may matter
_MASKS = (
    Variation(), Variation(mask=1), Variation(mask=0), Variation(scale=8.0, mask=1),
    Variation(wide=1), Variation(sign=1), Variation(sign=-1),
)  # fmt: skip


def _same(a: Any, b: Any) -> bool:
    return a is b or (isinstance(a, np.ndarray) and np.array_equal(a, b))


def _beside(wanted: Any) -> Any:
    """Returns wanted floats moved off the kinks at which they lie."""
    return wanted + _OFF_KINKS * np.maximum(1.0, np.abs(wanted))
