"""Tables on narrow terminals: no word cut, nothing lost."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest
from rich.console import Console

from onnxgrad.report.parts import Table, cell, heading, line, number, table
from onnxgrad.report.rendering import GAP, markdown, markup, plain, rich_of, widths_of


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


def counts() -> Table:
    made = table("what", ">before", title="t")
    made.add_row(cell("nodes", "green"), number(1234))
    made.add_section()
    made.add_row("a|b", "5")
    return made


def test_plain() -> None:
    facts = Table()
    facts.add_row(cell("size", "dim"), "3 B")
    facts.add_row("n", "12")
    parts = [heading("title"), counts(), "", facts, line("law", indent=4), "[not markup] :smile:"]
    assert [text.rstrip() for text in plain(parts).splitlines()] == [
        "title", "t", "what    before", "──────────────", "nodes    1,234", "", "a|b          5", "", "size   3 B",
        "n      12", "    law", "[not markup] :smile:",
    ]  # fmt: skip
    assert plain([]) == "" and plain([line("a")]) == "a"


def test_a_narrow_terminal_leaves_spare_columns_out() -> None:
    """In their order, as many as do not fit; the rows stand one below the other only then."""
    made = table("status", "model", ">nodes", "checks", spare=("checks", ">nodes"))
    made.add_row("changed", "models/encoder.onnx", "1,204 → 1,002", "float64, onnxruntime")

    def shown(width: int) -> list[str]:
        Console(file=(file := io.StringIO()), width=width, color_system=None).print(rich_of(made))
        return [text.rstrip() for text in file.getvalue().splitlines()]

    assert shown(100)[0].split() == ["status", "model", "nodes", "checks"]
    assert shown(50)[0].split() == ["status", "model", "nodes"]
    assert [*shown(40)[0].split(), len(shown(40))] == ["status", "model", 3]
    assert shown(20)[0] == "changed" and "checks:" in "".join(shown(20))
    assert made.columns[-1] == "checks" and len(made.rows[0]) == 4


def test_colour() -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, color_system="standard", width=80)
    console.print(rich_of(line("all ", "dim") + line("good", "bold green")))
    assert file.getvalue() == "\x1b[2mall \x1b[0m\x1b[1;32mgood\x1b[0m\n"


def test_markdown() -> None:
    parts = [heading("a *b*"), "one", "", cell("  two <x>"), counts(), "three"]
    assert markdown(parts) == (
        "### a \\*b\\*\n\n- one\n- two \\<x\\>\n\n"
        "| what | before |\n| --- | --: |\n| nodes | 1,234 |\n| a\\|b | 5 |\n\n- three"
    )


def test_rich_is_imported_by_who_prints() -> None:
    """It takes a tenth of the time that the package does to import, and each child pays it."""
    code = "import sys, onnxgrad; print('rich' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_markup() -> None:
    made = table("name", ">count")
    made.add_row(cell("<b>&\x1b", "bold red"), "3")
    assert markup([heading("title"), made, ""]) == (
        '<div class="onnxgrad"><div><span style="font-weight:600">title</span></div>'
        '<table><tr><th style="text-align:left">name</th><th style="text-align:left">count</th></tr>'
        '<tr><td style="text-align:left"><span style="font-weight:600;color:#d1443d">&lt;b&gt;&amp;\\x1b</span></td>'
        '<td style="text-align:right">3</td></tr></table></div>'
    )
