"""Values at which models take another way: zeros, ties, both sides of comparisons, masks and
switches the other way.

A usual feed (`generate`) is random and in general position: no element is 0, no two are equal,
every NonZero, Unique or Equal finds what it always finds. Here each usual value becomes one that is
not: mirrored within its bounds, half of it rounded to a few steps, some elements 0 (of each input
another number of them, so that sizes that depend on data differ), some equal, some at and beside
the constants that the model compares them with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from onnxgrad.verify.feeds.value_bounds import Uses

Array: TypeAlias = np.ndarray[Any, Any]

_SHARE = 8  # one element in eight becomes 0, one in eight a repeated value
_BESIDE = 0.0625  # how far beside a threshold
_MOST_THRESHOLDS = 8
_MOST_ALONE = 4  # inputs that are tried as the one with a nonzero element


@dataclass(frozen=True)
class Edges:
    """How far to go. `sizes`: counts, lengths, switches and values outside their usual bounds too;
    `only`: this input keeps one nonzero element and the others keep them all, for models that
    broadcast one data-dependent size.
    """

    sizes: bool = True
    only: str | None = None


def variants(names: Iterable[str]) -> list[Edges]:
    """What to try, until the model runs: everything, then less of it."""
    return [
        Edges(),
        Edges(sizes=False),
        *(Edges(False, name) for name in list(names)[:_MOST_ALONE]),
    ]


@dataclass(frozen=True)
class Slot:
    """What is known of one input: its kind, the closed interval of its usual values, how many
    inputs come before it.
    """

    name: str
    kind: str
    low: float
    high: float
    uses: Uses
    turn: int


def edged(usual: Array, slot: Slot, edges: Edges, rng: np.random.Generator) -> Array:
    """The value for an edge case, in the shape (and for integers the range) of the usual one."""
    make: Callable[[Array, Slot, Edges, np.random.Generator], Array] = _BY_KIND.get(
        slot.kind, _same
    )
    return make(usual, slot, edges, rng) if usual.size else usual


def _same(usual: Array, slot: Slot, edges: Edges, rng: np.random.Generator) -> Array:
    return usual


def _mask(usual: Array, slot: Slot, edges: Edges, rng: np.random.Generator) -> Array:
    return np.asarray(1 - usual)


def _count(usual: Array, slot: Slot, edges: Edges, rng: np.random.Generator) -> Array:
    more = usual + 1
    return (
        np.asarray(np.minimum(more, slot.high) if slot.uses.bounded else more)
        if edges.sizes
        else usual
    )


def _length(usual: Array, slot: Slot, edges: Edges, rng: np.random.Generator) -> Array:
    """Each row shorter than the one before, none empty."""
    if not edges.sizes:
        return usual
    less = 1 + np.arange(usual.size).reshape(usual.shape)
    return np.asarray(np.maximum(usual - less, max(slot.low, min(1, slot.high)))).astype(
        usual.dtype
    )


def _switch(usual: Array, slot: Slot, edges: Edges, rng: np.random.Generator) -> Array:
    """Another value that the model knows, or one that it does not."""
    if not edges.sizes:
        return usual
    first = usual.reshape(-1)[0]
    others = [v for v in slot.uses.equal_to if v != first]
    return np.full_like(usual, others[0] if others else first + 1)


def _whole(usual: Array, slot: Slot, edges: Edges, rng: np.random.Generator) -> Array:
    made = slot.low + slot.high - usual
    return _marked(np.asarray(made).astype(usual.dtype), usual, slot, edges, rng, 1.0)


def _real(usual: Array, slot: Slot, edges: Edges, rng: np.random.Generator) -> Array:
    bounded = math.isfinite(slot.low) and math.isfinite(slot.high)
    start, step = (slot.low, (slot.high - slot.low) / 4 or 1.0) if bounded else (0.0, 0.5)
    made = np.asarray(slot.low + slot.high - usual if bounded else -usual)
    steps = np.round((made - start) / step)
    if not bounded:
        # how many zeros there are is decided below
        steps = np.where(steps == 0, np.where(made < 0, -1, 1), steps)
    made = np.where(rng.random(made.shape) < 0.5, start + step * steps, made)
    return _marked(made, usual, slot, edges, rng, _BESIDE)


def _text(usual: Array, slot: Slot, edges: Edges, rng: np.random.Generator) -> Array:
    made = usual.copy()
    order = rng.permutation(made.size)
    made.reshape(-1)[order[: (made.size + 1) // 2]] = ""
    return made


def _complex(usual: Array, slot: Slot, edges: Edges, rng: np.random.Generator) -> Array:
    return np.asarray(
        _real(usual.real, slot, edges, rng) + 1j * _real(usual.imag, slot, edges, rng)
    )


def _marked(
    made: Array, usual: Array, slot: Slot, edges: Edges, rng: np.random.Generator, beside: float
) -> Array:
    """`made` with its zeros, ties and thresholds; a single element goes to 0 or to the other
    side of a threshold.
    """
    flat = made.reshape(-1).copy()
    order = rng.permutation(flat.size)
    # a float's bounds are where operators are finite, and 0 is where the others show what they are
    has_zero = slot.low <= 0 <= slot.high or (slot.kind == "real" and edges.sizes)
    tips = _tips(slot, edges, beside)
    if flat.size == 1:
        if tips:
            _, below, above = tips[:3]
            flat[0] = below if usual.reshape(-1)[0] >= above - beside else above
        elif has_zero and slot.kind == "real" and edges.only is None:
            flat[0] = 0
        return flat.reshape(made.shape)
    if edges.only is not None:
        if edges.only == slot.name and has_zero:
            kept = flat[order[-1]] or 1
            flat[:] = 0
            flat[order[-1]] = kept
        return flat.reshape(made.shape)
    most = flat.size // 2
    zeros = 1 + (flat.size // _SHARE + slot.turn) % most if has_zero else 0
    if has_zero:
        flat[flat == 0] = usual.reshape(-1)[flat == 0]
        flat[order[:zeros]] = 0
    rest = order[zeros:]
    ties = min(1 + flat.size // _SHARE + slot.turn, len(rest) // 2)
    flat[rest[: ties + 1]] = flat[rest[0]]
    for at, value in zip(rest[::-1][: max(1, len(rest) // 2)], tips):
        flat[at] = value
    return flat.reshape(made.shape)


def _tips(slot: Slot, edges: Edges, beside: float) -> list[float]:
    """At, below and above every constant that the model compares this input with; whole numbers for
    integers.

    At it first: a short input takes no more than one, and only there is a change of the constant by
    a hair seen.
    """
    found: list[float] = []
    for value in dict.fromkeys(slot.uses.thresholds[:_MOST_THRESHOLDS]):
        gap = beside if slot.kind == "whole" else beside * max(1.0, abs(value))
        three = [value, value - gap, value + gap]
        if slot.kind == "whole":
            three = [math.floor(v) for v in three]
        if edges.sizes or all(slot.low <= v <= slot.high for v in three):
            found += three
    return found


_BY_KIND: dict[str, Callable[[Array, Slot, Edges, np.random.Generator], Array]] = {
    "mask": _mask, "count": _count, "length": _length, "switch": _switch, "whole": _whole,
    "real": _real, "text": _text, "complex": _complex,
}  # fmt: skip
