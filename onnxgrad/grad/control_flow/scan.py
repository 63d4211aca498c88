"""The gradient of Scan: a Scan in the other direction, from the states on tape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from onnx import TensorProto

from onnxgrad.errors import InputError
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
from onnxgrad.grad.sequences import add_up_sequences, adjoint_type, zeros_of
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.emission.emit import constant, emit_with_blocks
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import TensorType, Type
from onnxgrad.ir.var import Var


def scan_gradient(b: Binding, g: Sequence[Any], wanted: Sequence[Var]) -> Answer:
    """The Scan s_t, y_t = body(s_before, x_t) captures c. Its gradient is a Scan in reverse order:

        ds_before, dx_t, dc_t = (ds_t, dy_t) walked back through body(s_before, x_t)
        dc = sum of dc_t

    The states of the new Scan are ds and the sums dc. It scans s_before (on tape), x and dy, and
    returns dx for each step.
    """
    body = b.blocks["body"]
    refuse_random(b, body)
    n = len(b.inputs) - b.attr("num_scan_inputs")
    operands = [present(v, b) for v in b.inputs]
    initial = operands[:n]
    once = Body.of(body)
    # a body may know more of its inputs than the operands tell
    states = [_better(v.type, inside.type) for v, inside in zip(initial, body.inputs)]
    xs = _backwards(b, "input", operands[n:], body.inputs[n:])
    dys = _backwards(b, "output", g[n:], body.outputs[n:])
    tapes = [_Scanned(_record_scan(b, body, i, t), 0, 1, t) for i, t in enumerate(states)]
    floats = [k for k in range(n) if has_gradient(states[k])]
    captured = captured_by(body, wanted)
    results = [x for x in xs if x.value in wanted]
    scanned = [*tapes, *xs, *(dy for dy in dys if dy.value is not None)]
    kinds = [*(states[k] for k in floats), *map(adjoint_type, captured)]
    # a Scan has no sequences as states, and onnxruntime wants the ranks of its results
    loop = not all(map(_has_rank, (*kinds, *(x.element for x in results))))

    with body_again(body) as block:

        def parameters(name: str, types: Sequence[Type | None]) -> list[Var]:
            return [block.add_input(block.program.names.fresh(name), type_) for type_ in types]

        step = parameters("step", _COUNTERS if loop else [])[:1]
        ds_after = parameters("adjoint", kinds[: len(floats)])
        sums = parameters("sum", kinds[len(floats) :])
        read = [_element(v, step[0]) for v in scanned] if loop else None
        arriving = iter(read or parameters("element", [v.element for v in scanned]))
        s_before, x = [next(arriving) for _ in tapes], [next(arriving) for _ in xs]
        dy = [None if v.value is None else next(arriving) for v in dys]

        outs = once.copy(block, [*s_before, *x])
        ds = dict(zip(floats, ds_after, strict=True))
        seeds = [*map(ds.get, range(n)), *dy]
        before = [s_before[k] for k in floats]
        elements = [v for v, of in zip(x, xs, strict=True) if of in results]
        found = walk_back(block, outs[: len(seeds)], seeds, [*before, *elements, *captured])
        if loop:
            return_adjoint(block, constant(np.array(True)), None)
        for state in before:
            return_adjoint(block, found.get(state), state)
        for v, total in zip(captured, sums, strict=True):
            return_adjoint(block, add_up_sequences([total, found[v]]) if v in found else total, v)
        for element in elements:
            return_adjoint(block, found.get(element), element)

    values = [*(initial[k] for k in floats), *captured, *(x.value for x in results)]
    start = [given(g[k], initial[k], b.result(k)) for k in floats]
    start += [zeros_of(v) for v in captured]
    if loop:
        made = emit_with_blocks(
            "Loop",
            [_length(scanned[0]), None, *start],
            {"body": block},
            [*kinds, *(_stack(x.element) for x in results)],
        )
        found_xs = [_in_place(v, x) for v, x in zip(made[len(kinds) :], results, strict=True)]
        return answer_of(values, [*made[: len(kinds)], *found_xs], wanted)
    partials = emit_with_blocks(
        "Scan",
        [*start, *(v.value for v in scanned)],
        {"body": block},
        [adjoint_type(v) for v in values],
        num_scan_inputs=len(scanned),
        scan_input_axes=[v.axis for v in scanned],
        scan_input_directions=[v.direction for v in scanned],
        scan_output_axes=[x.axis for x in results] or None,
        scan_output_directions=[x.direction for x in results] or None,
    )
    return answer_of(values, partials, wanted)


_COUNTERS = (TensorType(TensorProto.INT64, ()), TensorType(TensorProto.BOOL, ()))


class _Scanned(NamedTuple):
    """A scanned operand or result: its axis, 1 if the steps start at the end of the axis, and the
    type of one step's slice in the body.
    """

    value: Any
    axis: int
    direction: int
    inside: Type | None

    @property
    def element(self) -> TensorType:
        """The type of one step's slice."""
        shape = self.value.shape
        if shape is None:
            found = _better(TensorType(self.value.dtype, None), self.inside)
            return found if isinstance(found, TensorType) else TensorType(self.value.dtype, None)
        axis = self.axis % len(shape)
        return TensorType(self.value.dtype, shape[:axis] + shape[axis + 1 :])


