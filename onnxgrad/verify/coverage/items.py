"""One thing that a proof may reach, and how a list of them is added up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

THRESHOLDS, BRANCHES, TURNS = "thresholds", "branches", "loop turns"
ROWS, WEIGHTS, DEFAULTS = "rows", "weights", "defaults"
# what decides which way a model takes: a required share is of these together
DECISIONS = (THRESHOLDS, BRANCHES, TURNS, DEFAULTS)


class Item(NamedTuple):
    """One thing to reach: of which kind, where it stands, how much of it was reached, in words what
    is missing; of a table also which rows (`packed`: eight in a byte).
    """

    kind: str
    where: str
    reached: int
    of: int
    missing: str = ""
    rows: bytes = b""


def joined(items: Iterable[Item]) -> list[Item]:
    """Tables and weights that several nodes read, once each: all rows that are read, the most of
    the elements. Everything else as it is.
    """
    found: dict[tuple[str, str], Item] = {}
    others = []
    for item in items:
        key = (item.kind, item.where)
        if item.kind not in (ROWS, WEIGHTS):
            others.append(item)
        elif key not in found:
            found[key] = item
        elif item.kind == WEIGHTS:
            found[key] = max(found[key], item, key=lambda one: one.reached)
        elif len(item.rows) == len(found[key].rows):
            found[key] = _united(found[key], item)
    return [*others, *found.values()]


def _united(a: Item, b: Item) -> Item:
    rows = bytes(x | y for x, y in zip(a.rows, b.rows))
    read = sum(byte.bit_count() for byte in rows)
    missing = f"{a.of - read:,} rows not read" if read < a.of else ""
    return a._replace(reached=read, missing=missing, rows=rows)


def has_row(item: Item, row: int) -> bool:
    """Whether a row of a table was read."""
    return bool(item.rows[row // 8] & (128 >> row % 8))
