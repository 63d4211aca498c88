"""Axes of a node's operands that must have equal sizes, by the map of its axes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from onnxgrad.ir.axis_maps import axes, is_mapped
from onnxgrad.ir.binding import Binding

# the index of an operand and one of its axes
Place: TypeAlias = tuple[int, int]


@dataclass(frozen=True)
class Meeting:
    """Axes that must have equal sizes. If they broadcast, 1 agrees with every size."""

    places: tuple[Place, ...]
    broadcasts: bool = False


def meetings(b: Binding) -> list[Meeting] | None:
    """Returns the axes of operands that must agree, or None if the operator has no map."""
    return [*_meetings(b)] if is_mapped(b) else None


def _meetings(b: Binding) -> Iterator[Meeting]:
    met: dict[int | str, dict[Place, bool]] = {}  # places, and whether size 1 repeats there
    for k in range(len(b.inputs)):
        for i, axis in enumerate(axes(b, k) or ()):
            if axis is not None and axis.how not in ("offset", "windowed"):
                met.setdefault(axis.to, {})[k, i] = axis.how == "repeated"
    for places in reversed(met.values()):
        strict = tuple(place for place, repeats in places.items() if not repeats)
        if len(strict) > 1:
            yield Meeting(strict)
        if 1 < len(places) != len(strict):
            yield Meeting(tuple(places), broadcasts=True)
