"""Renders the parts of a report as plain text, Markdown, HTML for notebooks, and for rich.

rich is imported late: importing it takes a tenth of a second, and children that run models print
nothing.
"""

from __future__ import annotations

import html
import io
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import TYPE_CHECKING

from onnxgrad.report.parts import Part, Table, Text, line
from onnxgrad.wording import printable

if TYPE_CHECKING:
    import rich.console
    import rich.table


GAP = 3  # between two columns


def widths_of(part: Table, room: int) -> list[int] | None:
    """Returns the width of each column in a table of at most `room` characters, without cutting
    words: 0 for all if each fits at its full width, None if not even their longest words fit.
    """
    rows: list[tuple[Text | str, ...]] = [tuple(n.lstrip(">") for n in part.columns), *part.rows]
    columns = list(zip_longest(*rows, fillvalue=""))  # a row may end early
    whole = [max(len(str(cell)) for cell in column) for column in columns]
    if sum(whole) + GAP * len(columns) <= room:
        return [0] * len(columns)
    least = [
        max(len(word) for text in column for word in str(text).split() or [""])
        for column in columns
    ]
    for i, name in enumerate(part.columns):  # numbers are not wrapped
        least[i] = whole[i] if name.startswith(">") else least[i]
    left = room - GAP * len(columns) - sum(least)
    if left < 0:
        return None
    # the columns that lack least come first, each gets at most its share of the rest
    waiting = sorted(range(len(columns)), key=lambda i: whole[i] - least[i])
    for n, i in enumerate(waiting):
        more = min(whole[i] - least[i], left // (len(waiting) - n))
        least[i], left = least[i] + more, left - more
    return least


def heads(part: Table, count: int) -> list[str]:
    """Returns `count` names of columns, empty for columns without a name."""
    return [*part.columns, *[""] * (count - len(part.columns))]


def blocks(part: Table) -> Iterator[Part]:
    """Yields the rows one below the other: the name of each, and its other cells by column."""
    if part.title:
        yield line(part.title, "bold")
    for row in part.rows:
        cells = [cell if isinstance(cell, Text) else line(cell) for cell in row]
        if cells and str(cells[0]):
            yield cells[0]
        for name, cell in list(zip(heads(part, len(cells)), cells, strict=False))[1:]:
            if str(cell).strip():
                known = f"{name.lstrip('>')}: " if name else ""
                yield line(known, "dim", indent=2) + cell


WIDTH = 160  # for pipes, files and strings; tables use only the width they need


def markup(parts: Iterable[Part]) -> str:
    """Returns the parts as a self-contained piece of HTML: tables, and lines between them."""
    return f'<div class="onnxgrad">{"".join(map(_markup, parts))}</div>'


def _markup(part: Part) -> str:
    if isinstance(part, Table):
        titles = (html.escape(name.lstrip(">")) for name in part.columns)
        head = "".join(f'<th style="text-align:left">{title}</th>' for title in titles)
        rows = [f"<tr>{head}</tr>"] if part.columns else []
        right = [name.startswith(">") for name in part.columns]
        for row in part.rows:
            cells = (_cell(c, i < len(right) and right[i]) for i, c in enumerate(row))
            rows.append(f"<tr>{''.join(cells)}</tr>")
        return f"<table>{''.join(rows)}</table>" if rows else ""
    return f"<div>{_pieces(part)}</div>" if str(part) else ""


def _cell(value: Text | str, right: bool) -> str:
    return f'<td style="text-align:{"right" if right else "left"}">{_pieces(value)}</td>'


# colours that are readable in light and dark notebooks
_CSS = {
    "bold": "font-weight:600",
    "dim": "opacity:.65",
    "red": "color:#d1443d",
    "green": "color:#2a9461",
    "yellow": "color:#a87b10",
    "cyan": "font-family:monospace",
}


def _pieces(value: Text | str) -> str:
    found = []
    for text, style in ((value, ""),) if isinstance(value, str) else value.pieces:
        css = ";".join(_CSS[word] for word in style.split() if word in _CSS)
        escaped = html.escape(printable(text))
        found.append(f'<span style="{css}">{escaped}</span>' if css else escaped)
    return "".join(found)


def plain(parts: Iterable[Part]) -> str:
    """Returns the parts as text without colour, without a newline at the end."""
    from rich.console import Console

    file = io.StringIO()
    console = Console(
        file=file,
        width=WIDTH,
        color_system=None,
        no_color=True,
        markup=False,
        emoji=False,
        highlight=False,
    )
    for part in parts:
        console.print(rich_of(part))
    return file.getvalue().removesuffix("\n")


def rich_of(part: Part) -> rich.console.RenderableType:
    """Returns the renderable that rich prints for a part."""
    from rich.padding import Padding
    from rich.text import Text as RichText

    if isinstance(part, Table):
        return _Fitting(part)
    if isinstance(part, str):
        return RichText(printable(part))
    if len(part.pieces) == 1:
        made = RichText(part.pieces[0][0], style=part.pieces[0][1])
    else:
        made = RichText.assemble(*part.pieces)
    return Padding(made, (0, 0, 0, part.indent)) if part.indent else made


class _Fitting:
    """A table if it fits, without some of its spare columns if need be, else its rows one below the
    other.
    """

    def __init__(self, part: Table) -> None:
        self.part = part

    def __rich_console__(
        self, _: rich.console.Console, options: rich.console.ConsoleOptions
    ) -> rich.console.RenderResult:
        part, spare = self.part, list(self.part.spare)
        while (widths := widths_of(part, options.max_width)) is None and spare:
            part = part.without(spare.pop(0))
        if widths is None:
            yield from map(rich_of, blocks(self.part))
        else:
            yield _rich_table(part, widths)


def _rich_table(part: Table, widths: list[int]) -> rich.table.Table:
    from rich import box
    from rich.table import Table as RichTable

    if part.columns:
        made = RichTable(
            box=box.SIMPLE_HEAD,
            title=part.title or None,
            title_justify="left",
            title_style="bold",
            pad_edge=False,
            show_edge=False,
        )
    else:
        made = RichTable.grid(padding=(0, 3, 0, 0))
    for name, width in zip(heads(part, len(widths)), widths, strict=True):
        made.add_column(
            name.lstrip(">"),
            justify="right" if name.startswith(">") else "left",
            width=width or None,  # only if needed: some versions of rich pad it
            overflow="fold",
        )
    for i, row in enumerate(part.rows, 1):
        made.add_row(*map(rich_of, row), end_section=i in part.sections)
    return made


def markdown(parts: Iterable[Part]) -> str:
    """Returns the parts as Markdown: bold lines as headings, tables as tables, other lines as items
    of lists.
    """
    blocks: list[str] = []
    for part in parts:
        if isinstance(part, Table):
            blocks.append(_markdown_table(part))
        elif isinstance(part, Text) and part.pieces and part.pieces[0][1] == "bold":
            blocks.append(f"### {_escaped(str(part))}")
        elif text := _escaped(str(part)):
            if blocks and blocks[-1].startswith("- "):  # items of one list stand together
                blocks[-1] += f"\n- {text}"
            else:
                blocks.append(f"- {text}")
    return "\n\n".join(blocks)


def _markdown_table(part: Table) -> str:
    width = max(map(len, part.rows), default=0)
    columns = part.columns or ("",) * width
    rows = [
        [_escaped(name.lstrip(">")) for name in columns],
        ["--:" if name.startswith(">") else "---" for name in columns],
    ]
    rows += [[_escaped(str(cell)) for cell in row] for row in part.rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _escaped(text: str) -> str:
    """Returns text with the characters of Markdown escaped."""
    shown = " ".join(printable(text).split())
    return "".join(f"\\{c}" if c in "\\`*_<>|#[]&~" else c for c in shown)
