"""What `onnxgrad ci` found: a row per model, the worst first, then what there is to say of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnxgrad.errors import NotProved
from onnxgrad.pipeline.ci.changes import Change
from onnxgrad.pipeline.ci.outcome import STATUSES, ModelOutcome
from onnxgrad.pipeline.facts import Facts
from onnxgrad.pipeline.requirements import Held
from onnxgrad.report.html.ci import ci_reports
from onnxgrad.report.html.page import page
from onnxgrad.report.parts import (
    Part,
    Table,
    Text,
    bytes_text,
    cell,
    heading,
    line,
    number,
    seconds_text,
    share_text,
    table,
)
from onnxgrad.report.proof import place_text
from onnxgrad.report.rendering import Rendered
from onnxgrad.version import __version__
from onnxgrad.wording import counted

SCHEMA = Path(__file__).with_name("ci.schema.json")
_STYLES = {"passed": "green", "changed": "yellow", "skipped": "dim"}
_CHANGES = 12  # of each model without -v
_BYTES = ("bytes", "memory")


@dataclass(frozen=True)
class CiReport(Rendered):
    """`models` in the order of their names; `gone`: those that only the lock knows. `lock`: its
    path, `locked`: it was there, `asked`: it was to be written, `updated`: it was.
    """

    recipe: str
    models: tuple[ModelOutcome, ...]
    lock: str
    locked: bool = False
    asked: bool = False
    updated: bool = False
    gone: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        """The worst of the models'; 1 where the lock knows models that are gone."""
        stale = NotProved.exit_code if self.gone and not self.asked else 0
        return max((stale, *(m.exit_code for m in self.models)))

    @property
    def ok(self) -> bool:
        """Every model does what is required of it, and the lock knows them all."""
        return self.exit_code == 0

    @property
    def worst_first(self) -> list[ModelOutcome]:
        """The models by their status, those of one status by name."""
        return sorted(self.models, key=lambda m: (STATUSES.index(m.status), m.name))

    @property
    def counts(self) -> dict[str, int]:
        """How many models have each status, the worst first."""
        found = Counter(m.status for m in self.models)
        return {status: found[status] for status in STATUSES if found[status]}

    def to_dict(self) -> dict[str, Any]:
        """JSON's types, as `ci.schema.json` says; the models the worst first."""
        return {
            "format": "onnxgrad ci",
            "version": 1,
            "onnxgrad": __version__,
            "recipe": self.recipe,
            "exit_code": self.exit_code,
            "counts": self.counts,
            "lock": {
                "path": self.lock,
                "found": self.locked,
                "updated": self.updated,
                "gone": list(self.gone),
            },
            "models": [m.to_dict() for m in self.worst_first],
            "seconds": round(self.seconds, 3),
        }

    def to_html(self) -> str:
        """A page to look at, as one file that needs no network: each model, the worst first."""
        return page(self.recipe, ci_reports(self))

    def parts(self, verbose: bool = False) -> Iterator[Part]:
        """The table, what each model misses and what changed in it, and how many there are."""
        yield self._table()
        for model in self.worst_first:
            lines = list(model_lines(model, verbose))
            if lines:
                yield ""
                yield heading(model.name)
                yield from lines
        yield ""
        yield from self._of_lock()
        yield self._last_line()

    def _table(self) -> Table:
        timed = any(m.result is not None and m.result.latency is not None for m in self.models)
        cpu = [">CPU time"] if timed else []
        made = table("status", "model", ">nodes", ">size", ">worst", *cpu, ">time")
        for m in self.worst_first:
            made.add_row(
                cell(m.status, _STYLES.get(m.status, "bold red")),
                cell(m.name),
                *_sizes(m.given, m.result),
                *([_latency(m.result)] if timed else []),
                seconds_text(m.seconds) if m.seconds else "",
            )
        return made

    def _of_lock(self) -> Iterator[Text]:
        for name in self.gone:
            what = "taken out of the lock" if self.updated else "run `onnxgrad ci --update`"
            yield line(f"{name}: gone since {self.lock}; {what}", "dim" if self.updated else "red")
        if self.asked and not self.updated:
            yield line(f"{self.lock} not written: not every model passes", "red")
        elif not self.asked and not self.locked:
            yield line(
                f"no {self.lock} to compare with: `onnxgrad ci --update` writes it", "yellow"
            )

    def _last_line(self) -> Text:
        counts = ", ".join(f"{count} {status}" for status, count in self.counts.items())
        models = counted(len(self.models), "model")
        return line(f"{models}: {counts}; {seconds_text(self.seconds)}")


def _sizes(given: Facts | None, result: Facts | None) -> tuple[Text, Text, Text]:
    """Nodes and bytes before and after, and the worst difference of the proof."""
    if given is None:
        return line(""), line(""), line("")
    if result is None:
        return line(number(given.nodes)), line(bytes_text(given.bytes)), line("")
    share = 100 * (result.bytes - given.bytes) / given.bytes
    return (
        line(f"{number(given.nodes)} → {number(result.nodes)}"),
        line(f"{bytes_text(result.bytes)} ({share:+.1f} %)"),
        line("not proved", "yellow") if result.worst is None else line(share_text(result.worst)),
    )


def _latency(result: Facts | None) -> Text:
    timed = None if result is None else result.latency
    return line("" if timed is None else f"{timed.ratio:.2f}")


def model_lines(model: ModelOutcome, verbose: bool) -> Iterator[Text]:
    """What there is to say of one model."""
    if model.error and all(held.held for held in model.requirements):
        yield cell(f"  {model.error}", "red")
    if model.status == "different" and model.proof is not None and model.proof.worst is not None:
        yield cell(f"  {place_text(model.proof.worst)}", "red")
    yield from (_requirement(held) for held in model.requirements if verbose or not held.held)
    shown = model.changes if verbose else model.changes[:_CHANGES]
    yield from map(_change, shown)
    if len(shown) < len(model.changes):
        yield line(f"  and {len(model.changes) - len(shown)} more (-v)", "dim")
    if verbose:
        yield from (cell(f"  note: {note}", "dim") for note in model.notes)
        if model.output is not None:
            yield cell(f"  written to {model.output}", "dim")


def _requirement(held: Held) -> Text:
    found = "" if held.value is None else f", found {_number(held.name, held.value)}"
    limit = "" if held.limit is None else f", allowed {_number(held.name, held.limit)}"
    why = f": {held.why}" if held.why and held.value is None else f"{found}{limit}"
    return cell(f"  required {held.name} {held.bound}{why}", "dim" if held.held else "red")


def _change(change: Change) -> Text:
    before, after = (_shown(change.what, value) for value in (change.before, change.after))
    return cell(f"  changed {change.what}: {before} → {after}", "yellow")


def _shown(what: str, value: Any) -> str:
    return "none" if value is None else value if isinstance(value, str) else _number(what, value)


def _number(what: str, value: float) -> str:
    if what in _BYTES:
        return f"{bytes_text(round(value))} ({round(value):,})"
    return f"{value:.2g}" if what in ("worst", "tolerance") else f"{value:,.10g}"
