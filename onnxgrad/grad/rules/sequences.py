"""Sequences and optionals. The adjoint `g` of a sequence is a sequence of elements' adjoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onnxgrad.grad.control_flow.bodies import (
    Body,
    answer_of,
    body_again,
    captured_by,
    return_adjoint,
    walk_back,
)
from onnxgrad.grad.registry import vjp, vjp_all, vjp_blocks, zero
from onnxgrad.grad.sequences import element_type, lengths, position, zero_sequence
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.emit import emit_with_blocks
from onnxgrad.ir.emission.fill_and_reshape import zeros_like
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import SequenceType, Type
from onnxgrad.ir.var import Var

zero("SequenceEmpty", "SequenceLength", "OptionalHasElement")

vjp_all("SequenceConstruct", lambda g, y, xs: [op.SequenceAt(g, i) for i in range(len(xs))])


def _at(g: Var, y: Var, s: Var, i: Var) -> Var:
    """Returns zeros like s, with `g` at position i."""
    place = position(i, op.SequenceLength(s))
    return op.SequenceInsert(op.SequenceErase(zero_sequence(s), place), g, place)


def _erase(g: Var, y: Var, s: Var, i: Var | None = None) -> Var:
    """The erased element receives zeros."""
    length = op.SequenceLength(s)
    place = op.Sub(length, 1) if i is None else position(i, length)
    return op.SequenceInsert(g, zeros_like(op.SequenceAt(s, place)), place)


vjp("SequenceAt", _at)
vjp(
    "SequenceInsert",
    lambda g, y, s, x, i=None: op.SequenceErase(g, position(i, op.SequenceLength(s))),
    lambda g, y, s, x, i=None: op.SequenceAt(g, position(i, op.SequenceLength(s))),
)
vjp("SequenceErase", _erase)
vjp(
    "ConcatFromSequence",
    # the slice of the result that belongs to each element
    lambda g, y, s, axis, new_axis: (
        op.SplitToSequence(g, axis=axis, keepdims=0)
        if new_axis
        else op.SplitToSequence(g, lengths(s, axis), axis=axis)
    ),
)
vjp(
    "SplitToSequence",
    # join the pieces again; keepdims matters only if no split is given
    lambda g, y, x, parts=None, *, axis, keepdims: op.ConcatFromSequence(
        g, axis=axis, new_axis=int(parts is None and not keepdims)
    ),
)
vjp("Optional", lambda g, y, x: g)
vjp("OptionalGetElement", lambda g, y, x: g)


def _map(b: Binding, g: Sequence[Any], wanted: Sequence[Var]) -> Mapping[Var, Any]:
    """y_t = body(x_t), where x_t is an element or a tensor, captures c. Its gradient is a
    SequenceMap over the operands and dy:

    dx_t, dc_t = dy_t walked back through body(x_t). A value that all steps read gets the sum over
    the steps.
    """
    body = b.blocks["body"]
    xs, dys = [v for v in b.inputs if v is not None], [v for v in g if v is not None]
    captured = captured_by(body, wanted)
    with body_again(body) as block:
        x = [block.add_input(block.program.names.fresh("element"), _element(v)) for v in xs]
        arriving = iter(
            [block.add_input(block.program.names.fresh("arriving"), _element(v)) for v in dys]
        )
        outs = Body.of(body).copy(block, x)
        dy = [None if v is None else next(arriving) for v in g]
        wanted_here = [v for v, operand in zip(x, xs, strict=True) if operand in wanted] + captured
        found = walk_back(block, outs, dy, wanted_here)
        for v in wanted_here:
            return_adjoint(block, found.get(v), v)
    values = [v for v in xs if v in wanted] + captured
    types: list[Type] = [SequenceType(_element(v)) for v in values]
    mapped = emit_with_blocks("SequenceMap", [*xs, *dys], {"body": block}, types)
    partials = [
        m if isinstance(v.type, SequenceType) else _sum_of(m, v)
        for v, m in zip(values, mapped, strict=True)
    ]
    return answer_of(values, partials, wanted)


def _element(v: Var) -> Type | None:
    """Returns the type of `v` in one step: of an element of the sequence, or of the tensor."""
    return element_type(v) if isinstance(v.type, SequenceType) else v.type


def _sum_of(sequence: Var, like: Var) -> Var:
    """Returns the sum of equal-shaped elements.

    Zeros come first, because an empty sequence cannot be concatenated.
    """
    stacked = op.ConcatFromSequence(
        op.SequenceInsert(sequence, zeros_like(like)), axis=0, new_axis=1
    )
    return op.ReduceSum(stacked, [0], keepdims=0)


vjp_blocks("SequenceMap", _map)
