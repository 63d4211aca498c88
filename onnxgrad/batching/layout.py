"""The axis of the rows of a value, and the errors of batching rules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

from onnx import TensorProto

from onnxgrad.errors import DoesNotType, InputError
from onnxgrad.ir.sizes import exactly, multiply, product

# a number, or an expression of symbols that are sizes of inputs
Size: TypeAlias = int | str


@dataclass(frozen=True, slots=True)
class Layout:
    """The axis of the rows: `axis` contains outer x rows x inner positions, and outer * inner is
    its size in one row. `own`: the rows have their own axis in front of those of one row.
    """

    axis: int
    outer: Size = 1
    own: bool = False


# dtypes of less than a byte, and of scales, which onnxruntime does not reshape
NARROW = frozenset(range(TensorProto.UINT4, TensorProto.UINT4 + 6))

ALLOWS_ZERO = 14  # opset whose Reshape accepts a size of 0
OLDEST_SCAN = 9  # opset whose Scan has no batch axis of its own

FRONT = Layout(0)
OWN = Layout(0, own=True)


class Refused(Exception):
    """A rule does not apply. `along`: the operator works along the axis of the rows, so that a
    larger batch would mix them. `statistics`: it also works over other axes.
    """

    def __init__(self, reason: str, *, along: bool = False, statistics: bool = False) -> None:
        super().__init__(reason)
        self.along, self.statistics = along, statistics


@contextmanager
def refusing_types() -> Iterator[None]:
    """Raises Refused for an emitted node that the opset does not have for these types."""
    try:
        yield
    except DoesNotType as error:
        raise Refused(str(error)) from None


class Dependent(InputError):
    """Rows of this node depend on each other, so the batch cannot be opened."""


def known(size: int | str | None) -> Size:
    """Returns a size that has an expression. Raises Refused."""
    if size is None:
        raise Refused("a size in it has no formula")
    return size


def stride(sizes: Sequence[Size], layout: Layout) -> Size:
    """Returns the number of elements of one row after the axis of the rows in memory. Raises
    Refused.
    """
    inner = exactly(sizes[layout.axis], layout.outer)
    return known(multiply(inner, product(sizes[layout.axis + 1 :])))


def places(sizes: Sequence[Size], step: Size, count: int = 1) -> list[Layout]:
    """Returns the layouts of a shape of `count` rows in which `step` elements of one row come after
    the axis of the rows.
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
    """Returns the layout of rows that follow each other in memory, in a shape of rank 1 or more: on
    the leading axis of size 1, if there is one.
    """
    for axis, size in enumerate(sizes):
        if any(d != 1 for d in sizes[:axis]):
            break
        if size == 1:
            return Layout(axis)
    return FRONT
