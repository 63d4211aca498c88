"""How a proof is shown: by `optimize`, `verify` and whatever else runs one."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from onnxgrad.cli.report import cell, share_text, table
from onnxgrad.verify import Difference, Report

_ROWS = 10  # outputs without -v


def verdict(report: Report) -> Text:
    """`equal` or `different`."""
    return Text("equal", style="bold green") if report.ok else Text("different", style="bold red")


def proof_lines(report: Report, verbose: bool) -> Iterator[RenderableType]:
    """The legs with their worst differences, the feeds, and what a reader should know about them."""
    cases = "; ".join(map(str, report.cases))
    ran = f"  {len(report.cases)} run{'s' * (len(report.cases) != 1)}: {cases}" if cases else ""
    yield Text.assemble(verdict(report), f" on {report.provider}", cell(ran, "dim"))
    made = table("proof", ">runs", ">worst difference", ">allowed", "where")
    for leg in report.legs.values():
        if not leg.ran:
            made.add_row(leg.name, "0", "", "", cell(f"did not run: {leg.why}", "yellow"))
            continue
        found = leg.worst
        place = cell("bit-identical" if found is None or found.rel == 0 else place_text(found), "dim")
        if leg.why:
            place.append(f" ({leg.why})", style="yellow")
        made.add_row(leg.name, str(leg.cases), *_sizes(found), place)
    if made.row_count:
        yield made
    shown = {id(leg.worst) for leg in report.legs.values() if leg.ran}
    failing = [d for d in report.differences if not d.ok and id(d) not in shown]
    for difference in failing[: None if verbose else _ROWS]:
        whole = difference.output.startswith("(")  # of the model or its interface, not of an output
        yield cell(f"  {difference.reason if whole else difference}", "red")
    if not verbose and len(failing) > _ROWS:
        yield Text(f"  and {len(failing) - _ROWS} more (-v)", style="dim")
    for name in report.unstable:
        yield cell(f"  {name}: the original disagrees with itself by {report.noise.get(name, 0.0):.1e}", "yellow")
    for note in report.notes:
        yield cell(f"note: {note}", "dim")


def _sizes(difference: Difference | None) -> tuple[Text, str]:
    if difference is None:
        return Text("0"), ""
    style = "green" if difference.ok else "bold red"
    return Text(share_text(difference.rel), style=style), share_text(difference.tolerance)


def place_text(difference: Difference) -> str:
    """The element where two results differ most, with both values."""
    if difference.reason:
        return f"{difference.output}: {difference.reason}"
    at = "" if difference.index is None else f"[{', '.join(map(str, difference.index))}]"
    return f"{difference.output}{at}: {_value(difference.a)} → {_value(difference.b)}"


def _value(value: object) -> str:
    return f"{value:.7g}" if isinstance(value, float) else str(value)
