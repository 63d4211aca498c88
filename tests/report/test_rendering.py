"""Parts as plain text, as Markdown, and with colour."""

from __future__ import annotations

import io
import subprocess
import sys

from rich.console import Console

from onnxgrad.report.parts import Table, cell, heading, line, number, table
from onnxgrad.report.rendering import markdown, markup, plain, rich_of


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
