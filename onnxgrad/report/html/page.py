"""The page around the data: one file that loads nothing, and in which no text of a model can run.

The data is JSON in a script element that browsers do not run. Every character that could end the
element is escaped. Our scripts make elements and text of the data, never markup. The page's policy
allows only its own scripts and styles, by their digests, and no requests.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any, TypeAlias

from onnxgrad.ir.protobufs import Stats
from onnxgrad.jobs.lint.table import Finding
from onnxgrad.jobs.requirements import Facts
from onnxgrad.report.html.graph import shown
from onnxgrad.report.parts import Part, Table, Text, bytes_text, number
from onnxgrad.verify import Report
from onnxgrad.verify.compare import NOT_PROVED
from onnxgrad.version import __version__
from onnxgrad.wording import counted, printable

_SCRIPTS = (
    "vendor/d3-dispatch.min.js",
    "vendor/d3-selection.min.js",
    "vendor/d3-color.min.js",
    "vendor/d3-interpolate.min.js",
    "vendor/d3-timer.min.js",
    "vendor/d3-ease.min.js",
    "vendor/d3-drag.min.js",
    "vendor/d3-transition.min.js",
    "vendor/d3-zoom.min.js",
    "vendor/dagre.min.js",
    "vendor/uPlot.min.js",
    "assets/dom.js",
    "assets/model.js",
    "assets/layout.js",
    "assets/drawing.js",
    "assets/together.js",
    "assets/details.js",
    "assets/graph.js",
    "assets/plots.js",
    "assets/sections.js",
    "assets/main.js",
)
_STYLES = ("vendor/uPlot.min.css", "assets/page.css", "assets/graph.css")
_LICENSES = ("d3", "d3-ease", "dagre", "uPlot")


def page(title: str, reports: Sequence[Mapping[str, Any]]) -> str:
    """Returns the page. Each report is a title, a verdict, cards and sections in JSON's types. The
    same reports return the same text.
    """
    scripts = [_asset(name) for name in _SCRIPTS]
    styles = [_asset(name) for name in _STYLES]
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src {' '.join(map(_digest, scripts))}",
            f"style-src {' '.join(map(_digest, styles))}",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    folder = resources.files(__package__).joinpath("vendor")
    licenses = [
        [name, folder.joinpath(f"{name}.LICENSE").read_text(encoding="utf-8").strip()]
        for name in _LICENSES
    ]
    data = {"version": __version__, "reports": list(reports), "licenses": licenses}
    shown = html.escape(printable(title))
    return "\n".join(
        (
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{shown}</title>",
            *(f"<style>{text}</style>" for text in styles),
            "</head>",
            "<body>",
            f"<noscript>{shown}: this page is drawn by JavaScript, which is turned off.</noscript>",
            '<main id="page"></main>',
            f'<script type="application/json" id="data">{embedded(data)}</script>',
            *(f"<script>{text}</script>" for text in scripts),
            "</body>",
            "</html>",
            "",
        )
    )


def embedded(data: object) -> str:
    """Returns JSON that is safe inside a script element: only ASCII, and nothing that HTML
    interprets.
    """
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def _asset(name: str) -> str:
    """Returns a script or style of the package, without the reference to a missing source map."""
    text = resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
    return "\n".join(line for line in text.splitlines() if "sourceMappingURL" not in line)


Section: TypeAlias = dict[str, Any]


def report_data(
    command: str,
    title: str,
    answer: Mapping[str, Any],
    cards: Iterable[Mapping[str, Any]],
    sections: Iterable[Section | None],
) -> dict[str, Any]:
    """Returns the report of one model, or of several together; sections that are None are left
    out.
    """
    return {
        "title": shown(title),
        "what": command,
        "verdict": answer,
        "cards": list(cards),
        "sections": [s for s in sections if s is not None],
    }


def section(kind: str, title: str, **data: Any) -> Section:
    """Returns a titled part of the page; `kind` selects the script that draws it."""
    return {"kind": kind, "title": printable(title), **data}


def table_section(title: str, found: Table, note: str = "") -> Section:
    """Returns a table under a title; each column says whether it contains numbers."""
    columns = [[name.lstrip(">"), name.startswith(">")] for name in found.columns]
    rows = [[_pieces(cell) for cell in row] for row in found.rows]
    return section("table", title, note=note, columns=columns, rows=rows)


def tables_of(parts: Iterable[Part]) -> Sequence[Table]:
    """Returns the tables among the parts."""
    return [p for p in parts if isinstance(p, Table) and p.rows]


def _pieces(cell: Text | str) -> Any:
    """Returns the pieces of a cell; only its text if it has no style."""
    if isinstance(cell, str):
        return printable(cell)
    pieces = [[text, style] for text, style in cell.pieces if text]
    return str(cell) if not any(style for _, style in pieces) else pieces


_NAMED = 3  # outputs by name, of those that differ


def verdict(tone: str, word: str, text: str) -> dict[str, Any]:
    """Returns the answer in a word, and its basis; the tone is `good`, `bad`, `unsure` or `plain`.
    `notes` are further facts for the reader, each with its tone; callers may add to them.
    """
    return {"tone": tone, "word": word, "text": text, "notes": []}


def noted(found: dict[str, Any], notes: Iterable[str], tone: str = "plain") -> None:
    """Adds notes to a verdict, except empty ones."""
    found["notes"] += [[shown(note), tone] for note in notes if note]


def lint_notes(found: dict[str, Any], findings: Iterable[Finding]) -> None:
    """Adds the findings of the lints to the notes of a verdict."""
    for one in findings:
        noted(found, [str(one)], "bad" if one.level == "error" else "unsure")


def proof_verdict(report: Report) -> dict[str, Any]:
    """Returns the verdict of a proof, with its runs."""
    tone = "unsure" if report.verdict == NOT_PROVED else "good" if report.ok else "bad"
    cases = "; ".join(map(str, report.cases))
    runs = f", {counted(len(report.cases), 'run')}: {cases}" if cases else ""
    found = verdict(tone, report.verdict, shown(f"{_failing(report)}on {report.provider}{runs}"))
    noted(found, (*report.unproved, report.gaps), "unsure")
    apart = "" if report.non_finite is None else report.non_finite.line
    scales = "" if report.scales is None else report.scales.line
    noted(found, (report.bounds, apart, scales, *report.notes))
    return found


def _failing(report: Report) -> str:
    """Returns the outputs that differ, those that miss their bound most first."""
    worst = report.worst
    found = dict.fromkeys(
        d.output
        for d in sorted(report.differences, key=lambda d: d is not worst)
        if not d.ok and not d.output.startswith("(")
    )
    more = [f"{len(found) - _NAMED} more"] if len(found) > _NAMED else []
    names = [*list(found)[:_NAMED], *more]
    return f"in {', '.join(names)}, " if names else ""


def card(label: str, value: str, note: str = "", tone: str = "plain") -> dict[str, Any]:
    """Returns a figure with its name."""
    return {"label": label, "value": value, "note": note, "tone": tone}


def changed_card(label: str, before: int, after: int, text: Callable[[int], str]) -> dict[str, Any]:
    """Returns a figure before and after."""
    made = card(label, text(after), "unchanged" if before == after else f"from {text(before)}")
    if before != after and before:
        share = round(100 * (after - before) / before, 1)
        made |= {"share": share} if share else {}
        made["tone"] = "good" if after < before else "more"
    return made


def size_cards(before: Stats | Facts, after: Stats | Facts) -> list[dict[str, Any]]:
    """Returns nodes, bytes and parameters before and after."""
    return [
        changed_card("nodes", before.nodes, after.nodes, number),
        changed_card("file size", before.bytes, after.bytes, bytes_text),
        changed_card("parameters", before.parameters, after.parameters, number),
    ]
