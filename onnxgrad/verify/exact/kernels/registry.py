"""The kernels of exact evaluation by operator, and accessors that they share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from onnx import NodeProto

from onnxgrad.verify.exact.field import Undecided
from onnxgrad.verify.exact.side import Attributes, Side
from onnxgrad.verify.exact.values import Num, Value, integers

Operands: TypeAlias = "list[Value | None]"
Kernel: TypeAlias = Callable[[Side, NodeProto, Operands, Attributes], Sequence[Value]]
KERNELS: dict[str, Kernel] = {}
# elements of one tensor, beyond which a graph is not evaluated
LARGEST = 1 << 24


def kernel(*operators: str) -> Callable[[Kernel], Kernel]:
    """Registers the kernel of operators of the default domain."""

    def register(function: Kernel) -> Kernel:
        KERNELS.update(dict.fromkeys(operators, function))
        return function

    return register


def get(operands: Operands, i: int) -> Value | None:
    """Returns an optional operand."""
    return operands[i] if i < len(operands) else None


def given(operands: Operands, i: int) -> Value:
    """Returns an operand. Raises Undecided if it is missing."""
    value = get(operands, i)
    if value is None:
        raise Undecided(f"operand {i} is missing")
    return value


def axis_of(axis: int, rank: int) -> int:
    """Returns an axis from 0 on. Raises Undecided if there is none."""
    if not -rank <= axis < rank:
        raise Undecided(f"axis {axis} of rank {rank}")
    return axis % rank


def axes_of(operands: Operands, attributes: Attributes, at: int, rank: int) -> list[int] | None:
    """Returns axes that are an operand or an attribute, from 0 on; None if neither is given."""
    value = get(operands, at)
    found = attributes.get("axes") if value is None else integers(value, "axes")
    return None if found is None else [axis_of(int(i), rank) for i in found]


def sizes(value: Value | None, what: str) -> list[int]:
    """Returns a shape. Raises Undecided if it has a negative or an enormous size."""
    found = integers(value, what)
    if any(i < 0 for i in found) or np.prod([float(i) for i in found]) > LARGEST:
        raise Undecided(f"{what}: sizes {found}")
    return found


def both_known(operands: Sequence[Value | None]) -> bool:
    """Whether no operand is algebraic."""
    return not any(isinstance(o, Num) for o in operands)
