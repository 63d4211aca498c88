"""The text of a `diff` of two models."""

from __future__ import annotations

from collections.abc import Iterator

from onnxgrad.jobs.inspection.differences import Diff
from onnxgrad.report.parts import Part, cell, changed, first_of, heading, line, number, table

_LINES = 12  # of each kind without -v
TITLES = {
    "model": "model",
    "interface": "inputs and outputs",
    "removed": "nodes removed",
    "added": "nodes added",
    "replaced": "nodes with another operator",
    "rewired": "nodes that read other values",
    "attributes": "attributes",
    "node_metadata": "nodes with other metadata",
    "order": "order",
    "initializers": "initializers",
    "functions": "functions",
    "other": "other",
}
STYLES = {"removed": "red", "added": "green"}


def diff_parts(found: Diff, verbose: bool = False) -> Iterator[Part]:
    """Yields a table of the operators whose count changed, then the lines of each kind under a
    title.
    """
    if found.same:
        yield line("the same", "green")
        return
    if found.operators:
        counts = sorted(found.operators.items(), key=lambda item: -abs(item[1][0] - item[1][1]))
        rows = ((cell(op), *changed(before, after)) for op, (before, after) in counts)
        yield table("operator", ">A", ">B", ">change", rows=rows)
        yield ""
    for kind, title in TITLES.items():
        lines: list[str] = getattr(found, kind)
        shown, more = first_of(lines, _LINES, verbose, "  ")
        if lines:
            yield heading(f"{title} ({number(len(lines))})")
        yield from (cell(f"  {text}", STYLES.get(kind, "")) for text in shown)
        yield from more
