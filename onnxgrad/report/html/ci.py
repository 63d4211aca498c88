"""The page of `onnxgrad ci`: its models, the worst first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from onnxgrad.errors import OnnxgradError
from onnxgrad.ir.load import load
from onnxgrad.jobs.ci.inputs import Change
from onnxgrad.jobs.ci.outcome import CiReport, ModelOutcome
from onnxgrad.jobs.outcome import Outcome
from onnxgrad.jobs.requirements import Held
from onnxgrad.report.ci import models_table
from onnxgrad.report.html.graph import shown
from onnxgrad.report.html.optimized import (
    graph_section,
    operators,
    passes,
    places,
    proof_sections,
    worst_card,
)
from onnxgrad.report.html.page import (
    Section,
    card,
    lint_notes,
    noted,
    page,
    proof_verdict,
    report_data,
    size_cards,
    table_section,
    verdict,
)
from onnxgrad.report.html.plots import latency, ratio_row
from onnxgrad.report.parts import Text, cell, line, number, table

_TONES = {"passed": "good", "changed": "good", "skipped": "plain"}


def ci_page(found: CiReport) -> str:
    """Returns the page of a recipe: all its models, then each one separately, the worst first."""
    folder = Path(found.recipe).parent
    models = (_report(outcome, folder) for outcome in found.worst_first)
    return page(found.recipe, [_overview(found), *models])


def _overview(found: CiReport) -> dict[str, Any]:
    word, _, text = found.verdict.partition(": ")
    answer = verdict("good" if found.ok else "bad", word, text)
    noted(answer, map(found.gone_text, found.gone), "plain" if found.updating else "bad")
    noted(answer, map(str, found.leftovers))
    noted(answer, [f"not accepted: {', '.join(found.left)}"] if found.left else [], "bad")
    for m in found.worst_first:
        tone = "plain" if m.ok else "bad"
        noted(answer, (f"{m.name}: {text}" for text in (m.input_summary, m.error) if text), tone)
    cards = [card(status, number(count)) for status, count in found.counts.items()]
    models = table_section("Models", models_table(found, page=True))
    return report_data("ci", found.recipe, answer, cards, [models])


def _report(outcome: ModelOutcome, folder: Path) -> dict[str, Any]:
    given, result = outcome.given, outcome.result
    sections = [
        _changes("Input", "the input changed since the lock", outcome.input_changes),
        _requirements(outcome),
        _changes("Changes", "changed since the lock", outcome.changes),
        *_rewriting(outcome, folder),
        *proof_sections(outcome.proof),
        _latency(outcome),
        operators(given.operators, result.operators) if given and result else None,
    ]
    tone = _TONES.get(outcome.status, "unsure" if outcome.ok else "bad")
    answer = verdict(tone, outcome.status, "")
    if outcome.proof is not None:
        proof = proof_verdict(outcome.proof)
        word = "" if proof["word"] == outcome.status else f"{proof['word']} "
        answer |= {"text": f"{word}{proof['text']}", "notes": proof["notes"]}
    lint_notes(answer, outcome.lints)
    noted(answer, ["unchanged since it was accepted"] if outcome.unchanged else [])
    noted(answer, outcome.notes)
    older = f"the older result {outcome.removed} is removed" if outcome.removed else ""
    noted(answer, [outcome.input_summary], "plain" if outcome.ok else "bad")
    noted(answer, [outcome.error, older], "bad")
    return report_data("ci", outcome.name, answer, _cards(outcome), sections)


def _cards(outcome: ModelOutcome) -> Iterator[dict[str, Any]]:
    given, result = outcome.given, outcome.result
    if given is not None and result is not None:
        yield from size_cards(given, result)
    if outcome.proof is not None:
        yield worst_card(outcome.proof)
    if result is not None and (timed := result.latency) is not None:
        tone = "good" if timed.ratio <= 1 else "more"
        note = f"of {shown(timed.against)}"
        yield card(f"{timed.clock} time", f"{timed.ratio:.2f} ×", note, tone)


def _requirements(outcome: ModelOutcome) -> Section | None:
    missed_first = sorted(outcome.requirements, key=lambda held: held.held)
    made = table("required", "bound", ">found", ">allowed", "", rows=map(_row, missed_first))
    return table_section("Requirements", made) if made.rows else None


def _row(held: Held) -> Sequence[Text | str]:
    missed = line("missed", "red") + cell(f" {held.why}", "dim")
    met = line("held", "green") if held.held else missed
    return cell(held.name), cell(held.bound), _number(held.value), _number(held.limit), met


def _changes(title: str, heading: str, changes: Iterable[Change]) -> Section | None:
    rows = ((cell(c.what), _value(c.before), _value(c.after)) for c in changes)
    made = table(heading, ">before", ">after", rows=rows)
    return table_section(title, made) if made.rows else None


def _rewriting(outcome: ModelOutcome, folder: Path) -> list[Section | None]:
    """Returns both graphs with their rewrites, or only the places of the rewrites; then the
    passes.
    """
    done = outcome.done
    if done is None or not (done.passes or done.trace.rewrites):
        return []
    graphs = _graphs(outcome, done, folder)
    return [graphs, passes(done), places(done.trace) if graphs is None else None]


def _graphs(outcome: ModelOutcome, done: Outcome, folder: Path) -> Section | None:
    """Returns both graphs if the result was written: results of other processes carry none."""
    if outcome.output is None:
        return None
    try:
        before, after = load(folder / outcome.file), load(folder / outcome.output)
    except OnnxgradError:  # the file was removed since
        return None
    return graph_section(before, after, done)


def _latency(outcome: ModelOutcome) -> Section | None:
    timed = None if outcome.result is None else outcome.result.latency
    if timed is None:
        return None
    row = ratio_row(outcome.name, timed.ratio, timed.low, timed.high, "median and quartiles")
    of = shown(timed.against)
    return latency([row], f"{timed.clock} time over that of {of}, taken in turns.")


def _number(value: float | None) -> str:
    """Returns a number as text; without digits after the point if it is large, such as bytes."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _value(value: Any) -> Text:
    if value is None:
        return line("none")
    return cell(_number(value) if isinstance(value, (int, float)) else value)
