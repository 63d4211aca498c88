"""Where the rows of a value are, and the errors of rules that cannot tell."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from onnxgrad.errors import InputError


@dataclass(frozen=True, slots=True)
class Layout:
    """The place of the rows: `axis` holds outer x rows x inner positions, and outer * inner is its
    size in one row. `own`: the rows have an axis of their own in front of those of one row.
    """

    axis: int
    outer: int = 1
    own: bool = False


FRONT = Layout(0)
OWN = Layout(0, own=True)


class Refused(Exception):
    """A rule does not apply. `along`: the operator works along the axis of the rows, so that a
    plain larger batch would mix them.
    """

    def __init__(self, reason: str, *, along: bool = False) -> None:
        super().__init__(reason)
        self.along = along


class Dependent(InputError):
    """Rows of this node depend on each other: the model has no batch to open."""


def stride(sizes: Sequence[int], layout: Layout) -> int:
    """Elements of one row that follow the place of the rows in memory."""
    inner = sizes[layout.axis] // layout.outer
    return inner * math.prod(sizes[layout.axis + 1 :])


def places(sizes: Sequence[int], step: int) -> list[Layout]:
    """The layouts of a shape in which `step` elements of one row follow the place of the rows."""
    found = []
    for axis, size in enumerate(sizes):
        rest = math.prod(sizes[axis + 1 :])
        if rest and step % rest == 0 and step and size % (step // rest) == 0:
            found.append(Layout(axis, size // (step // rest)))
    return found


def joined(sizes: Sequence[int]) -> Layout:
    """The layout of rows that follow each other in memory, in a shape of rank 1 or more: on the
    first axis of size 1 in front, if there is one.
    """
    for axis, size in enumerate(sizes):
        if math.prod(sizes[:axis]) != 1:
            break
        if size == 1:
            return Layout(axis)
    return FRONT
