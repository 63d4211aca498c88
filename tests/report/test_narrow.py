"""Tables on narrow terminals: no word cut, nothing lost."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from onnxgrad.report.narrow import GAP, widths_of
from onnxgrad.report.parts import Table, table
from onnxgrad.report.rendering import rich_of


def rows() -> Table:
    made = table("value", ">error", "why it is so", title="what was checked")
    made.add_row("encoder.layer.0.weight", "1.5e-07", "")
    made.add_row("b", "12,345", "an element lies on a kink")
    return made


def printed(part: Table, width: int) -> str:
    file = io.StringIO()
    Console(file=file, width=width, color_system=None).print(rich_of(part))
    return file.getvalue()


@pytest.mark.parametrize("width", [30, 40, 46, 50, 60, 160])
def test_every_word_is_whole(width: int) -> None:
    text = printed(rows(), width)
    cells = [str(cell) for row in rows().rows for cell in row]
    assert {word for cell in cells for word in cell.split()} <= set(text.split())
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width


def test_rows_stand_one_below_the_other_where_columns_do_not_fit() -> None:
    lines = [line.rstrip() for line in printed(rows(), 30).splitlines()]
    assert lines[:3] == ["what was checked", "encoder.layer.0.weight", "  error: 1.5e-07"]
    assert lines[3:5] == ["b", "  error: 12,345"]


@pytest.mark.parametrize("width", [10, 160])
def test_a_row_may_end_early(width: int) -> None:
    made = rows()
    made.add_row("and 5 more")
    made.add_row()
    assert "more" in printed(made, width)
    grid = Table()
    grid.add_row("python", "3.11")
    assert printed(grid, width).split() == ["python", "3.11"]


def test_widths() -> None:
    whole = [22, 7, 25]
    assert widths_of(rows(), 160) == [0, 0, 0] == widths_of(rows(), sum(whole) + 9)
    assert widths_of(rows(), sum(whole) + 8) not in ([0, 0, 0], None)
    found = widths_of(rows(), 55)
    assert found is not None and found[:2] == whole[:2] and sum(found) + 3 * GAP == 55
    assert widths_of(rows(), 30) is None and widths_of(Table(), 30) == []
