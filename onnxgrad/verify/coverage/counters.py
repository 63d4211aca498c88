"""Counters attached to the nodes of a model. They record the sides of thresholds, the branches, the
numbers of turns and the table rows that runs reached.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from onnxgrad.wording import counted

THRESHOLDS, BRANCHES, TURNS = "thresholds", "branches", "loop turns"
ROWS, WEIGHTS, DEFAULTS = "rows", "weights", "defaults"
# the kinds that decide the path of a model; a required share counts them together
DECISIONS = (THRESHOLDS, BRANCHES, TURNS, DEFAULTS)
_NEVER, _OR = "never ", " or "  # the sides of a bound that no run reached


class Item(NamedTuple):
    """One target of coverage: its kind, its place, how much of it was reached, and a description of
    the rest. For a table also the rows (eight in a byte), for other items the sides that were
    reached of what is missing.
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


def of_several(lists: Iterable[tuple[str, Sequence[Item]]]) -> tuple[Item, ...]:
    """Merges the items of several proofs: those of equal models, one by one, as runs of one model;
    those of a model that differs keep apart, with the proof's place.
    """
    found: dict[tuple[Any, ...], list[Item]] = {}
    for place, items in lists:
        model = tuple((i.kind, i.where, i.of) for i in items)
        if model in found:
            found[model] = [_more(a, b) for a, b in zip(found[model], items)]
        else:
            apart = f"{place}: " if place else ""
            found[model] = [i._replace(where=apart + i.where) for i in items]
    return tuple(item for items in found.values() for item in items)


def _more(a: Item, b: Item) -> Item:
    """Returns the targets that the runs of two proofs reached together. For an item with several
    targets, returns those of the better proof, which may be fewer.
    """
    if a.kind == ROWS:
        return joined([a, b])[0]
    best = max(a, b, key=progress)
    if best.of > 1 or not best.missing.startswith(_NEVER):
        return best
    both = [set(i.missing.removeprefix(_NEVER).split(_OR)) for i in (a, b)]
    words = [w for w in best.missing.removeprefix(_NEVER).split(_OR) if w in both[0] & both[1]]
    missing = _NEVER + _OR.join(words) if words else ""
    return best._replace(reached=int(not words), missing=missing)


def rows_item(table: str, rows: bytes, of: int) -> Item:
    """Returns the item of a table of which these rows were read (eight in a byte)."""
    read = sum(byte.bit_count() for byte in rows)
    missing = f"{counted(of - read, 'row')} not read" if read < of else ""
    return Item(ROWS, table, read, of, missing, rows)


def progress(item: Item) -> int:
    """Returns a number that grows with each side that is reached."""
    return 8 * item.reached + sum(byte.bit_count() for byte in item.rows)


Array: TypeAlias = "np.ndarray[Any, Any]"
Attributes: TypeAlias = Mapping[str, Any]


class Goal(NamedTuple):
    """Values that would raise the coverage. `scope`: the function in which `value` is a name
    (empty: the graph). `wanted`: numbers or texts that elements of the value should have, or rows
    of them (NaN: any number). `axis`: they are sizes of the value along this axis instead.
    """

    scope: str
    value: str
    wanted: Array
    axis: int | None = None


class Reach(NamedTuple):
    """The parts of a constant that runs read. `value` is the operand of a node, in the function
    `scope`; `mask` marks its elements, or its rows along `axis`. `rows` and `ends` are the values
    by which rows are looked up (empty: none): their numbers, or the end of a Slice.
    """

    scope: str
    value: str
    mask: Array
    axis: int | None = None
    rows: str = ""
    ends: str = ""


class Counter(ABC):
    """Counts the items that one node can reach. `see` returns whether all are reached. It replaces
    attributes and changes none in place, so that a copy of `vars` is a state to return to.
    """

    @abstractmethod
    def see(
        self, attributes: Attributes, operands: Sequence[Any], results: Sequence[Any], turns: int
    ) -> bool:
        """Records one run of the node. `turns`: how often its bodies ran."""

    @abstractmethod
    def items(self) -> list[Item]:
        """Returns the items, with how much of each was reached."""

    def goals(self) -> list[Goal]:
        """Returns values that would reach more."""
        return []

    def reach(self) -> Reach | None:
        """Returns the parts of a constant that were read, if the node reads one."""
        return None


