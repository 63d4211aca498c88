"""Counters attached to the nodes of a model. They record the sides of thresholds, the branches, the
numbers of turns and the table rows that runs reached.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

THRESHOLDS, BRANCHES, TURNS = "thresholds", "branches", "loop turns"
ROWS, WEIGHTS, DEFAULTS = "rows", "weights", "defaults"
# the kinds that decide the path of a model; a required share counts them together
DECISIONS = (THRESHOLDS, BRANCHES, TURNS, DEFAULTS)


class Item(NamedTuple):
    """One target of coverage: its kind, its place, how much of it was reached, and a description of
    the rest. For a table also the rows (eight in a byte).
    """

    kind: str
    where: str
    reached: int
    of: int
    missing: str = ""
    rows: bytes = b""


def joined(items: Iterable[Item]) -> list[Item]:
    """Merges the items of tables and weights that several nodes read: the union of the rows, the
    largest number of elements. Other items stay unchanged.
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
            rows = bytes(x | y for x, y in zip(found[key].rows, item.rows))
            found[key] = rows_item(item.where, rows, item.of)
    return [*others, *found.values()]


def rows_item(table: str, rows: bytes, of: int) -> Item:
    """Returns the item of a table of which these rows were read (eight in a byte)."""
    read = sum(byte.bit_count() for byte in rows)
    missing = f"{of - read:,} rows not read" if read < of else ""
    return Item(ROWS, table, read, of, missing, rows)


