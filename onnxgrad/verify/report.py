"""The report of a proof."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from onnxgrad.frozen import frozen
from onnxgrad.results import Plain
from onnxgrad.verify.compare import DIFFERENT, EQUAL, NOT_PROVED, Difference, worst
from onnxgrad.verify.coverage.summary import NOT_ASKED, NOTHING_RAN, Coverage
from onnxgrad.verify.evidence import Layers, NonFinite, Regions, Scales
from onnxgrad.verify.exact.window import Decision
from onnxgrad.wording import counted

WITHIN = "within bounds"  # the verdict if the user set bounds
_FEW = 3  # reasons in one line


@frozen
class Check(Plain):
    """The result of one check: whether it ran, and if not (or only in part) why. `compared`: the
    number of finite elements of all outputs, over all feeds.
    """

    json_keys = "ran why cases compared worst"

    name: str
    ran: bool
    why: str = ""
    cases: int = 0
    worst: Difference | None = None
    compared: int = 0

    @property
    def gap(self) -> str:
        """The part of the proof that this check leaves open, for the verdict; empty if it ran on
        everything.
        """
        if not self.why:
            return ""
        return f"{self.name} check {'only in part' if self.ran else 'did not run'} ({self.why})"

    def __str__(self) -> str:
        if not self.ran:
            return f"{self.name} check: did not run ({self.why})"
        result = (
            "bit-identical"
            if self.worst is None or (self.worst.rel == 0 and not self.worst.found)
            else f"worst {self.worst}"
        )
        cases = f"{counted(self.cases, 'case')}, {elements(self.compared)}"
        return f"{self.name} check: {cases}, {result}" + (f" ({self.why})" if self.why else "")


def elements(compared: int) -> str:
    """Returns the number of compared elements, in words."""
    return f"{counted(compared, 'finite element')} compared"


@frozen
class Case:
    """One set of feeds: the sizes of the symbolic dimensions, and the seed (None: the user's own
    inputs).

    `edges`: the feeds are an edge case, with zeros, ties, both sides of comparisons, other switches
    and inverted masks. `how`: a description of other unusual feeds. `place`: the proof that the
    case belongs to, if a report joins several.
    """

    dims: Mapping[str, int]
    seed: int | None
    edges: bool = False
    how: str = ""
    place: str = ""

    def __str__(self) -> str:
        places = [self.place] if self.place else []
        sizes = ", ".join([*(f"{name}={size}" for name, size in self.dims.items()), *places])
        seed = "given inputs" if self.seed is None else f"seed {self.seed}"
        unusual = "zeros and ties" if self.edges else self.how
        return f"{seed}{f' with {unusual}' if unusual else ''}{f', {sizes}' if sizes else ''}"


@frozen
class Report(Plain):
    """The result of a proof. A report is true if `ok`.

    `differences`: the worst difference of every output and check. `compared`: the finite elements
    of each output over all feeds. `unproved`: why nothing is proved. `unstable`: outputs whose own
    noise is large. `bounds`: the user's bounds. `coverage`: what the runs reached. `idle`:
    requested providers that have no kernel for any node of the result. `around`: operators of the
    custom nodes that cannot run here, whose operands were compared instead. `layers`: the values
    inside both models. `regions`: the comparison between discontinuities, if there was one.
    `exact`: whether both models are the same algebra; it leaves the verdict unchanged. `infinite`:
    outputs of the original with NaN or infinite elements. `non_finite`: the comparison on inputs
    with NaN and infinite values, which leaves the verdict unchanged, too. `scales`: how far
    inputs may grow beside float16 values.
    """

    json_keys = (
        "ok verdict summary unproved bounds provider idle around regions layers non_finite scales "
        "exact worst compared checks cases differences unstable notes coverage noise seconds:.3f"
    )

    ok: bool
    differences: tuple[Difference, ...]
    checks: Mapping[str, Check]
    cases: tuple[Case, ...]
    provider: str = "cpu"
    unstable: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    noise: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    compared: Mapping[str, int] = field(default_factory=dict)
    unproved: tuple[str, ...] = ()
    bounds: str = ""
    coverage: Coverage = NOTHING_RAN
    idle: tuple[str, ...] = ()
    around: tuple[str, ...] = ()
    layers: Layers | None = None
    regions: Regions | None = None
    exact: Decision | None = None
    infinite: tuple[str, ...] = ()
    non_finite: NonFinite | None = None
    scales: Scales | None = None

    def __bool__(self) -> bool:
        return self.ok

    @property
    def worst(self) -> Difference | None:
        """The difference that fails most, or comes nearest to failing."""
        return worst(self.differences)

    @property
    def verdict(self) -> str:
        """`equal` (`within bounds` if the user set some), `different`, or `not proved`."""
        if any(difference.answer == DIFFERENT for difference in self.differences):
            return DIFFERENT
        if not self.ok:
            return NOT_PROVED
        return WITHIN if self.bounds else EQUAL

    @staticmethod
    def merge(reports: Sequence[Report], places: Sequence[str] = (), word: str = "on") -> Report:
        """Returns one report for several cases of a proof; with `places`, for proofs on several
        providers (`word` is "on") or at several sizes.

        With places, the names of all checks but the first report's include the provider or the
        size, and so do notes and reasons.
        """
        first = reports[0]
        if len(reports) == 1:
            return first
        named = [f"{word} {place}" if i else "" for i, place in enumerate(places)]
        named = named or [""] * len(reports)
        # providers run the same cases, sizes have cases of their own
        parts = [
            report._at(place, first, same_cases=word == "on")
            for report, place in zip(reports, named, strict=True)
        ]
        checks: dict[str, list[Check]] = {}
        found: dict[tuple[str, str], list[Difference]] = {}
        compared: dict[str, int] = {}
        noise: dict[str, float] = {}
        for r in parts:
            for check in r.checks.values():
                checks.setdefault(check.name, []).append(check)
            for d in r.differences:
                found.setdefault((d.check, d.output), []).append(d)
            for name, count in r.compared.items():
                seen = compared.get(name, 0)
                compared[name] = max(seen, count) if places else seen + count
            noise |= {k: max(v, noise.get(k, 0.0)) for k, v in r.noise.items()}
        beyond = [r.non_finite for r in parts if r.non_finite is not None]
        unknown = [
            f"{place}: coverage is unknown ({r.coverage.why})"
            for place, r in zip(named, parts)
            if place and r.coverage.why not in ("", NOT_ASKED)
        ]

        def all_of(name: str) -> tuple[Any, ...]:
            return tuple(dict.fromkeys(x for r in parts for x in getattr(r, name)))

        return replace(
            first,
            ok=all(parts),
            differences=tuple(w for group in found.values() if (w := worst(group)) is not None),
            checks={name: _check(group) for name, group in checks.items()},
            cases=tuple(case for r in parts for case in r.cases),
            provider=", ".join(dict.fromkeys(r.provider for r in parts)),
            unstable=all_of("unstable"),
            notes=(*all_of("notes"), *unknown),
            noise=noise,
            seconds=sum(r.seconds for r in parts),
            compared=compared,
            unproved=all_of("unproved"),
            coverage=Coverage.merge([r.coverage for r in parts], named),
            idle=all_of("idle"),
            infinite=all_of("infinite"),
            non_finite=min(beyond, key=lambda one: one.equal, default=None),
            scales=min(
                (r.scales for r in parts if r.scales is not None),
                key=lambda one: not one.failed,
                default=None,
            ),
        )

    def _at(self, place: str, first: Report, *, same_cases: bool) -> Report:
        """Returns the report with the place in its names, and without what the first report of
        several says.
        """
        if not place:
            return self
        new = [c for c in self.cases if c not in first.cases]
        apart = [replace(c, place=place) for c in self.cases]
        return replace(
            self,
            checks={
                f"{c.name} {place}": replace(c, name=f"{c.name} {place}")
                for c in self.checks.values()
            },
            differences=tuple(replace(d, check=f"{d.check} {place}") for d in self.differences),
            cases=tuple(new if same_cases else apart),
            notes=tuple(f"{place}: {note}" for note in self.notes if note not in first.notes),
            unproved=tuple(f"{place}: {why}" for why in self.unproved),
        )

    def checks_of(self, names: Iterable[str]) -> list[Check]:
        """Returns the checks with these names, on every provider."""
        wanted = {*names}
        return [check for name, check in self.checks.items() if name.partition(" on ")[0] in wanted]

    @property
    def boundary(self) -> str:
        """The custom nodes that did not run, and the cuts at discontinuities, for the verdict;
        empty if every node ran, and whole runs were compared.
        """
        found, operators = "", ", ".join(dict.fromkeys(self.around))
        if self.around:
            nodes = counted(len(self.around), "custom node")
            found += f", around {nodes} that did not run ({operators}),"
        if self.regions is not None and not self.regions.why:
            found += f", by regions between {counted(sum(self.regions.cuts.values()), 'cut')},"
        return found

    @property
    def gaps(self) -> str:
        """The checks that did not run, or only in part, and why; and providers on which nothing
        runs.
        """
        nothing = [f"nothing runs on {name}" for name in self.idle]
        return "; ".join([*(check.gap for check in self.checks.values() if check.gap), *nothing])

    @property
    def summary(self) -> str:
        """The verdict in one line, with its evidence or its reason."""
        if self.verdict == NOT_PROVED:
            more = len(self.unproved) - _FEW
            shown = [*self.unproved[:_FEW], *([f"and {more} more"] if more > 0 else [])]
            return f"not proved: {'; '.join(shown)}"
        if self.ok:
            bounds = f" ({self.bounds})" if self.bounds else ""
            gaps = f"; {self.gaps}" if self.gaps else ""
            return f"{self.verdict}{bounds}{self.boundary} on {self.provider}{gaps}"
        found = self.worst
        seen = 0 if found is None else self.compared.get(found.output, found.compared)
        return (
            f"DIFFERENT on {self.provider}"
            + (f": {found}" if found else "")
            + (f"; {elements(seen)}" if seen else "")
        )

    def __str__(self) -> str:
        lines = [self.summary]
        lines += [f"  {check}" for check in self.checks.values()]
        lines += [f"  ran with {case}" for case in self.cases]
        lines += [
            f"  unstable output {name}: the original disagrees with itself by "
            f"{self.noise.get(name, 0.0):.1e}"
            for name in self.unstable
        ]
        lines += [f"  {line}" for line in (self.coverage.line, *self.coverage.warnings) if line]
        lines += [f"  {line}" for line in (self.regions.lines if self.regions else ())]
        lines += [f"  {line}" for line in (self.layers.lines if self.layers else ())]
        lines += [f"  {line}" for line in (self.exact.lines if self.exact is not None else ())]
        lines += [f"  {x.line}" for x in (self.non_finite, self.scales) if x is not None]
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)


def _check(checks: Sequence[Check]) -> Check:
    """Returns one check of several cases."""
    return replace(
        next((check for check in checks if check.why), checks[0]),
        ran=any(check.ran for check in checks),
        cases=sum(check.cases for check in checks),
        compared=sum(check.compared for check in checks),
        worst=worst(check.worst for check in checks if check.worst is not None),
    )
