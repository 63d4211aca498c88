"""The sides of a bound on which the values of one run lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from onnxgrad.verify.coverage.counters import Array, Attributes

BELOW, AT, ABOVE = 1, 2, 4
BOTH, ALL = BELOW | ABOVE, BELOW | AT | ABOVE
SAMPLE = 1024  # elements that are inspected first: they mostly show both sides
MOST_CENTERS = 16


class Side(NamedTuple):
    """The sides of one bound. `seen` and `needed` are sets of BELOW, AT and ABOVE. `words`: what
    was not reached, for each of the three. `operand`: the operand that is compared with `centers`.
    """

    seen: int
    needed: int
    words: tuple[str, str, str]
    centers: tuple[Any, ...] = ()
    operand: int = 0
    beside: bool = True  # whether numbers beside the centers matter
    rows: bool = False  # whether the centers are one row of the operand

    @property
    def missing(self) -> str:
        """Returns what no run reached."""
        left = self.needed & ~self.seen
        names = dict(zip((BELOW, AT, ABOVE), self.words))
        return " or ".join(names[bit] for bit in (BELOW, ABOVE, AT) if left & bit)


def side_of(x: Array, bound: Any, needed: int = BOTH, operand: int = 0) -> Side:
    """Returns the sides of a number on which elements of `x` lie."""
    at = f"{bound:g}"
    words = f"below {at}", f"at {at}", f"above {at}"
    return Side(around(x, bound, needed), needed, words, (bound,), operand)


_TINY, _NEAR = 1e-6, 2.0**10


def end_of(x: Array, bound: float, operand: int = 0, *, least: bool = True) -> Side:
    """Returns the sides of the `least` value of a result, or its largest. Beside usual numbers
    nothing shows of a tiny one: all elements of a run have to be as small.
    """
    sign = 1 if least else -1
    found = side_of(x, bound, BOTH, operand)
    if not 0 < sign * bound < _TINY:
        return found
    inner = BELOW if least else ABOVE
    largest = np.max(sign * np.asarray(x, np.float64), initial=-np.inf)
    seen = found.seen if largest <= _NEAR * abs(bound) else found.seen & ~inner
    words = tuple(f"{word} throughout" for word in found.words)
    centers = (bound / 4, bound * 4)
    return Side(seen, BOTH, (words[0], words[1], words[2]), centers, operand, False)


def around(x: Array, bound: Any, needed: int = BOTH) -> int:
    """Returns the sides of `bound`, a number or an array, on which elements of `x` lie."""
    if x.size == 0:
        return 0
    at = AT if needed & AT and bool((x == bound).any()) else 0
    if np.ndim(bound):
        return at | sides_of((x < bound).any(), (x > bound).any())
    few = x.reshape(-1)[:SAMPLE]
    found = sides_of((few < bound).any(), (few > bound).any())
    if found != BOTH and x.size > SAMPLE:
        low, high = x.min(), x.max()
        if low != low:  # NaN among them
            found = sides_of((x < bound).any(), (x > bound).any())
        else:
            found = sides_of(low < bound, high > bound)
    return at | found


def sides_of(below: Any, above: Any) -> int:
    """Returns the set of BELOW and ABOVE."""
    return BELOW * bool(below) | ABOVE * bool(above)


Sides = Callable[[Attributes, Sequence[Any], Sequence[Any]], list[Side]]


def number(value: Any) -> float:
    """Returns the only number of an operand."""
    return float(np.asarray(value).reshape(-1)[0])


def centers_of(value: Any, factor: float = 1.0) -> tuple[Any, ...]:
    """Returns some of the different elements of an operand, times a factor."""
    flat = np.asarray(value).reshape(-1)
    if flat.dtype.kind not in "iuf":
        return tuple(flat[:MOST_CENTERS].tolist())
    few = np.unique(flat[: 64 * MOST_CENTERS])
    places = np.linspace(0, len(few) - 1, min(MOST_CENTERS, len(few))).round().astype(int)
    return tuple((few[places] * factor).tolist()) if len(few) else ()
