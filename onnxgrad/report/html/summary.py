"""What stands at the top of the page: the verdict and the figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from onnxgrad.report.html.graph import shown
from onnxgrad.verify import Report
from onnxgrad.verify.compare import NOT_PROVED

_NAMED = 3  # outputs by name, of those that differ


def verdict(tone: str, word: str, text: str) -> dict[str, Any]:
    """The answer in a word, and what it rests on; the tone is `good`, `bad`, `unsure` or `plain`.
    `notes`, to which others add, are what else a reader should know, each with its tone.
    """
    return {"tone": tone, "word": word, "text": text, "notes": []}


def noted(found: dict[str, Any], notes: Iterable[str], tone: str = "plain") -> None:
    """Add notes to a verdict; empty ones say nothing."""
    found["notes"] += [[shown(note), tone] for note in notes if note]


def proof_verdict(report: Report) -> dict[str, Any]:
    """The verdict of a proof, with the runs it rests on."""
    tone = "unsure" if report.verdict == NOT_PROVED else "good" if report.ok else "bad"
    count = len(report.cases)
    cases = "; ".join(map(str, report.cases))
    said = f"{_failing(report)}on {report.provider}" + (
        f", {count} run{'s' * (count != 1)}: {cases}" if cases else ""
    )
    found = verdict(tone, report.verdict, shown(said))
    noted(found, (*report.unproved, report.gaps), "unsure")
    noted(found, (report.bounds, *report.notes))
    return found


def _failing(report: Report) -> str:
    """The outputs that differ, those that miss their bound most first."""
    worst = report.worst
    found = dict.fromkeys(
        d.output
        for d in sorted(report.differences, key=lambda d: d is not worst)
        if not d.ok and not d.output.startswith("(")
    )
    names = [
        *list(found)[:_NAMED],
        *([f"{len(found) - _NAMED} more"] if len(found) > _NAMED else []),
    ]
    return f"in {', '.join(names)}, " if names else ""


def card(label: str, value: str, note: str = "", tone: str = "plain") -> dict[str, Any]:
    """A figure with its name."""
    return {"label": label, "value": value, "note": note, "tone": tone}


def changed_card(label: str, before: int, after: int, text: Callable[[int], str]) -> dict[str, Any]:
    """A figure before and after."""
    made = card(label, text(after), "unchanged" if before == after else f"from {text(before)}")
    if before != after and before:
        share = round(100 * (after - before) / before, 1)
        made |= {"share": share} if share else {}
        made["tone"] = "good" if after < before else "more"
    return made
