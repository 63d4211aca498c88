"""Where the rows of a value are, and the errors of rules that cannot tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from onnxgrad.errors import InputError
from onnxgrad.ir.sizes import exactly, multiply, product

# a number, or an expression of symbols that are sizes of inputs
Size: TypeAlias = int | str


@dataclass(frozen=True, slots=True)
class Layout:
    """The place of the rows: `axis` holds outer x rows x inner positions, and outer * inner is its
    size in one row. `own`: the rows have an axis of their own in front of those of one row.
    """

    axis: int
    outer: Size = 1
    own: bool = False


FRONT = Layout(0)
OWN = Layout(0, own=True)


class Refused(Exception):
    """A rule does not apply. `along`: the operator works along the axis of the rows, so that a
    plain larger batch would mix them. `statistics`: over other axes as well.
    """

    def __init__(self, reason: str, *, along: bool = False, statistics: bool = False) -> None:
        super().__init__(reason)
        self.along, self.statistics = along, statistics


class Dependent(InputError):
    """Rows of this node depend on each other: the model has no batch to open."""


def known(size: int | str | None) -> Size:
    """A size that has an expression. Raises Refused."""
    if size is None:
        raise Refused("a size in it has no formula")
    return size


def stride(sizes: Sequence[Size], layout: Layout) -> Size:
    """Elements of one row that follow the place of the rows in memory. Raises Refused."""
    inner = exactly(sizes[layout.axis], layout.outer)
    return known(multiply(inner, product(sizes[layout.axis + 1 :])))


def places(sizes: Sequence[Size], step: Size, count: int = 1) -> list[Layout]:
    """The layouts of a shape of `count` rows in which `step` elements of one row follow the place
    of the rows.
    """
    found = []
    for axis, size in enumerate(sizes):
        rest = product(sizes[axis + 1 :])
        inner = exactly(step, rest) if rest and step else None
        outer = exactly(size, multiply(inner, count)) if size else None
        if outer is not None:
            found.append(Layout(axis, outer))
    return found


def joined(sizes: Sequence[Size]) -> Layout:
    """The layout of rows that follow each other in memory, in a shape of rank 1 or more: on the
    first axis of size 1 in front, if there is one.
    """
    for axis, size in enumerate(sizes):
        if any(d != 1 for d in sizes[:axis]):
            break
        if size == 1:
            return Layout(axis)
    return FRONT
