"""The report of `onnxgrad ci`: tables, JSON, JUnit XML, and annotations for GitHub."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from onnxgrad.jobs.ci.inputs import Change
from onnxgrad.jobs.ci.outcome import CiReport, ModelOutcome
from onnxgrad.jobs.requirements import SIZES, Facts, Held
from onnxgrad.report.parts import (
    Part,
    Table,
    Text,
    bytes_text,
    cell,
    first_of,
    heading,
    line,
    lint_lines,
    number,
    seconds_text,
    share_text,
    table,
)
from onnxgrad.report.proof import place_text
from onnxgrad.wording import printable, printable_lines

SCHEMA = Path(__file__).with_name("ci.schema.json")
_STYLES = {"passed": "green", "changed": "yellow", "unproved": "yellow", "skipped": "dim"}
_REFUSED = "bold red"
_CHANGES = 12  # of each model without -v
_FEW = 4  # models with details; if there are more, a line for each comes before them
_LONGEST = 156  # characters of such a line: two lines of 80 columns


def ci_parts(report: CiReport, verbose: bool = False) -> Iterator[Part]:
    """Yields the verdict, the table, the lock, and the missed requirements and changes of each
    model.
    """
    yield heading(f"{report.recipe}: ") + line(
        report.verdict, "bold green" if report.ok else _REFUSED
    )
    counts = ", ".join(f"{count} {status}" for status, count in report.counts.items())
    yield line(f"{counts}; {seconds_text(report.seconds)}")
    yield ""
    yield models_table(report)
    if report.counts.get("skipped"):
        yield line("skipped after a model that failed: `--keep-going` runs all", "yellow")
    yield from _of_lock(report)
    details = [(m, lines) for m in report.worst_first if (lines := [*model_lines(m, verbose)])]
    if len(details) > _FEW:
        yield ""
        yield from filter(None, (_in_short(model) for model, _ in details))
    for model, lines in details:
        yield ""
        yield heading(model.name)
        yield from lines


def models_table(report: CiReport, *, page: bool = False) -> Table:
    """Returns a row for each model, the worst first, with the time of each; on a page, with the
    first reason for its status instead.
    """
    ratios = {m.name: m.result.latency for m in report.models if m.result and m.result.latency}
    exact = any(m.exact is not None for m in report.models)
    optional = {">exact": exact, ">latency": bool(ratios), ">time": not page, "why": page}
    names = ["status", "model", ">nodes", ">size", ">worst", "checks"]
    made = table(*names, *(name for name, there in optional.items() if there), spare=_SPARE)
    for name in () if report.updating else report.gone:
        made.add_row(cell("gone", _REFUSED), cell(name), *[""] * (len(made.columns) - 2))
    for m in report.worst_first:
        timed = ratios.get(m.name)
        ratio = "" if timed is None else f"{timed.ratio:.2f} ({timed.clock})"
        made.add_row(
            cell(m.status, _STYLES.get(m.status, _REFUSED) if m.ok else _REFUSED),
            cell(m.name),
            *_sizes(m.given, m.result),
            checks_text(m),
            *([line("" if m.exact is None else m.exact.ratio)] if exact else []),
            *([line(ratio)] if ratios else []),
            _why(m) if page else seconds_text(m.seconds) if m.seconds else "",
        )
    return made


# columns of the table of models that a narrow terminal leaves out, the first first
_SPARE = (">time", "checks", ">exact", ">latency", ">size", ">worst", ">nodes")


def _why(model: ModelOutcome) -> Text:
    """Returns the first reason for the status of a model, and the number of the others."""
    changed = model.input_changes or model.changes
    reasons = [_change(change, "") for change in changed]
    reasons += [cell(str(found), "yellow") for found in model.lints]
    if model.error:
        reasons.insert(0, cell(model.error, "red"))
    if not reasons:
        return line("")
    more = f" and {len(reasons) - 1} more" if len(reasons) > 1 else ""
    return reasons[0] + line(more, "dim")


def _in_short(model: ModelOutcome) -> Text | None:
    """Returns a line with the reason for the status of a model, or None if nothing changed."""
    summary = model.input_summary.removeprefix("the input changed: ")
    # the error names the recipe, whose path may fill the line
    why = model.missed or (summary if summary and model.ok else str(_why(model)))
    text = f"{model.name}: {why}"
    short = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
    return cell(short, "yellow" if model.ok else "red") if why else None


def _of_lock(report: CiReport) -> Iterator[Text]:
    for name in report.gone:
        what = "taken out of the lock" if report.updated else "run `onnxgrad ci --update`"
        yield cell(f"{report.gone_text(name)}; {what}", "dim" if report.updated else "red")
    yield from (cell(f"{found}", "yellow") for found in report.leftovers)
    if report.updating and not report.updated:
        yield line(f"{report.lock} not written: no model passes", "red")
    elif report.left:
        yield line(f"{report.lock}: not accepted: {', '.join(report.left)}", "red")
    elif not report.updating and not report.locked:
        yield line(f"no {report.lock} to compare with: `onnxgrad ci --update` writes it", "yellow")


def _sizes(given: Facts | None, result: Facts | None) -> tuple[Text, Text, Text]:
    """Returns nodes and bytes before and after, and the worst difference of the proof."""
    if given is None and result is not None:  # as accepted before
        worst = "" if result.worst is None else share_text(result.worst)
        return line(number(result.nodes)), line(bytes_text(result.bytes)), line(worst)
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


def checks_text(model: ModelOutcome) -> Text:
    """Returns the checks of the proof that ran."""
    if model.unchanged:
        return line("unchanged", "dim")
    if model.proof is None:
        return line("none", "yellow") if model.result is not None else line("")
    checks = [
        f"{n}{' in part' if check.why else ''}"
        for n, check in model.proof.checks.items()
        if check.ran
    ]
    return cell(", ".join(checks) or "none", "yellow" if model.proof.gaps else "")


def refusal(model: ModelOutcome) -> str:
    """Returns one line on a refused model: the reason, and whether an older result was removed."""
    older = f"; the older result {model.removed} is removed" if model.removed else ""
    return f"{model.name}: {model.error}{older}"


def model_lines(model: ModelOutcome, verbose: bool) -> Iterator[Text]:
    """Yields the lines on one model: what changed in the input, its error, missed requirements,
    changes of the result, and notes.
    """
    if model.input_summary:
        yield cell(f"  {model.input_summary}", "yellow" if model.ok else "red")
        changed, more = first_of(model.input_changes, _CHANGES, verbose, "    ")
        yield from (*(_change(c, "    ") for c in changed), *more)
    if model.error and all(held.held for held in model.requirements):
        yield cell(f"  {model.error}", "red")
    yield from lint_lines(model.lints, "  ")
    if model.status == "different" and model.proof is not None and model.proof.worst is not None:
        yield cell(f"  {place_text(model.proof.worst)}", "red")
    if model.removed is not None:
        yield cell(f"  removed the older result {model.removed}", "red")
    if model.proof is not None and model.proof.gaps:
        yield cell(f"  proof: {model.proof.gaps}", "yellow")
    yield from (_requirement(held) for held in model.requirements if verbose or not held.held)
    changes, more = first_of(model.changes, _CHANGES, verbose, "  ")
    yield from (*map(_change, changes), *more)
    if verbose and model.unchanged:
        yield cell("  unchanged since it was accepted: not run again (--all runs it)", "dim")
    if verbose:
        yield from (cell(f"  note: {note}", "dim") for note in model.notes)
        if model.output is not None:
            yield cell(f"  written to {model.output}", "dim")


def _requirement(held: Held) -> Text:
    found = "" if held.value is None else f", found {_number(held.name, held.value)}"
    limit = "" if held.limit is None else f", allowed {_number(held.name, held.limit)}"
    why = f": {held.why}" if held.why and held.value is None else f"{found}{limit}"
    mark, style = ("met", "dim") if held.held else ("missed", "red")
    return cell(f"  {mark}: required {held.name} {held.bound}{why}", style)


def _change(change: Change, indent: str = "  changed ") -> Text:
    before, after = (_shown(change.what, value) for value in (change.before, change.after))
    return cell(f"{indent}{change.what}: {before} → {after}", "yellow")


def _shown(what: str, value: Any) -> str:
    return "none" if value is None else value if isinstance(value, str) else _number(what, value)


def _number(what: str, value: float) -> str:
    if what in SIZES:
        return f"{bytes_text(round(value))} ({round(value):,})"
    if what == "latency":
        return f"{value:.2f}"
    return f"{value:.2g}" if what in ("worst", "tolerance") else f"{value:,.10g}"


def junit(report: CiReport) -> str:
    """Returns the report as a JUnit document: an `error` if a model could not be processed, a
    `failure` if it misses a requirement or if only the lock has it.
    """
    root = Element("testsuites")
    suite = SubElement(root, "testsuite")
    for model in report.models:
        _add(suite, report, model)
    for name in () if report.updated else report.gone:
        case = _case(suite, report, name, 0.0)
        _set(SubElement(case, "failure"), type="gone", message=report.gone_text(name))
    counts = {kind: len(suite.findall(f"testcase/{kind}")) for kind in _KINDS}
    _set(
        suite,
        name=f"onnxgrad ci {report.recipe}",
        tests=str(len(suite)),
        failures=str(counts["failure"]),
        errors=str(counts["error"]),
        skipped=str(counts["skipped"]),
        time=f"{report.seconds:.3f}",
    )
    indent(root)
    return tostring(root, encoding="unicode", xml_declaration=True) + "\n"


_KINDS = ("failure", "error", "skipped")


def _add(suite: Element, report: CiReport, model: ModelOutcome) -> None:
    case = _case(suite, report, model.name, model.seconds)
    text = "\n".join(str(part).strip() for part in model_lines(model, verbose=True))
    if model.ok and text:
        SubElement(case, "system-out").text = text
    if model.status == "skipped":
        _set(SubElement(case, "skipped"), message="a model before it failed")
    elif not model.ok:
        found = SubElement(case, "error" if model.status == "error" else "failure")
        _set(found, type=model.status, message=model.error or model.status)
        found.text = text


def _case(suite: Element, report: CiReport, name: str, seconds: float) -> Element:
    case = SubElement(suite, "testcase")
    _set(case, classname=report.recipe, name=name, time=f"{seconds:.3f}")
    return case


def _set(element: Element, **attributes: str) -> None:
    for name, value in attributes.items():
        element.set(name, printable(value))


_DATA = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
_PROPERTY = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A", ":": "%3A", ",": "%2C"})


def annotation_lines(report: CiReport, root: Path) -> Iterator[str]:
    """Yields an error for each model that fails or is gone, and a warning for each that changed.
    Files are named relative to the repository's `root`.
    """
    folder = Path(report.recipe).absolute().parent
    for model in report.worst_first:
        if model.status not in ("passed", "skipped"):
            kind, where = "warning" if model.ok else "error", _from(root, folder / model.file)
            lines = (str(part).strip() for part in model_lines(model, verbose=False))
            words = "\n".join(lines) or model.error or model.status
            yield _line(kind, where, model.status, words)
    for name in () if report.updated else report.gone:
        where = _from(root, Path(report.lock).absolute())
        words = f"{report.gone_text(name)}: run `onnxgrad ci --update`"
        yield _line("error", where, "gone", words)


def _from(root: Path, file: Path) -> str:
    return os.path.relpath(file, root).replace(os.sep, "/")


def _line(kind: str, file: str, status: str, words: str) -> str:
    title = f"onnxgrad: {status}".translate(_PROPERTY)
    where, data = printable(file).translate(_PROPERTY), printable_lines(words).translate(_DATA)
    return f"::{kind} file={where},title={title}::{data}"
