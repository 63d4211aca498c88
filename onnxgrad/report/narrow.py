"""A table on a terminal that is too narrow for it: columns wrapped between words, and where even
the longest words do not fit side by side, a block of lines for each row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from onnxgrad.report.parts import Part, Table, Text, line

GAP = 3  # between two columns


def widths_of(part: Table, room: int) -> list[int] | None:
    """The width of each column in a table of at most `room` characters, no word cut: what it needs
    where all fit; None where not even their longest words do.
    """
    rows: list[tuple[Text | str, ...]] = [tuple(n.lstrip(">") for n in part.columns), *part.rows]
    columns = list(zip(*(row for row in rows if row), strict=True))
    whole = [max(len(str(cell)) for cell in column) for column in columns]
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


def blocks(part: Table) -> Iterator[Part]:
    """The rows one below the other: what each is called, and its other cells by column."""
    if part.title:
        yield line(part.title, "bold")
    names = [name.lstrip(">") for name in part.columns] or [""] * max(
        map(len, part.rows), default=0
    )
    for row in part.rows:
        first, *others = (cell if isinstance(cell, Text) else line(cell) for cell in row)
        if str(first):
            yield first
        yield from _rest(names[1:], others)


def _rest(names: Sequence[str], cells: Sequence[Text]) -> Iterator[Text]:
    for name, cell in zip(names, cells, strict=False):
        if str(cell).strip():
            head = line(f"{name}: " if name else "", "dim", indent=2)
            yield head + cell
