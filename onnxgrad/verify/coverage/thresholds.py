"""Counters of thresholds: the bounds of an operator, its keys, the constant ends of a Slice."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from onnxgrad.verify.coverage.bounds import Side
from onnxgrad.verify.coverage.counters import (
    THRESHOLDS,
    Array,
    Attributes,
    Counter,
    Goal,
    Item,
)
from onnxgrad.verify.coverage.sides import SIDES

_LARGEST = 3e38  # larger bounds mean no bound: exporters write the largest float32
# how far beside a bound a value is tried, relative to bounds above 1
_BESIDE, _CLOSE = 0.0625, 2.0**-20


class Thresholds(Counter):
    """The bounds of one node. A bound is reached when all needed sides of it are.

    `least`: the node compares sizes, or numbers computed from them, and this is the least bound
    that they can reach. Such bounds count only if the sizes differ between runs.
    """

    def __init__(
        self,
        op: str,
        where: str,
        inputs: Sequence[str],
        count: int,
        least: float | None,
        scope: str,
    ) -> None:
        self.sides, self.where, self.inputs, self.scope = SIDES[op], where, tuple(inputs), scope
        self.count, self.least, self.varied = count, least, least is None
        self.first: list[Any] | None = None
        self.found: list[Side] = []
        self.whole: list[bool] = []

    def see(
        self, attributes: Attributes, operands: Sequence[Any], results: Sequence[Any], turns: int
    ) -> bool:
        if not self.varied:
            now = [np.asarray(x).tolist() for x in operands]
            self.varied = self.first is not None and now != self.first
            self.first = now
        now_seen = self.sides(attributes, operands, results)
        if len(now_seen) != len(self.found):
            self.found = now_seen
        else:
            self.found = [
                new._replace(seen=new.seen | old.seen) for old, new in zip(self.found, now_seen)
            ]
        self.whole = [np.asarray(x).dtype.kind in "iub" for x in operands]
        return self.varied and not any(side.missing for side in self.found)

    def items(self) -> list[Item]:
        if not self.whole:
            return (
                []
                if self.least is not None
                else [Item(THRESHOLDS, self.where, 0, self.count, "did not run")]
            )
        if not self.varied:
            return []
        return [
            Item(THRESHOLDS, self.where, int(not side.missing), 1,
                 *((f"never {side.missing}", bytes([side.seen & side.needed]))
                   if side.missing else ()))
            for side in self.found if _counts(side, self.least)
        ]  # fmt: skip

    def goals(self) -> list[Goal]:
        found = []
        for side in self.found if self.varied else ():
            if side.missing and side.centers and _counts(side, self.least):
                values = _wanted(side, self.whole[side.operand])
                found.append(Goal(self.scope, self.inputs[side.operand], values))
        return found


def _counts(side: Side, least: float | None) -> bool:
    """Returns whether a bound is one: not the largest float, and one that sizes can reach."""
    numbers = [c for c in side.centers if isinstance(c, (int, float))]
    if any(abs(c) >= _LARGEST and not math.isinf(c) for c in numbers):
        return False
    if any(math.isinf(c) for c in numbers) and len(numbers) == 1:
        return False
    return least is None or any(c >= least for c in numbers)


def _wanted(side: Side, whole: bool) -> Array:
    """Returns the centers, and numbers beside them: far enough to be seen, and close."""
    if not all(isinstance(c, (int, float)) for c in side.centers):
        return np.array(side.centers, object)
    known = np.array(side.centers, np.float64)
    if not side.beside:
        return known
    scale = np.maximum(1.0, np.abs(known))
    gaps = [np.ones_like(known)] if whole else [_BESIDE * scale, _CLOSE * scale]
    if side.rows:
        known = known[None]
        gaps = [gap[None] for gap in gaps]
        return np.concatenate([known, *(known + s * gap for gap in gaps for s in (1, -1))])
    parts = [known + sign * gap for gap in gaps for sign in (1, -1)]
    return np.array(list(dict.fromkeys(np.concatenate([*parts[:2], known, *parts[2:]]))))


class Keys(Counter):
    """The keys that an operator of ai.onnx.ml knows: each of them, and an unknown value."""

    def __init__(self, where: str, keys: Array, of: str, columns: int, scope: str) -> None:
        self.where, self.keys, self.of, self.scope = where, keys, of, scope
        self.columns = columns  # that have replacements of their own
        self.met: Array = np.zeros(columns if columns > 1 else len(keys), bool)
        self.unknown = self.ran = False

    def see(
        self, attributes: Attributes, operands: Sequence[Any], results: Sequence[Any], turns: int
    ) -> bool:
        x, self.ran = np.asarray(operands[0]), True
        if self.columns > 1 and x.ndim and x.shape[-1] == self.columns:
            same = (x == self.keys[0]) | ((x != x) & (self.keys[0] != self.keys[0]))
            self.met = self.met | same.reshape(-1, self.columns).any(axis=0)
            self.unknown |= not bool(same.all())
        else:
            values = _plain(x)
            self.met = self.met.copy()
            for at in np.flatnonzero(~self.met[: len(self.keys)]):
                self.met[at] = _plain(self.keys[at : at + 1]) <= values
            self.unknown |= not values <= _plain(self.keys)
        return bool(self.met.all()) and self.unknown

    def items(self) -> list[Item]:
        left, words = int((~self.met).sum()), []
        what = "column" if self.columns > 1 else "key"
        if left:
            words.append(f"never {left:,} of {self.met.size:,} {what}s")
        if not self.unknown:
            words.append("never another value")
        reached = self.met.size - left + self.unknown
        missing = " or ".join(words) if self.ran else "did not run"
        return [Item(THRESHOLDS, self.where, reached, self.met.size + 1, missing)]

    def goals(self) -> list[Goal]:
        text = self.keys.dtype == object
        keys = self.keys if self.columns > 1 else self.keys[~self.met]
        other: Any = ["no such key"] if text else [_other(self.keys)]
        more = np.array(other, object if text else self.keys.dtype)
        whole = np.concatenate([keys, more] if not self.unknown else [keys])
        return [Goal(self.scope, self.of, whole)] if whole.size else []


def _plain(x: Array) -> set[Any]:
    """Returns the different values of an array; NaN as text, because it differs from itself."""
    values = set(np.asarray(x).reshape(-1).tolist())
    return {"NaN" if v != v else v for v in values}


def _other(keys: Array) -> Any:
    finite = keys[np.isfinite(keys)] if keys.dtype.kind == "f" else keys
    return (finite.max() if finite.size else 0) + 1


# operator -> the attributes that hold its keys
KEYS: Mapping[str, tuple[str, ...]] = {
    "LabelEncoder": ("keys_strings", "keys_int64s", "keys_floats", "keys_tensor"),
    "OneHotEncoder": ("cats_strings", "cats_int64s"),
    "CategoryMapper": ("cats_strings", "cats_int64s"),
    "Imputer": ("replaced_value_float", "replaced_value_int64"),
}


class Slices(Counter):
    """The constant ends of a Slice, or the diagonal of a Trilu, on axes whose sizes differ between
    runs.
    """

    def __init__(self, where: str, data: str, fixed: Sequence[int], scope: str) -> None:
        self.where, self.data, self.scope = where, data, scope
        self.fixed = tuple(fixed)  # operands that are constant: 1 for starts, 2 for ends
        self.sizes: dict[tuple[int, int], set[int]] = {}

    def see(
        self, attributes: Attributes, operands: Sequence[Any], results: Sequence[Any], turns: int
    ) -> bool:
        for axis, bound, size in self._bounds(attributes, operands):
            key = axis, bound
            self.sizes = {**self.sizes, key: self.sizes.get(key, set()) | {size}}
        return not self.sizes

    def _bounds(
        self, attributes: Attributes, operands: Sequence[Any]
    ) -> Iterator[tuple[int, int, int]]:
        x = operands[0]
        if not isinstance(x, np.ndarray):
            return
        if "upper" in attributes:
            k = operands[1] if len(operands) > 1 else None
            diagonal = 1 if k is None else abs(int(np.reshape(k, -1)[0])) + 1
            yield from ((x.ndim + i, diagonal, x.shape[i]) for i in (-1, -2) if diagonal > 1)
            return
        for operand in self.fixed:
            name = ("", "starts", "ends")[operand]
            ends = attributes.get(name) if len(operands) <= operand else operands[operand]
            axes = operands[3] if len(operands) > 3 else attributes.get("axes")
            values = np.asarray(ends).reshape(-1)
            along = range(len(values)) if axes is None else np.asarray(axes).reshape(-1)
            for end, axis in zip(values, along):
                bound = abs(int(end))
                if 1 < bound < 2**30:  # size 1 always runs
                    yield int(axis) % x.ndim, bound, x.shape[int(axis)]

    def _open(self) -> list[tuple[int, int, bool, bool]]:
        return [
            (axis, bound, any(s <= bound for s in sizes), any(s > bound for s in sizes))
            for (axis, bound), sizes in self.sizes.items()
            if len(sizes) > 1
        ]

    def items(self) -> list[Item]:
        return [
            Item(THRESHOLDS, self.where, int(few and many), 1,
                 "" if few and many else f"never {'more than' if few else 'at most'} {bound} on "
                 f"axis {axis}")
            for axis, bound, few, many in self._open()
        ]  # fmt: skip

    def goals(self) -> list[Goal]:
        return [
            Goal(self.scope, self.data, np.array([bound, bound + 1]), axis)
            for axis, bound, few, many in self._open()
            if not (few and many)
        ]
