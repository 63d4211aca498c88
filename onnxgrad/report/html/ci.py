"""What the page says of the models of `onnxgrad ci`, the worst first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxgrad.errors import OnnxgradError
from onnxgrad.ir.load import load
from onnxgrad.jobs.ci.outcome import ModelOutcome
from onnxgrad.jobs.requirements import Facts
from onnxgrad.report.html.graph import Drawn, compared, shown
from onnxgrad.report.html.optimized import passes, places, rewrites, worst_card
from onnxgrad.report.html.page import (
    Section,
    card,
    changed_card,
    noted,
    proof_verdict,
    section,
    table_section,
    tables_of,
    verdict,
)
from onnxgrad.report.html.plots import differences, latency
from onnxgrad.report.parts import bytes_text, number
from onnxgrad.report.proof import proof_lines
from onnxgrad.rewrite.trace import Trace

if TYPE_CHECKING:
    from onnxgrad.report.ci import CiReport

_TONES = {"passed": "good", "changed": "good", "skipped": "plain"}


def ci_reports(found: CiReport) -> list[dict[str, Any]]:
    """The reports of the page: one of all models, then one for each."""
    folder = Path(found.recipe).parent
    return [_overview(found), *(_report(outcome, folder) for outcome in found.worst_first)]


def _overview(found: CiReport) -> dict[str, Any]:
    word, _, text = found.verdict.partition(": ")
    said = verdict("good" if found.ok else "bad", word, text)
    noted(said, map(found.gone_text, found.gone), "plain" if found.asked else "bad")
    noted(said, (f"{m.name}: {m.error}" for m in found.worst_first if m.error), "bad")
    return {
        "title": shown(found.recipe),
        "what": "ci",
        "verdict": said,
        "cards": [card(status, number(count)) for status, count in found.counts.items()],
        "sections": [table_section("Models", found.table(seconds=False))],
    }


def _report(outcome: ModelOutcome, folder: Path) -> dict[str, Any]:
    sections = [
        _requirements(outcome),
        _changes(outcome),
        *_rewriting(outcome, folder),
        *_proof(outcome),
        _latency(outcome),
        _operators(outcome.given, outcome.result),
    ]
    tone = _TONES.get(outcome.status, "unsure" if outcome.ok else "bad")
    said = verdict(tone, outcome.status, "")
    if outcome.proof is not None:
        proof = proof_verdict(outcome.proof)
        word = "" if proof["word"] == outcome.status else f"{proof['word']} "
        said["text"] = f"{word}{proof['text']}"
        said["notes"] = proof["notes"]
    noted(said, outcome.notes)
    older = f"the older result {outcome.removed} is removed" if outcome.removed else ""
    noted(said, [outcome.error, older], "bad")
    return {
        "title": shown(outcome.name),
        "what": "ci",
        "verdict": said,
        "cards": list(_cards(outcome)),
        "sections": [s for s in sections if s is not None],
    }


def _cards(outcome: ModelOutcome) -> Iterator[dict[str, Any]]:
    given, result = outcome.given, outcome.result
    if given is not None and result is not None:
        yield changed_card("nodes", given.nodes, result.nodes, number)
        yield changed_card("file size", given.bytes, result.bytes, bytes_text)
        yield changed_card("parameters", given.parameters, result.parameters, number)
    if outcome.proof is not None:
        yield worst_card(outcome.proof)
    if result is not None and result.latency is not None:
        timed = result.latency
        quick = "good" if timed.ratio <= 1 else "more"
        yield card(
            f"{timed.clock} time", f"{timed.ratio:.2f} ×", f"of {shown(timed.against)}", quick
        )


def _requirements(outcome: ModelOutcome) -> Section | None:
    rows = [
        [
            shown(held.name),
            shown(held.bound),
            _number(held.value),
            _number(held.limit),
            [["held", "green"]]
            if held.held
            else [["missed", "red"], [shown(f" {held.why}"), "dim"]],
        ]
        for held in sorted(outcome.requirements, key=lambda held: held.held)
    ]
    columns = [
        ["required", False],
        ["bound", False],
        ["found", True],
        ["allowed", True],
        ["", False],
    ]
    return section("table", "Requirements", note="", columns=columns, rows=rows) if rows else None


def _changes(outcome: ModelOutcome) -> Section | None:
    rows = [
        [shown(c.what), shown(_value(c.before)), shown(_value(c.after))] for c in outcome.changes
    ]
    columns = [["changed since the lock", False], ["before", True], ["after", True]]
    return section("table", "Changes", note="", columns=columns, rows=rows) if rows else None


def _rewriting(outcome: ModelOutcome, folder: Path) -> list[Section | None]:
    """Both graphs with their rewrites, or the places of these alone; and the passes."""
    if outcome.trace is None:
        return []
    graphs = _graphs(outcome, outcome.trace, folder)
    return [
        graphs,
        passes(outcome.trace, outcome.passes),
        places(outcome.trace) if graphs is None else None,
    ]


def _graphs(outcome: ModelOutcome, trace: Trace, folder: Path) -> Section | None:
    """Both graphs, where the result was written: what comes from other processes has none."""
    if outcome.output is None:
        return None
    try:
        before, after = load(folder / outcome.name), load(folder / outcome.output)
    except OnnxgradError:  # gone since
        return None
    graphs = compared(Drawn(before), Drawn(after), trace.firings)
    known = rewrites(trace, outcome.proof)
    return section("graph", "Graph", names=["before", "after"], graphs=graphs, **known)


def _proof(outcome: ModelOutcome) -> list[Section | None]:
    if outcome.proof is None:
        return []
    tables = tables_of(proof_lines(outcome.proof, True))
    return [differences(outcome.proof), *(table_section("Proof", t) for t in tables)]


def _latency(outcome: ModelOutcome) -> Section | None:
    timed = None if outcome.result is None else outcome.result.latency
    if timed is None:
        return None
    row = {
        "label": shown(outcome.name),
        "value": timed.ratio,
        "low": timed.low,
        "high": timed.high,
        "ok": timed.ratio <= 1,
        "note": "median and quartiles",
    }
    of = shown(timed.against)
    return latency([row], f"{timed.clock} time over that of {of}, taken in turns.")


def _operators(given: Facts | None, result: Facts | None) -> Section | None:
    if given is None or result is None:
        return None
    before, after = given.operators, result.operators
    counts = [(shown(n), before.get(n, 0), after.get(n, 0)) for n in {**before, **after}]
    rows = sorted(counts, key=lambda row: (-abs(row[2] - row[1]), -row[2], row[0]))
    return section("operators", "Operators", rows=rows)


def _number(value: float | None) -> str:
    """In whole numbers where it is large, such as bytes."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _value(value: Any) -> str:
    return (
        "none"
        if value is None
        else _number(value)
        if isinstance(value, (int, float))
        else str(value)
    )
