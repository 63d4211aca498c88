"""Feeds that reach more of a model than usual ones: other scales, one sign, other counts and
switches, masks of one value, chosen rows of a table, other defaults.

A usual feed (`generate`) is random; an edge case (`edge_cases`) has zeros, ties and thresholds.
These are for what both left out, and for what only small or large numbers show, such as an epsilon.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from onnxgrad.verify.feeds.edge_cases import Slot

Array: TypeAlias = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Variation:
    """How feeds differ from usual ones. scale: of floats without bounds. sign: 1 or -1 makes all of
    them positive or negative. count: of counts and lengths. mask: one value for all of a mask.
    turn: which of the values that a switch knows. rows: table -> the rows to read.
    """

    scale: float = 1.0
    sign: int = 0
    count: int | None = None
    mask: int | None = None
    turn: int = 0
    rows: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def __str__(self) -> str:
        signs = {1: "all positive", -1: "all negative"}
        parts = [
            f"scale {self.scale:g}" if self.scale != 1 else "",
            signs.get(self.sign, ""),
            "" if self.count is None else f"counts of {self.count}",
            "" if self.mask is None else f"masks of {self.mask}",
            f"switch {self.turn}" if self.turn else "",
            f"rows that differ of {', '.join(self.rows)}" if self.rows else "",
        ]
        return ", ".join(part for part in parts if part)


SMALL = Variation(scale=1e-3)
# what is tried in turn where something was not reached, each with the next seed
SEARCH = (
    Variation(scale=10.0), Variation(scale=100.0), Variation(scale=10.0, sign=1, mask=1, turn=1),
    Variation(scale=10.0, sign=-1, mask=0, turn=2), Variation(count=0, mask=0, turn=3),
    Variation(count=3, mask=1, turn=4), Variation(scale=1e3, sign=1), Variation(scale=1e3, sign=-1),
    Variation(scale=0.1), Variation(scale=1e-3, sign=-1, turn=5), Variation(turn=6),
    Variation(scale=30.0, sign=1, turn=7),
)  # fmt: skip


def varied(usual: Array, slot: Slot, how: Variation) -> Array:
    """The usual value of a slot, varied, in its shape and within its bounds."""
    wanted = [row for table, scale, offset in slot.uses.tables
              for row in _inputs(how.rows.get(table, ()), scale, offset)]  # fmt: skip
    if wanted and usual.size and slot.kind in ("whole", "real", "position"):
        return np.resize(np.asarray(wanted), usual.shape).astype(usual.dtype)
    if slot.kind == "real" and not slot.uses.bounded:
        made = np.abs(usual) * how.sign if how.sign else usual
        return np.asarray(made * how.scale)
    if slot.kind in ("count", "length") and how.count is not None:
        return np.full_like(usual, min(max(how.count, _least(slot)), _most(slot)))
    if slot.kind == "mask" and how.mask is not None:
        return np.full_like(usual, how.mask)
    if slot.kind == "switch":
        known = slot.uses.equal_to
        return np.full_like(usual, known[how.turn % len(known)])
    return usual


def _least(slot: Slot) -> int:
    return int(slot.low) if slot.uses.low > -np.inf else 0


def _most(slot: Slot) -> int:
    return int(slot.high) if slot.uses.high < np.inf else 1 << 20


def _inputs(rows: Sequence[int], scale: float, offset: float) -> list[int]:
    """The input values at which scale * x + offset is one of the rows."""
    found = [(row - offset) / scale for row in rows] if scale else []
    return [int(x) for x in found if x == int(x) and x >= 0]


def overridden(default: Array, seed: int) -> list[Array]:
    """Other values for an input that has this default, the likeliest to run first."""
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