def _has_rank(type_: Type | None) -> bool:
    return isinstance(type_, TensorType) and type_.shape is not None


def _better(type_: Type | None, other: Type | None) -> Type | None:
    """Returns the first type that has a rank."""
    return other if not _has_rank(type_) and _has_rank(other) else type_


def _backwards(
    b: Binding, kind: str, values: Sequence[Any], inside: Sequence[Var]
) -> list[_Scanned]:
    """Returns scanned operands (kind "input") or results ("output") in reverse direction of the
    Scan `b`.
    """
    axes = b.attr(f"scan_{kind}_axes") or [0] * len(values)
    directions = b.attr(f"scan_{kind}_directions") or [0] * len(values)
    known = zip(values, axes, directions, inside)
    return [_Scanned(v, axis, 1 - d, of.type) for v, axis, d, of in known]


# ---- the backward steps as a Loop ----------------------------------------------------------------


def _length(scanned: _Scanned) -> Var:
    """Returns the number of steps."""
    made: Var = op.Gather(op.Shape(scanned.value), np.int64(scanned.axis), axis=0)
    return made


def _element(scanned: _Scanned, step: Var) -> Var:
    """Returns the slice that a step of the Loop reads."""
    place = op.Sub(op.Sub(_length(scanned), 1), step) if scanned.direction else step
    made: Var = op.Gather(scanned.value, place, axis=scanned.axis)
    if _has_rank(scanned.element):
        made.type = scanned.element
    return made


def _stack(type_: TensorType) -> TensorType:
    return TensorType(type_.dtype, None if type_.shape is None else (None, *type_.shape))


def _in_place(stack: Var, x: _Scanned) -> Var:
    """Returns what the steps of the Loop stacked in the order and on the axis of a scanned operand.
    Raises InputError for another axis than the first if the rank is not known.
    """
    if x.direction:
        stack = op.Slice(stack, [-1], [-(1 << 63)], [0], [-1])
    if x.axis:
        if stack.rank is None:
            raise InputError(f"the rank of '{x.value.name}' is not known, which a Scan scans")
        axis = x.axis % stack.rank
        order = list(range(1, stack.rank))
        stack = op.Transpose(stack, perm=[*order[:axis], 0, *order[axis:]])
    if stack.rank is None or x.value.rank is not None:
        stack.type = x.value.type
    return stack


def _record_scan(b: Binding, body: BindingBlock, state: int, type_: Type | None) -> Var:
    """Adds a result to the Scan: the state before each step."""
    v = body.inputs[state]
    tape = record(b, body, v, type_ or TensorType(v.dtype, None))
    for name in ("scan_output_axes", "scan_output_directions"):
        if name in b.attrs:  # an absent attribute means zeros for every operand
            b.set_attribute(name, [*b.attrs[name], 0])
    return tape


vjp_blocks("Scan", scan_gradient)
