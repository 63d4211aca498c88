"""Tables and lines of a report in the page's form: cells are lists of pieces with a style."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from onnxgrad.report.parts import Part, Table, Text
from onnxgrad.wording import printable

Section: TypeAlias = dict[str, Any]


def section(kind: str, title: str, **data: Any) -> Section:
    """A part of the page under a title; `kind` says which script draws it."""
    return {"kind": kind, "title": printable(title), **data}


def table_section(title: str, found: Table, note: str = "") -> Section:
    """A table under a title."""
    return section("table", title, note=note, **table_data(found))


def table_data(found: Table) -> dict[str, Any]:
    """The columns, with whether each is of numbers, and the rows."""
    return {
        "columns": [[name.lstrip(">"), name.startswith(">")] for name in found.columns],
        "rows": [[_pieces(cell) for cell in row] for row in found.rows],
    }


def lines_of(parts: Iterable[Part]) -> list[Any]:
    """The lines among the parts, without the tables."""
    return [_pieces(p) for p in parts if not isinstance(p, Table) and str(p)]


def tables_of(parts: Iterable[Part]) -> Sequence[Table]:
    """The tables among the parts."""
    return [p for p in parts if isinstance(p, Table) and p.rows]


def _pieces(cell: Text | str) -> Any:
    """Text alone where it has no style."""
    if isinstance(cell, str):
        return printable(cell)
    pieces = [[text, style] for text, style in cell.pieces if text]
    return str(cell) if not any(style for _, style in pieces) else pieces
