"""What reports are made of: tables, cells, and numbers as words."""

from __future__ import annotations

import re

from rich import box
from rich.table import Table
from rich.text import Text

LONGEST = 1500  # characters of a complaint or a cell: a model may have names of megabytes
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def clean(text: str) -> str:
    """`text` without control characters: names inside a model must not steer the reader's terminal."""
    return _CONTROL.sub(lambda m: f"\\x{ord(m[0]):02x}", text)


def table(*columns: str, title: str | None = None) -> Table:
    """An empty table; a column whose name starts with `>` is right-aligned."""
    made = Table(
        box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", pad_edge=False, show_edge=False
    )
    for name in columns:
        right = name.startswith(">")
        made.add_column(name.lstrip(">"), justify="right" if right else "left", no_wrap=right, overflow="fold")
    return made


def heading(text: str) -> Text:
    """A title line."""
    return Text(clean(text), style="bold")


def cell(value: object, style: str = "") -> Text:
    """A table cell of any value; of text as long as no line is, its beginning."""
    text = str(value)
    return Text(clean(text if len(text) <= LONGEST else f"{text[:LONGEST]}..."), style=style)


def number(value: int) -> str:
    """12345 -> 12 345 with thin structure: 12,345."""
    return f"{value:,}"


def bytes_text(size: int) -> str:
    """A size in decimal units."""
    value, units = float(size), ["B", "kB", "MB", "GB", "TB"]
    while value >= 999.5 and len(units) > 1:
        value /= 1000
        units.pop(0)
    return f"{size} B" if units[0] == "B" else f"{value:.3g} {units[0]}" if value < 99.95 else f"{value:.0f} {units[0]}"


def change(before: int, after: int) -> Text:
    """What became of a count: green when it shrank."""
    if before == after:
        return Text("=", style="dim")
    share = f" ({100 * (after - before) / before:+.0f} %)" if before else ""
    return Text(f"{after - before:+,}{share}", style="green" if after < before else "yellow")


def seconds_text(seconds: float) -> str:
    """A duration."""
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def share_text(value: float) -> str:
    """A relative difference or tolerance."""
    return "0" if value == 0 else f"{value:.1e}"
