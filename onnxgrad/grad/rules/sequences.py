"""Sequences and optionals. `g` of a sequence is a sequence of its elements' adjoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onnxgrad.grad.control_flow import Body
from onnxgrad.grad.engine import backward, has_gradient
from onnxgrad.grad.registry import vjp, vjp_all, vjp_blocks, zero
from onnxgrad.grad.sequences import element_type, lengths, position, zero_sequence
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.emission.emitter import emitter
from onnxgrad.ir.emission.nested import emit_with_blocks, nested_block
from onnxgrad.ir.like import zeros_like
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import SequenceType, Type
from onnxgrad.ir.var import Var
from onnxgrad.laws.sums import add_up

zero("SequenceEmpty", "SequenceLength", "OptionalHasElement")

vjp_all("SequenceConstruct", lambda g, y, xs: [op.SequenceAt(g, i) for i in range(len(xs))])


def _at(g: Var, y: Var, s: Var, i: Var) -> Var:
    """Zeros, but `g` at position i."""
    place = position(i, op.SequenceLength(s))
    return op.SequenceInsert(op.SequenceErase(zero_sequence(s), place), g, place)


def _insert(g: Var, s: Var, i: Var | None) -> Var:
    return position(i, op.SequenceLength(s))


def _erase(g: Var, y: Var, s: Var, i: Var | None = None) -> Var:
    """The erased element receives zeros."""
    length = op.SequenceLength(s)
    place = op.Sub(length, 1) if i is None else position(i, length)
    return op.SequenceInsert(g, zeros_like(op.SequenceAt(s, place)), place)


def _concat(g: Var, y: Var, s: Var, axis: int, new_axis: int) -> Var:
    """Each element's stretch of the result."""
    if new_axis:
        return op.SplitToSequence(g, axis=axis, keepdims=0)
    return op.SplitToSequence(g, lengths(s, axis), axis=axis)


def _split(g: Var, y: Var, x: Var, parts: Var | None = None, *, axis: int, keepdims: int) -> Var:
    """The pieces put together again; keepdims speaks only where no split is given."""
    new_axis = 1 if parts is None and not keepdims else 0
    return op.ConcatFromSequence(g, axis=axis, new_axis=new_axis)


vjp("SequenceAt", _at)
vjp(
    "SequenceInsert",
    lambda g, y, s, x, i=None: op.SequenceErase(g, _insert(g, s, i)),
    lambda g, y, s, x, i=None: op.SequenceAt(g, _insert(g, s, i)),
)
vjp("SequenceErase", _erase)
vjp("ConcatFromSequence", _concat)
vjp("SplitToSequence", _split)
vjp("Optional", lambda g, y, x: g)
vjp("OptionalGetElement", lambda g, y, x: g)


def _map(b: Binding, g: Sequence[Any], wanted: Sequence[Var]) -> Mapping[Var, Any]:
    """SequenceMap: a SequenceMap over the operands and the results' adjoints; tensors that all steps read add up."""
    body, at = b.blocks["body"], emitter()
    operands = [v for v in b.inputs if v is not None]
    arrived = [(j, v) for j, v in enumerate(g) if v is not None]
    block = nested_block("map_gradient")
    with emitting(block, share=True, sources=at.sources, made_by=at.made_by):
        kinds = [element_type(v) if isinstance(v.type, SequenceType) else v.type for v in operands]
        inner = [block.add_input(block.program.names.fresh("element"), kind) for kind in kinds]
        seeds_in = [block.add_input(block.program.names.fresh("arriving"), element_type(v)) for _, v in arrived]
        mapping: dict[Var, Var | None] = dict(zip(body.inputs, inner, strict=True))
        outs = Body.of(body).copy(block, mapping)
        seeds = {outs[j]: seed for (j, _), seed in zip(arrived, seeds_in, strict=True) if has_gradient(outs[j].type)}
        captured = [v for v in wanted if v in set(body.captures())]
        asked = [v for v, w in zip(inner, operands, strict=True) if w in wanted] + captured
        found = backward(block, seeds, asked)
        for v in asked:
            block.add_output(op.Identity(found[v]) if v in found else zeros_like(v))
    values = [w for w in operands if w in wanted] + captured
    types: list[Type] = [SequenceType(v.type if not isinstance(v.type, SequenceType) else v.type.elem) for v in values]
    results = emit_with_blocks("SequenceMap", [*operands, *(v for _, v in arrived)], {"body": block}, types)
    parts: dict[Var, list[Any]] = {}
    for v, mapped in zip(values, results, strict=True):
        parts.setdefault(v, []).append(mapped if isinstance(v.type, SequenceType) else _sum_of(mapped, v))
    return {v: p[0] if len(p) == 1 else add_up(p) for v, p in parts.items()}


def _sum_of(sequence: Var, like: Var) -> Var:
    """The sum of equal-shaped elements; zeros first, because an empty sequence cannot be concatenated."""
    stacked = op.ConcatFromSequence(op.SequenceInsert(sequence, zeros_like(like)), axis=0, new_axis=1)
    return op.ReduceSum(stacked, [0], keepdims=0)


vjp_blocks("SequenceMap", _map)
