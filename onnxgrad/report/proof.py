"""The text of a proof, for `optimize`, `verify` and every other command that runs one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from onnxgrad.report.parts import Part, Text, cell, first_of, line, number, share_text, table
from onnxgrad.verify import Difference, Report
from onnxgrad.verify.compare import DIFFERENT, EQUAL, NOT_PROVED
from onnxgrad.verify.evidence import Layers
from onnxgrad.verify.report import WITHIN, Check, elements
from onnxgrad.wording import counted

_STYLES = {EQUAL: "bold green", WITHIN: "bold green", DIFFERENT: "bold red", NOT_PROVED: "bold red"}
_ROWS = 10  # outputs without -v


def verdict(report: Report) -> Text:
    """Returns `equal`, `different` or `not proved`."""
    return line(report.verdict, _STYLES[report.verdict])


def proof_lines(report: Report, verbose: bool) -> Iterator[Part]:
    """Yields the checks with their worst differences, the runs, and notes on them."""
    cases = "; ".join(map(str, report.cases))
    ran = f"  {counted(len(report.cases), 'run')}: {cases}" if cases else ""
    # the verdict names a check that did not run
    gaps = cell(f"; {report.gaps}" if report.gaps else "", "yellow")
    bounds = cell(f" ({report.bounds})" if report.bounds and report.ok else "")
    around = cell(report.boundary, "yellow")
    yield (
        verdict(report) + bounds + around + cell(f" on {report.provider}") + gaps + cell(ran, "dim")
    )
    yield from (cell(f"  {reason}", "red") for reason in report.unproved)
    if report.checks:
        yield table(
            "proof",
            ">runs",
            ">compared",
            ">worst difference",
            ">allowed",
            "where",
            rows=map(_row, report.checks.values()),
        )
    yield from _failing(report, verbose)
    if report.regions is not None:
        yield from (cell(text, "yellow") for text in report.regions.lines)
    if report.layers is not None:
        yield from _layers(report.layers, verbose)
    if report.exact is not None:
        yield from (cell(text, "" if report.exact else "yellow") for text in report.exact.lines)
    if report.non_finite is not None:
        yield cell(report.non_finite.line, "dim" if report.non_finite.equal else "yellow")
    if report.scales is not None:
        yield cell(report.scales.line, "yellow" if report.scales.failed else "dim")
    for name in report.unstable:
        yield cell(
            f"  {name}: the original disagrees with itself by {report.noise.get(name, 0.0):.1e}",
            "yellow",
        )
    for name, count in report.compared.items() if verbose else ():
        yield cell(f"  {name}: {elements(count)}", "dim")
    yield from (cell(f"note: {note}", "dim") for note in report.notes)
    yield from _covered(report, verbose)


def _layers(layers: Layers, verbose: bool) -> Iterator[Part]:
    """Yields where two models begin to differ inside; with -v every paired value."""
    style = "" if layers.first is None else "yellow"
    yield from (cell(text, style) for text in layers.lines)
    if verbose and layers.pairs:
        rows = (
            (layer.name, layer.operator, *_sizes(layer.difference), place_text(layer.difference))
            for layer in layers.pairs
        )
        yield table("layer", "operator", ">difference", ">allowed", "where", rows=rows)


def _covered(report: Report, verbose: bool) -> Iterator[Part]:
    """Yields the coverage of the runs in one line, and the places that they did not reach."""
    if not report.cases:
        return
    coverage = report.coverage
    if coverage.line:
        yield cell(coverage.line, "yellow" if coverage.why else "dim")
    yield from (cell(warning, "yellow") for warning in coverage.warnings)
    if verbose:
        yield from (cell(f"  {detail}", "dim") for detail in coverage.details)


def _row(check: Check) -> Sequence[Text | str]:
    if not check.ran:
        return check.name, "0", "", "", "", cell(f"did not run: {check.why}", "yellow")
    found = check.worst
    identical = found is None or (found.rel == 0 and not found.found)
    place = cell("bit-identical" if found is None or identical else place_text(found), "dim")
    if check.why and found is None and not check.compared:
        place = line("")
    why = line(f" ({check.why})" if check.why else "", "yellow")
    return check.name, str(check.cases), number(check.compared), *_sizes(found), place + why


def _failing(report: Report, verbose: bool) -> Iterator[Part]:
    """Yields the differences that are not the worst of a check."""
    shown = {id(check.worst) for check in report.checks.values() if check.ran}
    failing = [d for d in report.differences if not d.ok and id(d) not in shown]
    differences, more = first_of(failing, _ROWS, verbose, "  ")
    for d in differences:  # a name in parentheses is the model or its interface
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
    """Returns the element where two results differ most, with both values."""
    if difference.reason:
        return f"{difference.output}: {difference.reason}"
    at = "" if difference.index is None else f"[{', '.join(map(str, difference.index))}]"
    a, b = difference.values(7)
    return f"{difference.output}{at}: {a} → {b}"
