"""The coverage in a proof's report: one line, and details on demand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field

from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.results import Plain
from onnxgrad.verify.coverage.counters import DECISIONS, DEFAULTS, ROWS, WEIGHTS, Item, of_several
from onnxgrad.wording import counted, option

_TABLES = 2  # in the line
_NAMED = 3  # decisions that were not reached, in the line
_WORDS = {DEFAULTS: "defaults overridden", WEIGHTS: "elements of weights"}


@frozen
class Sizes(Plain):
    """The sizes of one symbolic dimension that ran, and those that did not, with the reason.
    `empty`: why size 0 was not compared.
    """

    json_keys = "ran refused empty"

    symbol: str
    ran: tuple[int, ...]
    refused: Mapping[int, str] = field(default_factory=dict)
    empty: str = ""

    def with_those_of(self, other: Sizes) -> Sizes:
        """Returns the sizes of both."""
        ran = tuple(sorted({*self.ran, *other.ran}))
        refused = {
            size: why for size, why in {**other.refused, **self.refused}.items() if size not in ran
        }
        return Sizes(self.symbol, ran, refused, other.empty or self.empty)

    def __str__(self) -> str:
        ran = f"{self.symbol}: ran at {', '.join(map(str, self.ran)) or 'no size'}"
        return f"{ran}; 0 {self.empty}" if self.empty else ran


@frozen
class Coverage(Plain):
    """The coverage of a proof.

    items: the decisions of the original (thresholds, branches, loop turns, defaults), its tables
    and its weights. second: the decisions of the second model. sizes: the sizes of every symbolic
    dimension. unread: by table, how many rows differ between the models and were read by no run.
    unmet: by weight, how many elements differ and mattered in no run. why: why nothing was counted.
    """

    json_keys = "share line why items second sizes=by_symbol unread unmet"

    items: tuple[Item, ...] = ()
    second: tuple[Item, ...] = ()
    sizes: tuple[Sizes, ...] = ()
    unread: Mapping[str, int] = field(default_factory=dict)
    unmet: Mapping[str, int] = field(default_factory=dict)
    why: str = ""

    @staticmethod
    def merge(parts: Sequence[Coverage], places: Sequence[str]) -> Coverage:
        """Returns what several proofs cover. Runs of one model count together; the items of another
        model name its place.
        """
        known = [(place, part) for place, part in zip(places, parts) if not part.why]
        if len(known) < 2:
            return known[0][1] if known else parts[0]
        sizes: dict[str, Sizes] = {}
        unread: dict[str, int] = {}
        unmet: dict[str, int] = {}
        for _, part in known:
            for size in part.sizes:
                sizes[size.symbol] = size.with_those_of(sizes.get(size.symbol, size))
            unread |= {k: min(n, unread.get(k, n)) for k, n in part.unread.items()}
            unmet |= {k: min(n, unmet.get(k, n)) for k, n in part.unmet.items()}
        items = of_several((place, part.items) for place, part in known)
        second = of_several((place, part.second) for place, part in known)
        return Coverage(items, second, tuple(sizes.values()), unread, unmet)

    @property
    def by_symbol(self) -> dict[str, Sizes]:
        """The sizes of each symbolic dimension by its name."""
        return {s.symbol: s for s in self.sizes}

    @property
    def share(self) -> float | None:
        """The reached share of thresholds, branches, loop turns and defaults of both models; 1.0 if
        there are none, None if the share is unknown.
        """
        if self.why:
            return None
        reached, of = _total(i for i in self._decisions)
        return reached / of if of else 1.0

    @property
    def _decisions(self) -> list[Item]:
        """The decisions of both models; those that both have, with the same result, once."""
        both = [*self.items, *self._others]
        return [i for i in both if i.kind in DECISIONS]

    @property
    def _others(self) -> list[Item]:
        """The items of the second model that are not those of the original."""
        left = list(self.items)
        found = []
        for item in self.second:
            if item in left:
                left.remove(item)
            elif item.kind in DECISIONS:
                found.append(item)
        return found

    @property
    def missed(self) -> list[str]:
        """Descriptions of the decisions that no run reached."""
        ours = [f"{i.where}: {i.missing}" for i in self.items if i.missing and i.kind in DECISIONS]
        theirs = [f"second model: {i.where}: {i.missing}" for i in self._others if i.missing]
        return [*ours, *theirs]

    @property
    def line(self) -> str:
        """All counts in one line; empty if there is nothing to cover."""
        if self.why:
            return f"covered: unknown ({self.why})"
        parts = [*_decided(self.items), *_tables(self.items)]
        reached, of = _total(i for i in self.items if i.kind == WEIGHTS)
        if reached < of:
            parts.append(f"{reached:,} of {of:,} {_WORDS[WEIGHTS]}")
        second = [
            text
            for kind in DECISIONS
            if _missing(self.second, kind) > _missing(self.items, kind)
            for text in _decided(i for i in self.second if i.kind == kind)
        ]
        if second:
            parts.append(f"and of the second model {', '.join(second)}")
        missed, more = self.missed[:_NAMED], len(self.missed) - _NAMED
        rest = [f"{more:,} more"] if more > 0 else []
        names = f"; not reached: {'; '.join([*missed, *rest])}" if missed else ""
        return f"covered: {', '.join(parts)}{names}" if parts else ""

    @property
    def warnings(self) -> tuple[str, ...]:
        """The sizes that did not run, as in "batch=2 does not run in onnxruntime: ..."."""
        return tuple(
            f"{sizes.symbol}={size} {why}"
            for sizes in self.sizes
            for size, why in sizes.refused.items()
        )

    @property
    def details(self) -> tuple[str, ...]:
        """The items that were not reached, and the sizes that ran."""
        return (
            *(f"{_place(item)}: {item.missing}" for item in self.items if item.missing),
            *(f"second model: {i.where}: {i.missing}" for i in self._others if i.missing),
            *(
                f"{table!r}: {counted(n, 'row')} that differ were read by no run"
                for table, n in self.unread.items()
            ),
            *(
                f"{name!r}: {counted(n, 'element')} that differ mattered in no run"
                for name, n in self.unmet.items()
            ),
            *map(str, self.sizes),
        )

    def lacks(self, wanted: float) -> str:
        """Returns why the coverage is below the wanted share; empty if it is not."""
        if self.share is not None and self.share >= wanted:
            return ""
        wish = f"{option('--coverage', 'coverage=')} asks for {wanted:.4g}"
        if self.share is None:
            return f"coverage is unknown ({self.why}), and {wish}"
        missed = sum(i.of - i.reached for i in self._decisions)
        return f"coverage is {self.share:.4g}, and {wish} ({missed:,} not reached; -v lists them)"


NOT_ASKED = "onnxruntime alone ran"
NOTHING_RAN = Coverage(why="nothing ran")


def wanted_share(text: str | float) -> float:
    """Returns the share that `>= 95%`, `95%` or 0.95 means. Raises InputError."""
    number = text
    if isinstance(text, str):
        plain = text.strip().removeprefix(">=").strip()
        scale = 100.0 if plain.endswith("%") else 1.0
        try:
            number = float(plain.removesuffix("%")) / scale
        except ValueError:
            number = -1.0
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 <= number <= 1:
        where = option("--coverage", "coverage")
        raise InputError(f"{where}: write a share such as '>= 95%' or 0.95; got {text!r:.80}")
    return float(number)


def _total(items: Iterable[Item]) -> tuple[int, int]:
    found = list(items)
    return sum(i.reached for i in found), sum(i.of for i in found)


def _missing(items: Iterable[Item], kind: str) -> int:
    reached, of = _total(i for i in items if i.kind == kind)
    return of - reached


def _decided(items: Iterable[Item]) -> list[str]:
    found = list(items)
    totals = {kind: _total(i for i in found if i.kind == kind) for kind in DECISIONS}
    return [f"{a:,} of {b:,} {_WORDS.get(kind, kind)}" for kind, (a, b) in totals.items() if b]


def _tables(items: Iterable[Item]) -> list[str]:
    """Returns texts on the least read tables, and the number of the others."""
    found = sorted((i for i in items if i.kind == ROWS), key=lambda i: i.reached / i.of)
    texts = [f"{i.reached:,} of {i.of:,} rows of {i.where!r}" for i in found[:_TABLES]]
    more = [i for i in found[_TABLES:] if i.reached < i.of]
    return [*texts, f"{counted(len(more), 'more table')} in part"] if more else texts


def _place(item: Item) -> str:
    return f"{item.kind} of {item.where!r}" if item.kind in (ROWS, WEIGHTS) else item.where
