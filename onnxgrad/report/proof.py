"""The text of a proof, for `optimize`, `verify` and every other command that runs one."""

from __future__ import annotations

from collections.abc import Iterator

from onnxgrad.report.parts import Part, Table, Text, cell, first_of, line, number, share_text, table
from onnxgrad.verify import Difference, Report
from onnxgrad.verify.compare import DIFFERENT, EQUAL, NOT_PROVED
from onnxgrad.verify.report import WITHIN, elements
from onnxgrad.wording import counted

_STYLES = {EQUAL: "bold green", WITHIN: "bold green", DIFFERENT: "bold red", NOT_PROVED: "bold red"}
_ROWS = 10  # outputs without -v


def verdict(report: Report) -> Text:
    """`equal`, `different` or `not proved`."""
    return line(report.verdict, _STYLES[report.verdict])


def proof_lines(report: Report, verbose: bool) -> Iterator[Part]:
    """The checks with their worst differences, the runs, and notes on them."""
    cases = "; ".join(map(str, report.cases))
    ran = f"  {counted(len(report.cases), 'run')}: {cases}" if cases else ""
    # a check that did not run is part of the verdict
    gaps = cell(f"; {report.gaps}" if report.gaps else "", "yellow")
    asked = cell(f" ({report.bounds})" if report.bounds and report.ok else "")
    yield verdict(report) + asked + cell(f" on {report.provider}") + gaps + cell(ran, "dim")
    for reason in report.unproved:
        yield cell(f"  {reason}", "red")
    made = _legs(report)
    if made.rows:
        yield made
    yield from _failing(report, verbose)
    for name in report.unstable:
        yield cell(
            f"  {name}: the original disagrees with itself by {report.noise.get(name, 0.0):.1e}",
            "yellow",
        )
    for name, count in report.compared.items() if verbose else ():
        yield cell(f"  {name}: {elements(count)}", "dim")
    for note in report.notes:
        yield cell(f"note: {note}", "dim")
    yield from _covered(report, verbose)


def _covered(report: Report, verbose: bool) -> Iterator[Part]:
    """The coverage of the runs in one line, and what they did not reach."""
    if not report.cases:
        return
    coverage = report.coverage
    if coverage.line:
        yield cell(coverage.line, "yellow" if coverage.why else "dim")
    for warning in coverage.warnings:
        yield cell(warning, "yellow")
    for detail in coverage.details if verbose else ():
        yield cell(f"  {detail}", "dim")


def _legs(report: Report) -> Table:
    made = table("proof", ">runs", ">compared", ">worst difference", ">allowed", "where")
    for leg in report.legs.values():
        if not leg.ran:
            made.add_row(leg.name, "0", "", "", "", cell(f"did not run: {leg.why}", "yellow"))
            continue
        found = leg.worst
        place = cell(
            "bit-identical"
            if found is None or (found.rel == 0 and not found.found)
            else place_text(found),
            "dim",
        )
        if leg.why:
            place += line(f" ({leg.why})", "yellow")
        made.add_row(leg.name, str(leg.cases), number(leg.compared), *_sizes(found), place)
    return made


def _failing(report: Report, verbose: bool) -> Iterator[Part]:
    """The differences that are not the worst of a check."""
    shown = {id(leg.worst) for leg in report.legs.values() if leg.ran}
    failing = [d for d in report.differences if not d.ok and id(d) not in shown]
    differences, more = first_of(failing, _ROWS, verbose, "  ")
    for d in differences:  # of the model or its interface, or of an output
        yield cell(f"  {d.reason if d.output.startswith('(') else d}", "red")
    yield from more


def _sizes(difference: Difference | None) -> tuple[Text, str]:
    if difference is None:
        return line("0"), ""
    style = {EQUAL: "green", NOT_PROVED: "yellow", DIFFERENT: "bold red"}[difference.answer]
    if difference.found:
        return line(difference.found, style), difference.wanted
    return line(share_text(difference.rel), style), share_text(difference.tolerance)


def place_text(difference: Difference) -> str:
    """The element where two results differ most, with both values."""
    if difference.reason:
        return f"{difference.output}: {difference.reason}"
    at = "" if difference.index is None else f"[{', '.join(map(str, difference.index))}]"
    a, b = difference.values(7)
    return f"{difference.output}{at}: {a} → {b}"
