"""A table on a terminal that is too narrow for it: columns wrapped between words, and where even
the longest words do not fit side by side, a block of lines for each row.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

from onnxgrad.report.parts import Part, Table, Text, line

GAP = 3  # between two columns


def widths_of(part: Table, room: int) -> list[int] | None:
    """The width of each column in a table of at most `room` characters, no word cut; 0 for all
    where each fits as wide as it is, None where not even their longest words do.
    """
    rows: list[tuple[Text | str, ...]] = [tuple(n.lstrip(">") for n in part.columns), *part.rows]
    columns = list(zip_longest(*rows, fillvalue=""))  # a row may end early
    whole = [max(len(str(cell)) for cell in column) for column in columns]
    if sum(whole) + GAP * len(columns) <= room:
        return [0] * len(columns)
    least = [max(_longest_word(str(cell)) for cell in column) for column in columns]
    for i, name in enumerate(part.columns):  # numbers stay in one piece
        least[i] = whole[i] if name.startswith(">") else least[i]
    left = room - GAP * len(columns) - sum(least)
    if left < 0:
        return None
    # the columns that lack least first, each at most its part of what is left
    waiting = sorted(range(len(columns)), key=lambda i: whole[i] - least[i])
    for n, i in enumerate(waiting):
        more = min(whole[i] - least[i], left // (len(waiting) - n))
        least[i], left = least[i] + more, left - more
    return least


def _longest_word(text: str) -> int:
    return max(map(len, text.split()), default=0)


def heads(part: Table, count: int) -> list[str]:
    """The names of so many columns, as the table has them; empty where it names fewer."""
    return [*part.columns, *[""] * (count - len(part.columns))]


def blocks(part: Table) -> Iterator[Part]:
    """The rows one below the other: what each is called, and its other cells by column."""
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
