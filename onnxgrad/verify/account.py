"""What accumulates during one proof: what is known of the original on each feed, and what was
found to differ.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from onnxgrad.verify.compare import NOT_PROVED, Difference, base_name, worst
from onnxgrad.verify.feeds.proof_cases import Chosen, Results
from onnxgrad.verify.report import Case, Leg


@dataclass
class Trial:
    """One case of a proof: its feeds, and what became known about the original on them."""

    case: Case
    feeds: Results
    # of onnxruntime with optimisations off; of the reference where that leg alone runs
    expected: Results
    exact: Results | None = None  # of the float64 reference
    noise: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, chosen: Chosen) -> Trial:
        """A case that was chosen, with the run that chose it."""
        return cls(chosen.case, chosen.feeds, chosen.results)

    def widen(self, own: Mapping[str, float]) -> None:
        """The original's runs on these feeds differ by as much."""
        for name, value in own.items():
            self.noise[name] = max(self.noise.get(name, 0.0), value)


@dataclass
class Found:
    """The worst difference of every output in every leg, how much was compared, and what a
    reader should know.
    """

    differences: dict[tuple[str, str], Difference] = field(default_factory=dict)
    # (leg, which pass over the feeds, output)
    counts: dict[tuple[str, str, str], int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    unproved: list[str] = field(default_factory=list)
    random: Collection[str] = ()  # outputs whose doubts are said already

    def add(
        self, leg: str, found: Iterable[Difference], outputs: Results | None = None, over: str = ""
    ) -> None:
        """Take the differences of one case; `over` tells passes over the same feeds apart, which
        count once.
        """
        for difference in found:
            key = (leg, difference.output)
            chosen = worst([self.differences.get(key, difference), difference])
            self.differences[key] = replace(chosen or difference, leg=leg)
            place = (leg, over, base_name(difference.output, outputs or {}))
            self.counts[place] = self.counts.get(place, 0) + difference.compared

    def reasons(self) -> tuple[str, ...]:
        """Why nothing is known: of a whole leg or output, or of a difference that the original's
        own noise would excuse.
        """
        doubts = {
            d.output: d.doubt
            for d in self.differences.values()
            if d.answer == NOT_PROVED and d.output not in self.random
        }
        return (*self.unproved, *doubts.values())

    def compared(self, leg: str | None = None) -> dict[str, int]:
        """Finite elements of each output over all feeds: of the leg and pass that compared most."""
        most: dict[str, int] = {}
        for (where, _, output), count in self.counts.items():
            if leg in (None, where):
                most[output] = max(most.get(output, 0), count)
        return most

    def leg(self, name: str, cases: int, why: str = "") -> Leg:
        """The account of a leg that ran on so many cases."""
        own = [difference for (leg, _), difference in self.differences.items() if leg == name]
        return Leg(name, cases > 0, why, cases, worst(own), sum(self.compared(name).values()))
