"""Inputs for which models behave differently: zeros, ties, both sides of comparisons, other masks
and switches.

Usual feeds (`generate`) are random and in general position: no element is 0, no two elements are
equal, and every NonZero, Unique or Equal has the same result. An edge case changes each usual
value: it is mirrored within its bounds, half of its elements are rounded to a few steps, some
elements are 0 (a different number for each input, so that data-dependent sizes differ), some are
equal, and some lie at or near the constants with which the model compares them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import numpy as np

from onnxgrad.frozen import frozen
from onnxgrad.verify.feeds.value_bounds import Uses

Array: TypeAlias = np.ndarray[Any, Any]

_SHARE = 8  # one element in eight becomes 0, one in eight repeats a value
_BESIDE = 0.0625  # how far beside a threshold
_MOST_THRESHOLDS = 8
_MOST_ALONE = 4  # inputs that are tried as `only`


@frozen
class Edges:
    """The strength of an edge case. `sizes`: also change counts, lengths, switches and values
    outside their usual bounds. `only`: this input keeps one nonzero element and all others keep
    theirs, for models that broadcast one data-dependent size.
    """

    sizes: bool = True
    only: str | None = None


def variants(names: Iterable[str]) -> list[Edges]:
    """Returns the edge cases to try in order until the model runs: all changes, then fewer."""
    return [
        Edges(),
        Edges(sizes=False),
        *(Edges(False, name) for name in list(names)[:_MOST_ALONE]),
    ]


@frozen
class Slot:
    """One input: its kind, the closed interval of its usual values, the number of inputs before it,
    and the least and largest value of its dtype.
    """

    name: str
    kind: str
    low: float
    high: float
    uses: Uses
    turn: int
    ends: tuple[int, int] = (0, 1)


def edged(usual: Array, slot: Slot, edges: Edges, rng: np.random.Generator) -> Array:
    """Returns the value of an edge case, with the shape (and for integers the range) of the usual
    value.
    """
    make = _BY_KIND.get(slot.kind)
    if make is None or not usual.size or (slot.kind in _OF_SIZES and not edges.sizes):
        return usual
    if slot.uses.distinct is not None:
        return np.flip(usual, 0) if usual.ndim else usual  # zeros and ties would repeat a place
    return make(usual, slot, edges, rng)


def _count(usual: Array, slot: Slot, edges: Edges, rng: np.random.Generator) -> Array:
    return np.asarray(np.minimum(usual + 1, slot.high) if slot.uses.bounded else usual + 1)


def _length(usual: Array, slot: Slot, edges: Edges, rng: np.random.Generator) -> Array:
    """Returns lengths that decrease from row to row and stay above 0."""
    less = 1 + np.arange(usual.size).reshape(usual.shape)
    return np.asarray(np.maximum(usual - less, max(slot.low, min(1, slot.high)))).astype(
        usual.dtype
    )


def _switch(usual: Array, slot: Slot, edges: Edges, rng: np.random.Generator) -> Array:
    """Returns another value that the model knows, or a value that it does not know."""
    first = usual.reshape(-1)[0]
    others = [v for v in slot.uses.equal_to if v != first]
    return np.full_like(usual, others[0] if others else first + 1)


def _whole(usual: Array, slot: Slot, edges: Edges, rng: np.random.Generator) -> Array:
    return _marked(
        np.asarray(slot.low + slot.high - usual).astype(usual.dtype), usual, slot, edges, rng, 1.0
    )


def _real(usual: Array, slot: Slot, edges: Edges, rng: np.random.Generator) -> Array:
    bounded = math.isfinite(slot.low) and math.isfinite(slot.high)
    start, step = (slot.low, (slot.high - slot.low) / 4 or 1.0) if bounded else (0.0, 0.5)
    made = np.asarray(slot.low + slot.high - usual if bounded else -usual)
    steps = np.round((made - start) / step)
    if not bounded:
        # the number of zeros is decided below
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
    """Returns `made` with zeros, ties and thresholds. A single element becomes 0 or moves to the
    other side of a threshold.
    """
    flat = made.reshape(-1).copy()
    order = rng.permutation(flat.size)
    # bounds of floats keep operators finite; the others show their behaviour at 0
    beyond = edges.sizes and not slot.uses.declared
    has_zero = slot.low <= 0 <= slot.high or (slot.kind == "real" and beyond)
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
    """Returns values at, below and above every constant that the model compares this input with;
    for integers whole numbers.

    Values at the constants come first: a short input has room for only one of them, and only at the
    constant a tiny change of it is visible.
    """
    found: list[float] = []
    for value in dict.fromkeys(slot.uses.thresholds[:_MOST_THRESHOLDS]):
        gap = beside if slot.kind == "whole" else beside * max(1.0, abs(value))
        three = [value, value - gap, value + gap]
        if slot.kind == "whole":
            three = [math.floor(v) for v in three]
        inside = all(slot.low <= v <= slot.high for v in three)
        if inside or (edges.sizes and not slot.uses.declared):
            found += three
    return found


_OF_SIZES = ("count", "length", "switch")  # kinds that change only with `sizes`
_BY_KIND: dict[str, Callable[[Array, Slot, Edges, np.random.Generator], Array]] = {
    "mask": lambda usual, slot, edges, rng: np.asarray(1 - usual),
    "count": _count,
    "length": _length,
    "switch": _switch,
    "whole": _whole,
    "real": _real,
    "text": _text,
    "complex": _complex,
}


WIDE_CASE = "wide values"


@frozen
class Variation:
    """Differences of feeds from the usual ones. scale: factor of floats without bounds. sign: 1 or
    -1 makes all of them positive or negative. count: value of counts and lengths. mask: one value
    for a whole mask. turn: index into the values that a switch knows. wide: values beyond the usual
    ones, 1 to 3 (`_widened`). non_finite: some floats are NaN and infinite. full: the whole range
    of recognised kinds (`_full`). reach: factor of floats and largest magnitude of integers, where
    nothing restricts them; infinite: integers at the ends of their dtype.
    """

    scale: float = 1.0
    sign: int = 0
    count: int | None = None
    mask: int | None = None
    turn: int = 0
    wide: int = 0
    non_finite: bool = False
    full: bool = False
    reach: float = 0.0

    @property
    def far(self) -> bool:
        """Whether values are outside of the usual ones, at which an input may decide a size."""
        return bool(self.wide or self.non_finite or self.full or self.reach)

    def __str__(self) -> str:
        signs = {1: "all positive", -1: "all negative"}
        parts = [
            f"scale {self.scale:g}" if self.scale != 1 else "",
            signs.get(self.sign, ""),
            "" if self.count is None else f"counts of {self.count}",
            "" if self.mask is None else f"masks of {self.mask}",
            f"switch {self.turn}" if self.turn else "",
            f"{WIDE_CASE} {self.wide}" if self.wide else "",
            "NaN and infinite values" if self.non_finite else "",
            "whole ranges (images 0 to 255, integers up to 16 bits)" if self.full else "",
            f"scale {self.reach:g}" if 0 < self.reach < math.inf else "",
            "integers at the ends of their dtype" if self.reach == math.inf else "",
        ]
        return ", ".join(part for part in parts if part)


SMALL = Variation(scale=1e-3)
FULL = Variation(full=True)
# tried in turn until everything is reached, each with the next seed
SEARCH = (
    Variation(scale=10.0), Variation(scale=100.0), Variation(scale=10.0, sign=1, mask=1, turn=1),
    Variation(scale=10.0, sign=-1, mask=0, turn=2), Variation(count=0, mask=0, turn=3),
    Variation(count=3, mask=1, turn=4), Variation(scale=1e3, sign=1), Variation(scale=1e3, sign=-1),
    Variation(scale=0.1), Variation(scale=1e-3, sign=-1, turn=5), Variation(turn=6),
    Variation(scale=30.0, sign=1, turn=7),
)  # fmt: skip


def varied(usual: Array, slot: Slot, how: Variation) -> Array:
    """Returns the usual value of a slot, varied, with its shape and within its bounds."""
    if slot.uses.distinct is not None:
        return usual
    if how.far:
        return _far(usual, slot, how)
    if slot.kind == "real" and not slot.uses.bounded:
        made = np.abs(usual) * how.sign if how.sign else usual
        return np.asarray(made * how.scale)
    if slot.kind in ("count", "length") and how.count is not None:
        least = int(slot.low) if slot.uses.low > -np.inf else 0
        most = int(slot.high) if slot.uses.high < np.inf else None
        return np.full_like(usual, np.clip(how.count, least, most))
    if slot.kind == "mask" and how.mask is not None:
        return np.full_like(usual, how.mask)
    if slot.kind == "switch":
        known = slot.uses.equal_to
        return np.full_like(usual, known[how.turn % len(known)])
    return usual


# factors of the rows of an input without bounds: about 100, 1e-3 and 10, without new digits
_SCALES = (128.0, 2.0**-10, 8.0, 1.0)
_TEXTS = ("", "ALPHA", "Beta", "delta ", "é", "ÀÉÎ", "straße", "a1", "42", "a.b@c.de", "2024-01-31")
# least and largest value of integers that no operator restricts; from WIDE[3] on the dtype's ends
WIDE = {1: (-3, 4), 2: (-(1 << 15), 1 << 15)}


def _widened(usual: Array, slot: Slot, level: int) -> Array:
    """Returns values beyond the usual ones, where no use of the input restricts them: small
    integers of both signs (1), wide ones (2), those at the ends of the dtype (3); floats whose rows
    have other scales (1), with zeros of both signs and ties (2); images as N(0, 1) (1) and as 0 to
    255 (2); texts of other cases and letters (1); labels that a loss ignores (1); masks of random
    elements (1). Other values are returned unchanged.
    """
    rng = np.random.default_rng([level, slot.turn, usual.size])
    make = _WIDENED.get(slot.kind)
    return usual if make is None or not usual.size else make(usual, slot, level, rng)


def _wide_whole(usual: Array, slot: Slot, level: int, rng: np.random.Generator) -> Array:
    if slot.uses.tables:
        singled = [v for v in slot.uses.equal_to if not slot.low <= v <= slot.high]
        if level > 1 or not singled or usual.size < _LABELS:
            return usual
        made = usual.copy().reshape(-1)
        made[rng.permutation(made.size)[: made.size // _LABELS]] = singled[0]
        return made.reshape(usual.shape)
    if slot.uses.bounded or slot.uses.count:
        return usual
    least, largest = slot.ends
    if level not in WIDE:
        ends = [least, largest, least + 1, largest - 1, 0, 1]
        return np.resize(np.asarray(ends, object), usual.shape)
    low, high = (min(max(v, least), largest) for v in WIDE[level])
    return np.asarray(rng.integers(low, high, usual.shape, endpoint=True))


_LABELS = 4  # one label in four is one that the loss ignores


def _wide_real(usual: Array, slot: Slot, level: int, rng: np.random.Generator) -> Array:
    if level > 2 or slot.uses.bounded:
        return usual
    if slot.low == 0 and slot.high == 1:  # colours
        made = rng.standard_normal(usual.shape) if level == 1 else np.floor(usual * 256)
        return np.asarray(made)
    if level == 2:
        flat = usual.copy().reshape(-1)
        order = rng.permutation(flat.size)
        for places, value in zip(np.array_split(order[: len(order) // 2], 3), (0.0, -0.0, flat[0])):
            flat[places] = value
        return flat.reshape(usual.shape)
    factors = np.resize(np.roll(_SCALES, -slot.turn), usual.shape[0] if usual.ndim else 1)
    return np.asarray(usual * factors.reshape([-1] + [1] * (usual.ndim - 1) if usual.ndim else []))


def _wide_text(usual: Array, slot: Slot, level: int, rng: np.random.Generator) -> Array:
    if level > 1:
        return usual
    known = [t for word in slot.uses.words for t in (word.upper(), word.lower(), word.title())]
    made = np.empty(usual.size, object)
    made[:] = np.resize(np.asarray([*known, *_TEXTS], object), made.size)
    return made.reshape(usual.shape)


def _wide_mask(usual: Array, slot: Slot, level: int, rng: np.random.Generator) -> Array:
    """Returns rows that keep both values; for integers that are only cast to booleans also others
    than 0 and 1 (2).
    """
    if level == 2 and slot.ends != (0, 1) and "mask" not in slot.name.lower():
        return np.asarray(rng.integers(max(-3, slot.ends[0]), 4, usual.shape, endpoint=True))
    if level > 1 or usual.ndim < 1 or usual.shape[-1] < 2:
        return usual
    made = np.asarray(rng.integers(0, 1, usual.shape, endpoint=True))
    made[..., 0], made[..., -1] = 1 - made[..., -1], made[..., -1]
    return made


_WIDENED: dict[str, Callable[[Array, Slot, int, np.random.Generator], Array]] = {
    "whole": _wide_whole, "real": _wide_real, "text": _wide_text, "mask": _wide_mask,
}  # fmt: skip


def _far(usual: Array, slot: Slot, how: Variation) -> Array:
    if how.wide:
        return _widened(usual, slot, how.wide)
    if how.non_finite:
        return _not_finite(usual, slot)
    return _full(usual, slot) if how.full else _reaching(usual, slot, how.reach)


def _full(usual: Array, slot: Slot) -> Array:
    """Returns colours of an image from 0 to 255, and integers between the ends of their dtype, at
    most of 16 bits.
    """
    if slot.kind == "real" and not slot.uses.bounded and slot.low == 0 and slot.high == 1:
        return np.asarray(np.clip(np.floor(np.abs(usual) * 256), 0, 255))
    least, largest = slot.ends
    if largest >= 1 << 16:
        least, largest = max(least, WIDE[2][0]), WIDE[2][1]
    return _between(usual, slot, least, largest)


def _reaching(usual: Array, slot: Slot, reach: float) -> Array:
    """Returns floats times `reach`, and integers from -reach to reach, or to the last power of ten
    within their dtype; all of the dtype if `reach` is infinite.
    """
    if slot.kind == "real" and not slot.uses.bounded and reach < math.inf:
        return np.asarray(usual * reach)
    least, largest = slot.ends
    if reach < math.inf:
        reach = min(reach, 10.0 ** math.floor(math.log10(max(largest, 1))))
        least, largest = max(least, -int(reach)), int(reach)
    return _between(usual, slot, least, largest)


def _between(usual: Array, slot: Slot, least: int, largest: int) -> Array:
    """Returns integers of this range with both of its ends, if no use of the input restricts
    them.
    """
    free = slot.kind == "whole" and (slot.low, slot.high) == (0, 1)
    if not free or slot.uses.tables or slot.uses.bounded or slot.uses.count or not usual.size:
        return usual
    rng, signed = np.random.default_rng([slot.turn, usual.size]), least < 0
    dtype = np.int64 if signed else np.uint64
    made = rng.integers(least, largest, usual.size, endpoint=True, dtype=dtype)
    made[:2] = [largest, least][: usual.size]
    return made.reshape(usual.shape)


def _not_finite(usual: Array, slot: Slot) -> Array:
    """Returns floats with NaN and both infinities, each in another row if there are four."""
    if slot.kind != "real" or slot.uses.bounded or slot.uses.tables or not usual.size:
        return usual
    made = np.array(usual, np.float64)
    flat, count = made.reshape(-1), usual.shape[0] if usual.ndim else 1
    width = flat.size // count
    if count > len(_SPECIAL):
        places = np.arange(count) * width + np.arange(count) % width
    else:
        places = np.linspace(0, flat.size - 1, min(flat.size, len(_SPECIAL) + 1)).astype(int)
    special = np.resize([*np.roll(_SPECIAL, -slot.turn), 0.0], len(places))
    flat[places] = np.where(special == 0, flat[places], special)  # 0: it stays
    return flat.reshape(usual.shape)


_SPECIAL = (math.nan, math.inf, -math.inf)  # a fourth row keeps its values


def overridden(default: Array, seed: int) -> list[Array]:
    """Returns other values for an input with this default, those first with which the model most
    likely runs.
    """
    rng = np.random.default_rng([seed, default.size])
    if default.dtype.kind == "b":
        return [~default]
    if default.dtype.kind == "O":
        return [np.full_like(default, "overridden")]
    if default.dtype.kind in "iu":
        return [default + default.dtype.type(1), default - default.dtype.type(1)]
    wide = default.astype(np.float64)
    moved = wide * (1.25 + 0.5 * rng.random(default.shape))
    made = np.where(wide == 0, 0.1 * rng.standard_normal(default.shape), moved)
    return [np.asarray(made).astype(default.dtype)]
