"""Adjoints of sequences and optionals. The adjoint of a sequence is a sequence of the same length,
element by element; the adjoint of an optional is that of its element.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
from onnx import TensorProto

from onnxgrad.ir.emission.emit import constant, emit_with_blocks, nested
from onnxgrad.ir.emission.fill_and_reshape import zeros_like
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import FLOAT_DTYPES, OptionalType, SequenceType, TensorType, Type
from onnxgrad.ir.var import Var
from onnxgrad.laws.sums import add_up


def element_type(sequence: Var) -> TensorType:
    """Returns the type of a sequence's elements, as far as it is known."""
    kind = sequence.type
    kind = kind.elem if isinstance(kind, OptionalType) else kind
    elem = kind.elem if isinstance(kind, SequenceType) else None
    return elem if isinstance(elem, TensorType) else TensorType(0, None)


def is_float(v: Var) -> bool:
    """Whether the value is a floating-point tensor, or a sequence of those."""
    kind = v.type.elem if isinstance(v.type, SequenceType) else v.type
    return isinstance(kind, TensorType) and kind.dtype in FLOAT_DTYPES


def map_elements(name: str, sequences: Sequence[Var], function: Any, result: Type) -> Var:
    """Emits a SequenceMap, which applies `function` to the elements of the sequences at each
    position.
    """
    with nested(name) as block:
        elements = [
            block.add_input(block.program.names.fresh("element"), element_type(s))
            for s in sequences
        ]
        block.add_output(function(*elements))
    (mapped,) = emit_with_blocks(
        "SequenceMap", list(sequences), {"body": block}, [SequenceType(result)]
    )
    return mapped


def zero_sequence(like: Var) -> Var:
    """Emits a sequence of zeros, each with the shape of the element of `like` at its position."""
    return map_elements("zeros", [like], zeros_like, element_type(like))


def zeros_of(v: Var) -> Var:
    """Emits zeros of the type of the adjoint of `v`, element by element for a sequence."""
    if isinstance(v.type, OptionalType):
        return _zeros_of_optional(v)
    return zero_sequence(v) if isinstance(v.type, SequenceType) else zeros_like(v)


def _zeros_of_optional(v: Var) -> Var:
    """Emits zeros of the type of the element, or an empty value, which nothing reads, if there is
    none.
    """
    kind = adjoint_type(v)
    with nested("there") as there:
        there.add_output(zeros_of(op.OptionalGetElement(v)))
    with nested("absent") as absent:
        if isinstance(kind, TensorType):
            empty = op.Identity(constant(np.zeros(0), kind.dtype))
        else:
            empty = op.SequenceEmpty(dtype=element_type(v).dtype or None)
        absent.add_output(empty)
    branches = {"then_branch": there, "else_branch": absent}
    (zeros,) = emit_with_blocks("If", [op.OptionalHasElement(v)], branches, [kind])
    return zeros


def adjoint_type(v: Var) -> Type | None:
    """Returns the type of the adjoint of `v`: that of `v`, or of the element of an optional."""
    if not isinstance(v.type, OptionalType):
        return v.type
    elem = v.type.elem
    return TensorType(elem.dtype, None) if isinstance(elem, TensorType) else elem


def lengths(sequence: Var, axis: int) -> Var:
    """Emits the int64 vector of the elements' sizes along `axis`."""

    end = axis + 1 if axis != -1 else None
    sizes = map_elements(
        "sizes",
        [sequence],
        lambda x: op.Shape(x, start=axis, end=end),
        TensorType(TensorProto.INT64, (1,)),
    )
    return op.ConcatFromSequence(sizes, axis=0)


def position(index: Var | None, length: Var) -> Var:
    """Emits the position, counted from the front; the end if `index` is None."""
    if index is None:
        return length
    index = op.Cast(index, to=TensorProto.INT64)
    return op.Where(op.Less(index, 0), op.Add(index, length), index)


def add_up_sequences(contributions: Sequence[Any]) -> Any:
    """Emits the sum of the partials of one sequence or optional, element by element."""

    def add(total: Var, other: Var) -> Var:
        if not isinstance(total.type, SequenceType):
            return add_up([total, other])
        return map_elements("sum", [total, other], lambda a, b: a + b, element_type(total))

    return reduce(add, contributions)
