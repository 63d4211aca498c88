"""The gradient of Loop: its steps run again in reverse order, from the states on tape."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto

from onnxgrad.grad.control_flow.bodies import (
    Answer,
    Body,
    answer_of,
    body_again,
    captured_by,
    given,
    present,
    record,
    refuse_random,
    return_adjoint,
    walk_back,
)
from onnxgrad.grad.paths import has_gradient
from onnxgrad.grad.registry import vjp_blocks
from onnxgrad.grad.sequences import add_up_sequences, adjoint_type, element_type, zeros_of
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.emission.emit import constant, emit_with_blocks, emitting, nested
from onnxgrad.ir.ops import op
from onnxgrad.ir.sizes import symbols
from onnxgrad.ir.type_inference.per_binding import common_type, retype, types_of
from onnxgrad.ir.type_inference.whole_model import is_invented
from onnxgrad.ir.types import SequenceType, TensorType, Type, TypeMismatch, same_shape
from onnxgrad.ir.var import Var


def loop_gradient(b: Binding, g: Sequence[Any], wanted: Sequence[Var]) -> Answer:
    """Returns the partials of a Loop: its steps in reverse order.

    The states of the backward Loop are the adjoints of the states and of the captured values.
    """
    body = b.blocks["body"]
    initial = [present(v, b) for v in b.inputs[2:]]
    for v, inside in zip(initial, body.inputs[2:]):
        if v.type is None and inside.dtype:
            v.type = TensorType(inside.dtype, None)
    refuse_random(b, body)
    count = len(initial)
    types = state_types(body, initial)
    once = Body.of(body)
    steps = op.Size(record(b, body, body.inputs[0], TensorType(TensorProto.INT64, ())))
    tapes = [tape_of(b, k, types[k]) for k in range(count)]
    floats = [i for i in range(count) if has_gradient(initial[i].type)]
    captured = captured_by(body, wanted)

    with body_again(body) as block:
        i = block.add_input(block.program.names.fresh("step"), TensorType(TensorProto.INT64, ()))
        block.add_input(block.program.names.fresh("going_on"), TensorType(TensorProto.BOOL, ()))
        adjoints = [block.add_input(block.program.names.fresh("adjoint"), types[k]) for k in floats]
        sums = [
            block.add_input(block.program.names.fresh("sum"), adjoint_type(v)) for v in captured
        ]
        t = op.Sub(op.Sub(steps, 1), i)
        states = [tape(t) for tape in tapes]
        outs = once.copy(block, [t, constant(np.array(True)), *states])
        arrived = dict(zip(floats, adjoints, strict=True))
        seeds = [*map(arrived.get, range(count))]
        seeds += [None if scan is None else op.Gather(scan, t, axis=0) for scan in g[count:]]
        found = walk_back(
            block, outs[1 : 1 + len(seeds)], seeds, [*(states[k] for k in floats), *captured]
        )
        return_adjoint(block, constant(np.array(True)), None)
        for k in floats:
            return_adjoint(block, found.get(states[k]), states[k])
        for v, total in zip(captured, sums, strict=True):
            return_adjoint(block, add_up_sequences([total, found[v]]) if v in found else total, v)
    start = [given(g[k], initial[k], b.result(k)) for k in floats] + [zeros_of(v) for v in captured]
    kinds = [*(initial[k].type for k in floats), *map(adjoint_type, captured)]
    results = emit_with_blocks("Loop", [steps, None, *start], {"body": block}, kinds)
    return answer_of([*(initial[k] for k in floats), *captured], results, wanted)


vjp_blocks(
    "Loop",
    loop_gradient,
    notes="tensor and sequence states; the trip count and the condition receive nothing",
)


def state_types(body: BindingBlock, initial: Sequence[Var]) -> list[Type | None]:
    """Returns the type that each Loop state has before and after every step.

    The search begins with the initial type of each state. It widens the types that the body
    changes, until the body changes none.
    """
    types: list[Type | None] = [v.type for v in initial]
    while True:
        scratch, outs = typed_step(body, types)
        scratch.release()
        wider = [
            t and _wider(t, out.type)
            for t, out in zip(types, outs[1 : 1 + len(types)], strict=True)
        ]
        if wider == types:
            return types
        types = wider


def typed_step(body: BindingBlock, types: Sequence[Type | None]) -> tuple[BindingBlock, list[Var]]:
    """Returns a copy of a Loop's body whose states have these types, and the copy's outputs.

    The caller releases the copy.
    """
    with body_again(body) as scratch:
        known = [TensorType(TensorProto.INT64, ()), TensorType(TensorProto.BOOL, ()), *types]
        guesses = [
            scratch.add_input(scratch.program.names.fresh("guess"), type_) for type_ in known
        ]
        outs = Body.of(body).copy(scratch, guesses)
    return scratch, outs


def _wider(type_: Type, after: Type | None) -> Type:
    """Returns the common type of the state before a step and after it.

    The kind and the dtype never change, so the result has at least these.
    """
    if isinstance(type_, SequenceType):
        inner = after.elem if isinstance(after, SequenceType) else None
        return SequenceType(None if type_.elem is None else _wider(type_.elem, inner))
    if isinstance(type_, TensorType):
        return common_type(type_, after) or TensorType(type_.dtype, None)
    return type_


def type_states(block: BindingBlock, wanted: Iterable[Var]) -> None:
    """Infers shapes of final Loop states that no step changes; onnx leaves them open.

    Infers the types of the values in `wanted` from these shapes and from declared outputs.
    """
    for b in [b for b in block.walk() if b.is_op("Loop")]:
        initial = b.inputs[2:]
        results = b.outputs[: len(initial)]
        if any(map(_is_open, results)):
            with emitting(b.block):
                types = state_types(b.blocks["body"], [present(v, b) for v in initial])
            for v, type_ in zip(results, types, strict=True):
                known = isinstance(type_, TensorType) and type_.shape is not None
                if v is not None and (v.shape is None or known) and type_ is not None:
                    v.type = type_
            retype(block)
            _sharpen(b.block)
    if any(isinstance(v.type, TensorType) and v.shape is None for v in wanted):
        retype(block)


def _is_open(v: Var | None) -> bool:
    """Whether it is a tensor of unknown rank, or has a size that inference left open."""
    if v is None or not isinstance(v.type, TensorType):
        return False
    return v.shape is None or any(d is None or any(map(is_invented, symbols(d))) for d in v.shape)


def _sharpen(block: BindingBlock) -> None:
    """Infers open sizes again, from operands that have become known."""
    for b in block.bindings:
        if b.blocks or not any(map(_is_open, b.outputs)):
            continue
        try:
            types = types_of(b)
        except TypeMismatch:
            continue
        for v, found in zip(b.outputs, types):
            if v is not None and _is_open(v) and isinstance(found, TensorType):
                v.type = found if found.shape is not None else v.type


# ---- tapes: the values of a state before each step, recorded by the forward Loop -----------------


# maps a step to the state's value before it; emits where it is called
Tape = Callable[[Var], Var]

_COUNT = TensorType(TensorProto.INT64, ())


def tape_of(b: Binding, state: int, type_: Type | None) -> Tape:
    """Records state number `state` of the Loop `b`, which has type `type_` at every step.

    A tensor is stacked if its shape is the same at every step, and recorded in a sequence
    otherwise. For a state that is a sequence, one sequence holds the elements of all steps, and a
    tensor holds the number of elements at each step.
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
    state.type = type_ or state.type
    return state


def _longer(b: Binding, v: Var, element: TensorType, longer: Callable[[Var], Any]) -> Var:
    """Adds a sequence as a state of the Loop, initially empty, that each step extends.

    Returns its final value.
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
        element_type(v)
        if isinstance(v.type, SequenceType)
        else type_.elem
        if isinstance(type_.elem, TensorType)
        else TensorType(0, None),
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


def extend(sequence: Var, source: Var, begin: Var, count: Var) -> Var:
    """Appends `count` elements of `source`, from position `begin` on, to `sequence`."""
    kind = sequence.type
    with nested("extend") as block:
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
