"""Tapes: every value that a state of a Loop had before a step; the forward Loop records, the
backward one reads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import TensorProto

from onnxgrad.grad.control_flow import record
from onnxgrad.grad.sequences import element_type
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.constant import constant
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.emission.emitter import emitter
from onnxgrad.ir.emission.nested import emit_with_blocks, nested_block
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import SequenceType, TensorType, Type, same_shape
from onnxgrad.ir.var import Var

# step -> the state's value before it, emitted where it is called
Tape = Callable[[Var], Var]

_COUNT = TensorType(TensorProto.INT64, ())


def tape_of(b: Binding, state: int, type_: Type | None) -> Tape:
    """Record state number `state` of the Loop `b`, which has `type_` before and after every step.

    Stacked where its shape is the same at every step; else a sequence; of a sequence, the elements
    of all steps in one sequence, and how many there were at each.
    """
    initial = b.inputs[2 + state]
    v = b.blocks["body"].inputs[2 + state]
    if initial is not None and isinstance(type_, SequenceType):
        return _sequences(b, v, type_)
    if (
        initial is not None
        and isinstance(type_, TensorType)
        and same_shape(initial.shape, type_.shape)
    ):
        stacked = record(b, b.blocks["body"], v, type_)
        return lambda t: _typed(op.Gather(stacked, t, axis=0), type_)
    dtype = 0 if initial is None else initial.dtype
    steps = _longer(b, v, TensorType(dtype, None), lambda so_far: op.SequenceInsert(so_far, v))
    return lambda t: _typed(op.SequenceAt(steps, t), type_)


def _typed(state: Var, type_: Type | None) -> Var:
    if type_ is not None:
        state.type = type_
    return state


def _longer(b: Binding, v: Var, element: TensorType, longer: Callable[[Var], Any]) -> Var:
    """One more state of the Loop: a sequence, empty at first, that each step makes longer; its
    final value.
    """
    body, program, kind = (
        b.blocks["body"],
        b.block.program,
        SequenceType(TensorType(element.dtype, None)),
    )
    states = len(b.inputs) - 2
    so_far = body.add_input(program.names.fresh(f"{v.name}_so_far"), kind)
    with emitting(body, sources=(b,), made_by="gradient"):
        result = longer(so_far)
    result.type = kind
    body.outputs.insert(1 + states, result)
    result.returned += 1
    with emitting(b.block, sources=(b,), made_by="gradient"):
        empty = op.SequenceEmpty(dtype=element.dtype)
    b.inputs.append(empty)
    empty.users[b] = 1
    final = b.block.add_result(b, len(b.outputs), program.names.fresh(f"{v.name}_steps"), kind)
    b.outputs.insert(states, b.outputs.pop())
    return final


def _sequences(b: Binding, v: Var, type_: SequenceType) -> Tape:
    body, element = (
        b.blocks["body"],
        element_type(v) if isinstance(v.type, SequenceType) else _element(type_),
    )
    with emitting(body, sources=(b,), made_by="gradient"):
        length = op.SequenceLength(v)
    lengths = record(b, body, length, _COUNT)
    elements = _longer(
        b, v, element, lambda so_far: extend(so_far, v, constant(np.array(0)), op.SequenceLength(v))
    )

    def read(t: Var) -> Var:
        begin = op.ReduceSum(op.Slice(lengths, [0], op.Unsqueeze(t, [0]), [0]), keepdims=0)
        empty = op.SequenceEmpty(dtype=element.dtype)
        return _typed(extend(empty, elements, begin, op.Gather(lengths, t, axis=0)), type_)

    return read


def _element(type_: SequenceType) -> TensorType:
    return type_.elem if isinstance(type_.elem, TensorType) else TensorType(0, None)


def extend(sequence: Var, source: Var, begin: Var, count: Var) -> Var:
    """`sequence` with `count` elements of `source` behind it, from position `begin` on."""
    at = emitter()
    block = nested_block("extend")
    kind = sequence.type
    with emitting(block, share=True, sources=at.sources, made_by=at.made_by):
        i = block.add_input(block.program.names.fresh("place"), _COUNT)
        going_on = block.add_input(
            block.program.names.fresh("going_on"), TensorType(TensorProto.BOOL, ())
        )
        so_far = block.add_input(block.program.names.fresh("so_far"), kind)
        block.add_output(op.Identity(going_on))
        longer = op.SequenceInsert(so_far, op.SequenceAt(source, op.Add(begin, i)))
        longer.type = kind
        block.add_output(longer)
    (extended,) = emit_with_blocks("Loop", [count, None, sequence], {"body": block}, [kind])
    return extended
