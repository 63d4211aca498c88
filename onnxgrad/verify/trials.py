"""The state of one proof: the original's results for each feed, and the differences found."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from onnx import ModelProto

from onnxgrad.errors import InputError
from onnxgrad.verify.compare import (
    DIFFERENT,
    NOT_PROVED,
    Difference,
    Limit,
    base_name,
    compare,
    finite_elements,
    noise,
    worst,
)
from onnxgrad.verify.feeds.proof_cases import Chosen, Results
from onnxgrad.verify.interface import Demands
from onnxgrad.verify.output_parts import Joins, Part
from onnxgrad.verify.report import Case, Check
from onnxgrad.verify.ties import Ties
from onnxgrad.verify.tolerance import AT_TIES, CAP, CHAOTIC, Ranges, exact, widened
from onnxgrad.wording import option, shape_text

_AGREES = 1e-3  # of the largest value, in an optional case


@dataclass
class Trial:
    """One case of a proof: its feeds, and the known results of the original."""

    case: Case
    feeds: Results
    # from onnxruntime with optimisations off; from the reference if only that check runs
    expected: Results
    exact: Results | None = None  # from the float64 reference
    answer: Results | None = None  # the second model's, likewise, if it ran already
    deployed: Results | None = None  # the original's, as deployed with optimisations
    noise: dict[str, float] = field(default_factory=dict)
    ranges: Ranges = field(default_factory=dict)  # of exact outputs over the original's own runs
    ties: Ties | None = None
    parts: tuple[Part, ...] = ()
    excuse: Mapping[str, str] = field(default_factory=dict)  # output -> mask of its rows
    _doubtful: dict[float, Ranges] = field(default_factory=dict)  # by the distance of ties

    @classmethod
    def of(cls, chosen: Chosen, excuse: Mapping[str, str]) -> Trial:
        """Returns the trial of a chosen case, with the results that choosing it produced."""
        return cls(chosen.case, chosen.feeds, chosen.results, excuse=excuse)

    @property
    def alive(self) -> Results:
        """The elements to compare, as a mask for each output with excused rows. Raises InputError
        for an unknown name, and if the shape of a mask is not the beginning of the output's.
        """
        found: Results = {}
        for name, mask in self.excuse.items():
            where = f"{option('--excuse', 'excuse:')} {name}={mask}"
            for kind, given, known in (
                ("output", name, self.expected),
                ("input", mask, self.feeds),
            ):
                if not isinstance(known.get(given), np.ndarray):
                    names = ", ".join(known)
                    raise InputError(f"{where}: there is no {kind} {given!r} (there are {names})")
            shape, rows = np.asarray(self.expected[name]).shape, np.asarray(self.feeds[mask]) != 0
            if shape[: rows.ndim] != rows.shape:
                raise InputError(
                    f"{where}: the shape of {name!r}, {shape_text(shape)}, must begin with that of "
                    f"{mask!r}, {shape_text(rows.shape)}"
                )
            wide = rows.reshape(rows.shape + (1,) * (len(shape) - rows.ndim))
            found[name] = np.broadcast_to(wide, shape)
        return {**found, **{p.name: p.of(found) for p in self.parts if p.output in found}}

    def agrees(self, again: Results) -> bool:
        """True if another run of the original on these feeds gives the same results. Otherwise the
        case cannot judge a second model.
        """
        return max(noise([self.expected, again], self.alive).values(), default=0.0) <= _AGREES

    def divide(self, parts: Iterable[Part]) -> None:
        """Adds small parts of outputs as outputs."""
        self.parts = tuple(parts)
        self.expected = self.with_parts(self.expected)
        self.exact = None if self.exact is None else self.with_parts(self.exact)

    def with_parts(self, results: Results) -> Results:
        """Returns the results with their small parts added by name."""
        return {**results, **{part.name: part.of(results) for part in self.parts}}

    def deploys(self, got: Results) -> bool:
        """True if the results have exactly the bits of the original as deployed. A model that
        quantises may differ from itself, with and without optimisations, by more than any
        tolerance.
        """
        known = self.deployed or {}
        return bool(known) and len(same_bits(known, got)) == len(known)

    def widen(self, other: Results) -> None:
        """Adds one more legal run of the original on these feeds to the noise and the ranges."""
        for name, value in noise([self.expected, other], self.alive).items():
            self.noise[name] = max(self.noise.get(name, 0.0), value)
        widened(self.ranges, self.expected, other)

    def judge(
        self,
        expected: Results,
        got: Results,
        limits: Mapping[str, Limit],
        near: Mapping[str, float],
    ) -> list[Difference]:
        """Returns the differences. Exact elements are excused if they change between the original's
        runs, or lie so `near` to a tie (by output, relative to the largest float beside them).
        """
        got = self.with_parts(got)
        alive = self.alive
        found = compare(expected, got, limits, self.ranges, alive)
        wrong = [d.output for d in found if not d.ok and not d.reason and not d.found]
        amount = max(
            (near.get(n, 0.0) for n in wrong if exact(expected.get(n)) is not None), default=0.0
        )
        if self.ties is not None and amount:
            ranges = self._ranges_near(self.ties, expected, amount)
            found = compare(expected, got, limits, ranges, alive)
        parts = {part.name for part in self.parts}
        return [replace(d, part=d.output in parts) for d in found]

    def _ranges_near(self, ties: Ties, expected: Results, amount: float) -> Ranges:
        """Returns the ranges of exact outputs, widened if a float beside them lies this near to a
        tie.
        """
        if amount not in self._doubtful:
            ranges = dict(self.ranges)
            ties.widen(ranges, expected, self.feeds, amount)
            self._doubtful[amount] = ranges
        return self._doubtful[amount]


def same_bits(known: Results, got: Results) -> set[str]:
    """Returns the names of the arrays of `known` that `got` has with the same bits."""
    return {
        name
        for name, value in known.items()
        if isinstance(value, np.ndarray)
        and isinstance(other := got.get(name), np.ndarray)
        and value.dtype == other.dtype
        and value.dtype.kind != "O"
        and value.shape == other.shape
        and value.tobytes() == other.tobytes()
    }


def excused(trials: Collection[Trial]) -> Iterator[str]:
    """Yields a sentence for each output with excused rows."""
    for name, mask in next((t.excuse for t in trials), {}).items():
        kept = [np.asarray(t.alive[name]) for t in trials]
        total, left = sum(a.size for a in kept), sum(int(a.size - a.sum()) for a in kept)
        yield f"{name}: {left:,} of {total:,} elements are not compared, where {mask} is 0"


def divided(model: ModelProto, trials: Collection[Trial], demands: Demands) -> list[str]:
    """Divides the outputs that join large and small values, except those with a bound. Returns
    notes on outputs that cannot be divided.
    """
    joins, unknown = Joins(model), dict[str, None]()
    for trial in trials if joins.joins else ():
        free = {
            name: value
            for name, value in trial.expected.items()
            if demands.bounds.bound(name) is None and name not in demands.random
        }
        parts, left = joins.parts(free)
        trial.divide(parts)
        unknown |= dict.fromkeys(left)
    return [f"{name} joins parts of unknown sizes: small ones are not judged" for name in unknown]


@dataclass
class Found:
    """The findings of a proof: the worst difference of every output in every check, the number of
    compared elements, and notes for the reader.
    """

    differences: dict[tuple[str, str], Difference] = field(default_factory=dict)
    # by (check, pass over the feeds, output)
    counts: dict[tuple[str, str, str], int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    unproved: list[str] = field(default_factory=list)
    random: Collection[str] = ()  # outputs whose doubts are already listed
    excuses: dict[tuple[str, str, str], int] = field(default_factory=dict)  # as counts
    # (check, pass, output) -> its finite elements, and all of them
    finite: dict[tuple[str, str, str], tuple[int, int]] = field(default_factory=dict)
    settled: dict[str, None] = field(default_factory=dict)  # outputs that float64 proves
    # symbol -> why only the original runs if it is 0
    not_at_zero: dict[str, str] = field(default_factory=dict)
    small: dict[str, str] = field(default_factory=dict)  # parts of outputs that are not judged
    # providers that have no kernel for any node of the second model
    idle: dict[str, None] = field(default_factory=dict)

    def ran_on(self, provider: str) -> str:
        """Returns the provider that really ran the second model."""
        return "cpu" if provider in self.idle else provider

    def add(
        self,
        check: str,
        found: Iterable[Difference],
        outputs: Results | None = None,
        over: str = "",
    ) -> None:
        """Adds the differences of one case. `over` names a pass over the feeds; elements count once
        for several passes over the same feeds.
        """
        found = list(found)
        parts = {difference.output for difference in found if difference.part}
        for name, value in (outputs or {}).items():
            if name not in parts:
                before, now = self.finite.get((check, over, name), (0, 0)), finite_elements(value)
                self.finite[check, over, name] = (before[0] + now[0], before[1] + now[1])
        for difference in found:
            if difference.part and difference.answer == NOT_PROVED:
                self.small[difference.output] = (
                    f"{difference.doubt}: too small beside the rest to be judged"
                )
                continue
            key = (check, difference.output)
            chosen = worst([self.differences.get(key, difference), difference])
            self.differences[key] = replace(chosen or difference, check=check)
            if difference.part:
                continue  # its elements count with the whole output
            place = (check, over, base_name(difference.output, outputs or {}))
            self.counts[place] = self.counts.get(place, 0) + difference.compared
            self.excuses[place] = self.excuses.get(place, 0) + difference.excused

    def accept_rounding(self) -> None:
        """Accepts differences in onnxruntime that do not exceed the original's own, and elements at
        ties, if the float64 check ran on the same inputs and found none. A model that quantises
        turns one bit of rounding into a step.
        """
        for (check, name), difference in self.differences.items():
            exact = self.differences.get(("float64", name))
            if check != "onnxruntime" or exact is None or not exact.compared or exact.reason:
                continue
            excused = {out for (of, _, out), n in self.excuses.items() if n and of == "float64"}
            if exact.rel or name in excused:
                continue
            self.settled[name] = None
            if difference.answer == NOT_PROVED:
                self.differences[check, name] = replace(difference, tolerance=difference.allowed)
                self.notes.append(f"{difference.doubt}; in float64 both have the same bits")

    def accept_own_noise(self, outputs: Collection[str]) -> None:
        """Accepts differences that do not exceed the original's own in these outputs, whose bits
        the second model computes too: the noise of a gradient that is 0 proves nothing else.
        """
        for (check, name), difference in self.differences.items():
            if name in outputs and difference.answer == NOT_PROVED:
                self.differences[check, name] = replace(difference, tolerance=difference.allowed)

    def doubt_rounding(self, computed: Collection[str], why: str) -> None:
        """Takes back that onnxruntime refutes outputs of recomputed weights, if the float64 check
        did not finish: without it, the noise of the original is not known. `why`: the reason.
        """
        doubts = []
        for (check, name), difference in self.differences.items():
            exact = self.differences.get(("float64", name))
            if check != "onnxruntime" or name not in computed or (exact and not exact.ok):
                continue
            if difference.answer == DIFFERENT and not difference.wanted:
                self.differences[check, name] = replace(difference, allowed=CAP["float64"])
                doubts.append(name)
        if any(self.differences["onnxruntime", name].answer == NOT_PROVED for name in doubts):
            self.unproved.append(f"rounding may explain that, and the float64 check is {why}")

    def failing(self) -> list[Difference]:
        """Returns the differences of numbers that fail the proof; none if the models differ
        otherwise.
        """
        found = [d for d in self.differences.values() if not d.ok]
        return [] if any(d.output.startswith("(") for d in found) else found

    def many_ties(self) -> list[str]:
        """Returns the outputs of which too large a share differs at ties."""
        return [place[2] for place, _, share in self._excused() if share > AT_TIES]

    def on_noise(self) -> list[Difference]:
        """Returns the differences that count as equal only because the original differs from itself
        as much.
        """
        exact = {name: d for (check, name), d in self.differences.items() if check == "float64"}
        return [
            d
            for (check, name), d in self.differences.items()
            if d.ok and not d.found and d is exact.get(name, d) and d.rel > CHAOTIC
            and d.noise > CHAOTIC
        ]  # fmt: skip

    def reasons(self) -> tuple[str, ...]:
        """Returns why nothing is proved about a check, an output, or a difference that the
        original's own noise could explain.
        """
        bound = f" ({option('--metric worst=X', 'metric=')} sets a bound)"
        doubts = {
            d.output: d.doubt + (bound if math.isfinite(d.rel) else "")
            for d in self.differences.values()
            if d.answer == NOT_PROVED and d.output not in self.random
        }
        many = dict.fromkeys(words for _, words, share in self._excused() if share > AT_TIES)
        return (*self.unproved, *doubts.values(), *many)

    def remarks(self) -> tuple[str, ...]:
        """Returns the notes, including those on excused elements and on values that are
        not finite.
        """
        few = dict.fromkeys(words for _, words, share in self._excused() if share <= AT_TIES)
        halves = {
            output: f"{output}: {finite:,} of {total:,} compared; the others are NaN or infinite"
            for (_, _, output), (finite, total) in self.finite.items()
            if 0 < finite < total
        }
        return (*self.notes, *few, *self.small.values(), *halves.values())

    def infinite(self) -> tuple[str, ...]:
        """Returns the outputs with elements that are NaN or infinite."""
        found = (name for (*_, name), (finite, total) in self.finite.items() if finite < total)
        return tuple(dict.fromkeys(found))

    def _excused(self) -> Iterator[tuple[tuple[str, str, str], str, float]]:
        """Yields the place of each output with elements that differ and are excused, a sentence and
        their share; 0 if float64 proves the output.
        """
        for place, count in self.excuses.items():
            if count:
                total = max(self.counts[place], 1)
                words = f"{count:,} of {total:,} elements of {place[2]} differ at ties"
                yield place, words, 0.0 if place[2] in self.settled else count / total

    def compared(self, check: str | None = None) -> dict[str, int]:
        """Returns the finite elements of each output over all feeds, for the check that compared
        most.
        """
        most: dict[str, int] = {}
        for (where, _, output), count in self.counts.items():
            if check in (None, where):
                most[output] = max(most.get(output, 0), count)
        return most

    def empty(self, outputs: Iterable[str], allowed: Collection[str]) -> list[str]:
        """Returns the outputs that were not compared at all, if nothing else is wrong."""
        compared = self.compared()
        if self.unproved or not all(d.ok for d in self.differences.values()):
            return []
        return [name for name in outputs if not compared.get(name) and name not in allowed]

    def check(self, name: str, cases: int, why: str = "") -> Check:
        """Returns the result of a check that ran on this many cases."""
        own = [difference for (check, _), difference in self.differences.items() if check == name]
        return Check(name, cases > 0, why, cases, worst(own), sum(self.compared(name).values()))
