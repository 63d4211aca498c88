"""The parts of a report: lines and tables with styles, and numbers as words.

A style consists of words of rich (`bold`, `dim`, `red`, `bold green`); `report.rendering` renders
the parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from onnxgrad.frozen import frozen
from onnxgrad.wording import printable

if TYPE_CHECKING:
    from onnxgrad.jobs.lint.table import Finding

LONGEST = 1500  # characters of a complaint or a cell: a model may have names of megabytes
_Item = TypeVar("_Item")


@frozen
class Text:
    """A line or a cell: pieces of text, each with its style. `indent` columns stay free on the
    left, also in wrapped lines.
    """

    pieces: tuple[tuple[str, str], ...]
    indent: int = 0

    def __post_init__(self) -> None:
        shown = tuple((printable(text), style) for text, style in self.pieces)
        object.__setattr__(self, "pieces", shown)

    def __add__(self, other: Text) -> Text:
        return Text(self.pieces + other.pieces, self.indent)

    def __str__(self) -> str:
        return "".join(text for text, _ in self.pieces)


@dataclass
class Table:
    """Rows of cells. A column whose name starts with `>` is right-aligned. Without `columns` the
    table has no head.
    """

    columns: tuple[str, ...] = ()
    title: str = ""
    rows: list[tuple[Text | str, ...]] = field(default_factory=list)
    sections: set[int] = field(default_factory=set)  # row counts after which a line is drawn
    # columns that a narrow terminal leaves out, the first first
    spare: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.columns = tuple(map(printable, self.columns))
        self.title = printable(self.title)

    def add_row(self, *cells: Text | str) -> None:
        """Adds a row."""
        self.rows.append(tuple(printable(c) if isinstance(c, str) else c for c in cells))

    def without(self, name: str) -> Table:
        """Returns the table without a column."""
        at = self.columns.index(name)
        rows = [row[:at] + row[at + 1 :] for row in self.rows]
        columns = self.columns[:at] + self.columns[at + 1 :]
        return replace(self, columns=columns, rows=rows)

    def add_section(self) -> None:
        """Adds a line below the rows so far."""
        self.sections.add(len(self.rows))


Part: TypeAlias = Text | Table | str


def table(
    *columns: str,
    title: str = "",
    rows: Iterable[Sequence[Text | str]] = (),
    spare: Iterable[str] = (),
) -> Table:
    """Returns a table with these columns and rows; those of `spare` that it has may be left out."""
    made = Table(columns, title, spare=tuple(name for name in spare if name in columns))
    for row in rows:
        made.add_row(*row)
    return made


def line(text: str, style: str = "", indent: int = 0) -> Text:
    """Returns a line of one style."""
    return Text(((text, style),), indent)


def lint_lines(found: Iterable[Finding], indent: str = "") -> Iterator[Text]:
    """Yields a line for each finding of the lints."""
    for one in found:
        yield cell(f"{indent}{one}", "red" if one.level == "error" else "yellow")


def heading(text: str) -> Text:
    """Returns a title line."""
    return line(text, "bold")


def cell(value: object, style: str = "") -> Text:
    """Returns any value as a table cell or a line; a longer text is cut at `LONGEST`."""
    text = str(value)
    return line(text if len(text) <= LONGEST else f"{text[:LONGEST]}...", style)


def file_names(models: Sequence[PurePath | str]) -> list[str]:
    """Returns the name of each file, or its whole path if two have the same name; text stays
    text.
    """
    names = [m.name if isinstance(m, PurePath) else m for m in models]
    pairs = zip(models, names, strict=True)
    return [str(model) if names.count(name) > 1 else name for model, name in pairs]


def first_of(
    items: Sequence[_Item], most: int, verbose: bool, indent: str = ""
) -> tuple[Sequence[_Item], list[Text]]:
    """Returns the first items, or all with `verbose`, and a line that counts the others, if any."""
    shown = items if verbose else items[:most]
    left = len(items) - len(shown)
    return shown, [line(f"{indent}and {number(left)} more (-v)", "dim")] if left else []


def entries(metadata: Mapping[str, str], longest: int, verbose: bool) -> Table:
    """Returns a table of metadata. Without `verbose` each value is one line of at most `longest`
    characters.
    """

    def short(text: str) -> str:
        return " ".join((text if len(text) <= longest else f"{text[: longest - 3]}...").split())

    rows = ((cell(k), cell(v if verbose else short(v))) for k, v in metadata.items())
    return table("metadata", "value", rows=rows)


def number(value: int) -> str:
    """Returns 12345 as 12,345."""
    return f"{value:,}"


def bytes_text(size: int) -> str:
    """Returns a size in decimal units."""
    value, unit = scaled(size, ("B", "kB", "MB", "GB", "TB"))
    if unit == "B":
        return f"{size} B"
    return f"{value:.3g} {unit}" if value < 99.95 else f"{value:.0f} {unit}"


def scaled(value: float, units: Sequence[str]) -> tuple[float, str]:
    """Returns the value in the unit that leaves at most three digits; each unit is a thousand times
    the one before.
    """
    for unit in units[:-1]:
        if value < 999.5:
            return value, unit
        value /= 1000
    return value, units[-1]


def change(before: int, after: int) -> Text:
    """Returns the change of a count: green if it shrank."""
    if before == after:
        return line("=", "dim")
    share = f" ({100 * (after - before) / before:+.0f} %)" if before else ""
    return line(f"{after - before:+,}{share}", "green" if after < before else "yellow")


def changed(before: int, after: int) -> tuple[str, str, Text]:
    """Returns the cells of a count before and after, and its change."""
    return number(before), number(after), change(before, after)


def seconds_text(seconds: float) -> str:
    """Returns a duration as text."""
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def share_text(value: float) -> str:
    """Returns a relative difference or tolerance as text."""
    return "0" if value == 0 else f"{value:.1e}"