def has_row(item: Item, row: int) -> bool:
    """Returns whether a row of a table was read."""
    return bool(item.rows[row // 8] & (128 >> row % 8))


Array: TypeAlias = "np.ndarray[Any, Any]"
Attributes: TypeAlias = Mapping[str, Any]
# one bound: its value (None: a truth value), an element below it (or false), one above (or true)
Side: TypeAlias = "tuple[float | None, bool, bool]"

_SAMPLE = 1024  # elements that are inspected first: they mostly show both sides
_LARGEST = 3e38  # larger bounds mean no bound: exporters write the largest float32


class Counter(ABC):
    """Counts the items that one node can reach. `see` returns whether all are reached."""

    @abstractmethod
    def see(
        self, attributes: Attributes, operands: Sequence[Any], results: Sequence[Any], turns: int
    ) -> bool:
        """Records one run of the node. `turns`: how often its bodies ran."""

    @abstractmethod
    def items(self) -> list[Item]:
        """Returns the items, with how much of each was reached."""


def _around(x: Array, bound: Any) -> tuple[bool, bool]:
    """Returns whether an element is below the bound, and whether one is above it."""
    if x.size == 0:
        return False, False
    if np.ndim(bound):
        return bool((x < bound).any()), bool((x > bound).any())
    few = x.reshape(-1)[:_SAMPLE]
    below, above = bool((few < bound).any()), bool((few > bound).any())
    if not (below and above) and x.size > _SAMPLE:
        low, high = x.min(), x.max()
        if low != low:  # NaN among them
            return bool((x < bound).any()), bool((x > bound).any())
        return bool(low < bound), bool(high > bound)
    return below, above


def _at(*bounds: Callable[[Attributes], float]) -> Callable[..., list[Side]]:
    """Returns a function that compares the first operand with bounds from the attributes."""

    def sides(
        attributes: Attributes, operands: Sequence[Any], results: Sequence[Any]
    ) -> list[Side]:
        known = [bound(attributes) for bound in bounds]
        return [(bound, *_around(operands[0], bound)) for bound in known]

    return sides


def _clip(attributes: Attributes, operands: Sequence[Any], results: Sequence[Any]) -> list[Side]:
    given = [*operands[1:3], None, None][:2]
    bounds = [
        attributes.get(name) if value is None else value
        for name, value in zip(("min", "max"), given)
    ]
    known = [float(np.asarray(bound).reshape(-1)[0]) for bound in bounds if bound is not None]
    return [(bound, *_around(operands[0], bound)) for bound in known]


def _extreme(attributes: Attributes, operands: Sequence[Any], results: Sequence[Any]) -> list[Side]:
    x, y = operands
    bound = float(y.reshape(-1)[0]) if y.size == 1 else 0.0
    if x.size == 1 and y.size != 1:
        x, y, bound = y, x, float(x.reshape(-1)[0])
    return [(bound, *_around(x, y.reshape(()) if y.size == 1 else y))]


def _truth(value: Any) -> list[Side]:
    found = np.asarray(value, bool)
    return [(None, not bool(found.all()), bool(found.any()))]


_ZERO = _at(lambda a: 0.0)
# operator -> the sides of its bounds, by attributes, operands and results
SIDES: dict[str, Callable[..., list[Side]]] = {
    **dict.fromkeys(("Relu", "LeakyRelu", "PRelu", "Elu", "Celu", "Selu", "Abs"), _ZERO),
    "ThresholdedRelu": _at(lambda a: a.get("alpha", 1.0)),
    "Shrink": _at(lambda a: -a.get("lambd", 0.5), lambda a: a.get("lambd", 0.5)),
    "HardSigmoid": _at(
        lambda a: -a.get("beta", 0.5) / (a.get("alpha", 0.2) or 1.0),
        lambda a: (1 - a.get("beta", 0.5)) / (a.get("alpha", 0.2) or 1.0),
    ),
    "HardSwish": _at(lambda a: -3.0, lambda a: 3.0),
    "Clip": _clip,
    "Max": _extreme,
    "Min": _extreme,
    **dict.fromkeys(
        ("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal"),
        lambda attributes, operands, results: _truth(results[0]),
    ),
    "Where": lambda attributes, operands, results: _truth(operands[0]),
}


class Thresholds(Counter):
    """The bounds of one node. A bound is reached when both of its sides are."""

    def __init__(self, op: str, where: str, names: Sequence[str]) -> None:
        self.sides, self.where, self.names = SIDES[op], where, names
        self.seen: list[list[Any]] = [[None, False, False] for _ in self.names]

    def see(
        self, attributes: Attributes, operands: Sequence[Any], results: Sequence[Any], turns: int
    ) -> bool:
        found = self.sides(attributes, operands, results)
        for seen, (bound, below, above) in zip(self.seen, found):
            seen[0] = bound
            seen[1] |= below
            seen[2] |= above
        return all(below and above for _, below, above in self.seen)

    def items(self) -> list[Item]:
        found = []
        for name, (bound, below, above) in zip(self.names, self.seen):
            if bound is not None and not abs(bound) < _LARGEST:
                continue
            at = name if bound is None else f"{bound:g}"
            sides = ("true", "false") if bound is None else (f"above {at}", f"below {at}")
            ran = below or above
            missing = "" if below and above else f"never {sides[0] if below else sides[1]}"
            missing = missing if ran or bound is not None else "did not run"
            found.append(Item(THRESHOLDS, self.where, int(below and above), 1, missing))
        return found


class Branches(Counter):
    """The two branches of an If."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.seen = {True: False, False: False}

    def see(
        self, attributes: Attributes, operands: Sequence[Any], results: Sequence[Any], turns: int
    ) -> bool:
        self.seen[bool(np.asarray(operands[0]).reshape(-1)[0])] = True
        return all(self.seen.values())

    def items(self) -> list[Item]:
        return [
            Item(BRANCHES, self.where, int(taken), 1, "" if taken else f"{name} not taken")
            for name, taken in (("then", self.seen[True]), ("else", self.seen[False]))
        ]


class Turns(Counter):
    """The numbers of turns of a Loop or Scan in one run. `counts`: the kinds of numbers that are
    possible.
    """

    def __init__(self, where: str, counts: Sequence[str]) -> None:
        self.where, self.counts = where, counts
        self.seen, self.most = dict.fromkeys(self.counts, False), 0

    def see(
        self, attributes: Attributes, operands: Sequence[Any], results: Sequence[Any], turns: int
    ) -> bool:
        name = "many" if turns > 1 else str(turns)
        self.most = max(self.most, turns)
        for key in (name, "any"):
            if key in self.seen:
                self.seen[key] = True
        return all(self.seen.values())

    def items(self) -> list[Item]:
        words = {
            "0": "never 0 turns",
            "1": "never 1 turn",
            "many": "never several turns",
            "any": "did not run",
        }
        most = f"at most {self.most}"
        return [
            Item(TURNS, f"{self.where} ({most})", int(seen), 1, "" if seen else words[name])
            for name, seen in self.seen.items()
        ]


class Rows(Counter):
    """The rows of a table that are read: the operand `index` selects rows of the operand `table`
    along `axis`.
    """

    def __init__(self, name: str, table: int, index: int, axis: int, first: bool = False) -> None:
        self.name, self.table, self.index, self.axis = name, table, index, axis
        self.first = first  # the index consists of tuples, whose first number is the row
        self.read: Array = np.zeros(0, bool)

    def see(
        self, attributes: Attributes, operands: Sequence[Any], results: Sequence[Any], turns: int
    ) -> bool:
        table, index = operands[self.table], operands[self.index]
        if not isinstance(table, np.ndarray) or index is None or table.ndim == 0:
            return False
        rows = table.shape[self.axis if self.axis < table.ndim else 0]
        if self.read.size != rows:
            self.read = np.zeros(rows, bool)
        at = np.asarray(index[..., 0] if self.first else index).astype(np.int64).reshape(-1)
        self.read[at[(at >= -rows) & (at < rows)]] = True
        return bool(self.read.all())

    def items(self) -> list[Item]:
        rows = self.read.size
        return [rows_item(self.name, np.packbits(self.read).tobytes(), rows)] if rows > 1 else []


# the operand that multiplies a weight, and the axis of that operand that runs along the weight
# (None: elementwise, broadcast)
Factor: TypeAlias = "tuple[int, int | None]"


class Elements(Counter):
    """The elements of a weight that can matter: those that meet a factor other than 0, or all
    elements if the operator is not known to multiply.
    """

    def __init__(self, name: str, size: int, operand: int, factor: Factor | None) -> None:
        self.name, self.size, self.operand, self.factor = name, size, operand, factor
        self.met: Array = np.zeros(1, bool)

    def see(
        self, attributes: Attributes, operands: Sequence[Any], results: Sequence[Any], turns: int
    ) -> bool:
        if self.factor is None:
            self.met[:] = True
            return True
        other, axis = self.factor
        x = operands[other]
        if not isinstance(x, np.ndarray) or (axis is not None and not -x.ndim <= axis < x.ndim):
            self.met[:] = True
            return True
        if axis is None:
            met = _reduced(np.asarray(x != 0), np.shape(operands[self.operand]))
        else:
            met = _met(np.moveaxis(x, axis, 0))
        self.met = met if self.met.shape != met.shape else self.met | met
        return bool(self.met.all())

    def items(self) -> list[Item]:
        share = float(self.met.mean()) if self.met.size else 1.0
        count = round(share * self.size)
        left = self.size - count
        return [Item(WEIGHTS, self.name, count, self.size, f"{left:,} not used" if left else "")]


def _met(x: Array) -> Array:
    """Returns the positions along the first axis with an element other than 0. A corner is
    inspected first.
    """
    corner = x[(slice(None), *(slice(4) for _ in range(x.ndim - 1)))]
    met = np.asarray((corner != 0).reshape(len(x), -1).any(axis=1))
    for at in np.flatnonzero(~met):
        met[at] = bool(np.any(x[at]))
    return met


def _reduced(mask: Array, shape: tuple[int, ...]) -> Array:
    """Returns the mask of a broadcast result, reduced to the axes of one operand."""
    mask = np.broadcast_to(mask, np.broadcast_shapes(mask.shape, shape))
    extra = mask.ndim - len(shape)
    axes = (*range(extra), *(extra + i for i, n in enumerate(shape) if n == 1))
    return np.asarray(mask.any(axis=axes)).reshape(shape)