class Branches(Counter):
    """The two branches of an If."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.seen = {True: False, False: False}

    def see(
        self, attributes: Attributes, operands: Sequence[Any], results: Sequence[Any], turns: int
    ) -> bool:
        self.seen = {**self.seen, bool(np.asarray(operands[0]).reshape(-1)[0]): True}
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
        self.seen = {key: seen or key in (name, "any") for key, seen in self.seen.items()}
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
    """The rows of a table along `axis` that are read: those that the operand `index` selects, or,
    for a Slice, those between two ends.
    """

    def __init__(
        self, name: str, inputs: Sequence[str], table: int, index: int, axis: int, scope: str,
        *, first: bool = False, between: bool = False,
    ) -> None:  # fmt: skip
        self.name, self.table, self.index, self.axis = name, table, index, axis
        self.inputs, self.scope = tuple(inputs), scope
        self.first = first  # the index consists of tuples, whose first number is the row
        self.between = between
        self.read: Array = np.zeros(0, bool)

    def see(
        self, attributes: Attributes, operands: Sequence[Any], results: Sequence[Any], turns: int
    ) -> bool:
        shape, index = getattr(operands[self.table], "shape", ()), operands[self.index]
        if not shape or index is None:
            return False
        rows = shape[self.axis if self.axis < len(shape) else 0]
        self.read = self.read.copy() if self.read.size == rows else np.zeros(rows, bool)
        if self.between:
            self.read[_slice(operands, self.axis)] = True
        else:
            at = np.asarray(index[..., 0] if self.first else index).astype(np.int64).reshape(-1)
            self.read[at[(at >= -rows) & (at < rows)]] = True
        return bool(self.read.all())

    def items(self) -> list[Item]:
        rows = self.read.size
        return [rows_item(self.name, np.packbits(self.read).tobytes(), rows)] if rows > 1 else []

    def reach(self) -> Reach | None:
        by = self.inputs[self.index]
        index, ends = ("", by) if self.between else (by, "")
        known = self.read if self.read.size else np.zeros((), bool)
        axis = self.axis if self.read.size else None
        return Reach(self.scope, self.inputs[self.table], known, axis, index, ends)


def _slice(operands: Sequence[Any], axis: int) -> slice:
    """Returns the part of an axis that the operands of a Slice select."""
    table, starts, ends, axes, steps = [*operands, None, None][:5]
    rank = np.ndim(table)
    along = (
        range(np.size(starts)) if axes is None else [int(a) % rank for a in np.reshape(axes, -1)]
    )
    if axis % rank not in along:
        return slice(None)
    at = along.index(axis % rank)
    step = 1 if steps is None else int(np.reshape(steps, -1)[at])
    first, last = int(np.reshape(starts, -1)[at]), int(np.reshape(ends, -1)[at])
    return slice(*slice(first, last, step).indices(np.shape(table)[axis]))


class Factor(NamedTuple):
    """The operand that multiplies a weight, its axis that runs along the weight, and that axis of
    the weight.
    """

    operand: int
    axis: int
    along: int


# elements of an operand that decide a result -> as a mask of the result, by all operands
Chosen: TypeAlias = "Callable[[Sequence[Any]], Any]"
# (operator, operand that is a weight) -> where its elements can matter
CHOSEN: dict[tuple[str, int], Chosen] = {
    ("Mul", 0): lambda x: x[1] != 0,
    ("Mul", 1): lambda x: x[0] != 0,
    ("Div", 1): lambda x: x[0] != 0,
    ("PRelu", 1): lambda x: x[0] < 0,
    ("Where", 1): lambda x: x[0] != 0,
    ("Where", 2): lambda x: x[0] == 0,
    ("Max", 0): lambda x: x[0] >= x[1],
    ("Max", 1): lambda x: x[1] >= x[0],
    ("Min", 0): lambda x: x[0] <= x[1],
    ("Min", 1): lambda x: x[1] <= x[0],
}


class Elements(Counter):
    """The elements of a weight that can matter: those that meet a factor other than 0, those that
    are chosen, or all elements if the operator is not known.

    `index`: the value that selects rows of the weight if the factor is a OneHot.
    """

    def __init__(
        self, name: str, size: int, inputs: Sequence[str], operand: int,
        factor: Factor | Chosen | None, scope: str = "", index: str = "",
    ) -> None:  # fmt: skip
        self.name, self.size, self.operand, self.factor = name, size, operand, factor
        self.value, self.scope, self.index = inputs[operand], scope, index
        self.met: Array = np.zeros((), bool)
        self.shape: tuple[int, ...] = ()

    def see(
        self, attributes: Attributes, operands: Sequence[Any], results: Sequence[Any], turns: int
    ) -> bool:
        self.shape, known = (
            np.shape(operands[self.operand]),
            all(x is None or isinstance(x, np.ndarray) for x in operands),
        )
        met: Array = np.ones((), bool)
        if isinstance(self.factor, Factor):
            x, axis = operands[self.factor.operand], self.factor.axis
            if known and x is not None and -x.ndim <= axis < x.ndim:
                met = _met(x.swapaxes(axis, 0))
        elif self.factor is not None and known:
            met = reduced(np.asarray(self.factor(operands)), self.shape)
        self.met = met if self.met.shape != met.shape else self.met | met
        return bool(self.met.all())

    def items(self) -> list[Item]:
        share = float(self.met.mean()) if self.met.size else 1.0
        count = round(share * self.size)
        left = self.size - count
        return [Item(WEIGHTS, self.name, count, self.size, f"{left:,} not used" if left else "")]

    def reach(self) -> Reach | None:
        if not isinstance(self.factor, Factor) or self.met.ndim != 1:
            return Reach(self.scope, self.value, self.met)
        along = self.factor.along
        wide = self.shape[along] if len(self.shape) > along else 1
        if self.met.size == wide:
            return Reach(self.scope, self.value, self.met, along, self.index)
        if self.met.size % wide or not self.shape[0] or self.shape[0] % (self.met.size // wide):
            return Reach(self.scope, self.value, np.ones((), bool))
        groups = self.met.size // wide  # of a convolution
        each = np.repeat(self.met.reshape(groups, wide), self.shape[0] // groups, axis=0)
        mask = each.reshape(*each.shape, *(1 for _ in self.shape[2:]))
        return Reach(self.scope, self.value, mask)


def _met(x: Array) -> Array:
    """Returns the positions along the first axis with an element other than 0. A corner is
    inspected first.
    """
    corner = x[(slice(None), *(slice(4) for _ in range(x.ndim - 1)))]
    met = np.asarray((corner != 0).reshape(len(x), -1).any(axis=1))
    for at in np.flatnonzero(~met):
        met[at] = bool(np.any(x[at]))
    return met


def reduced(mask: Array, shape: tuple[int, ...]) -> Array:
    """Returns the mask of a broadcast result, reduced to the axes of one operand."""
    mask = np.broadcast_to(mask, np.broadcast_shapes(mask.shape, shape))
    extra = mask.ndim - len(shape)
    axes = (*range(extra), *(extra + i for i, n in enumerate(shape) if n == 1))
    return np.asarray(mask.any(axis=axes)).reshape(shape)
