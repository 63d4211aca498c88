"""The gradient of Scan: a Scan in the other direction, from the states on tape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

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
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.emission.emit import emit_with_blocks
from onnxgrad.ir.emission.fill_and_reshape import zeros_like
from onnxgrad.ir.types import TensorType, Type
from onnxgrad.ir.var import Var
from onnxgrad.laws.sums import add_up


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
    xs = _backwards(b, "input", operands[n:])
    dys = _backwards(b, "output", g[n:])
    tapes = [_Scanned(_record_scan(b, body, i, initial[i]), 0, 1) for i in range(n)]
    floats = [k for k in range(n) if has_gradient(initial[k].type)]
    captured = captured_by(body, wanted)
    wanted_xs = [j for j, x in enumerate(xs) if x.value in wanted]
    arrived_dys = [dy for dy in dys if dy.value is not None]

    with body_again(body) as block:

        def parameters(name: str, types: Sequence[Type | None]) -> list[Var]:
            return [block.add_input(block.program.names.fresh(name), type_) for type_ in types]

        ds_after = parameters("adjoint", [initial[k].type for k in floats])
        sums = parameters("sum", [v.type for v in captured])
        s_before = parameters("state", [v.type for v in initial])
        x = parameters("element", [scanned.element for scanned in xs])
        arriving = iter(parameters("arriving", [dy.element for dy in arrived_dys]))
        dy = [None if scanned.value is None else next(arriving) for scanned in dys]

        outs = once.copy(block, [*s_before, *x])
        ds = dict(zip(floats, ds_after, strict=True))
        seeds = [*map(ds.get, range(n)), *dy]
        states, elements = [s_before[k] for k in floats], [x[j] for j in wanted_xs]
        found = walk_back(block, outs[: len(seeds)], seeds, [*states, *elements, *captured])
        for state in states:
            return_adjoint(block, found.get(state), state)
        for v, total in zip(captured, sums, strict=True):
            return_adjoint(block, add_up([total, found[v]]) if v in found else total, v)
        for element in elements:
            return_adjoint(block, found.get(element), element)

    scanned = [*tapes, *xs, *arrived_dys]
    results = [xs[j] for j in wanted_xs]
    values = [*(initial[k] for k in floats), *captured, *(x.value for x in results)]
    start = [given(g[k], initial[k], b.result(k)) for k in floats] + [
        zeros_like(v) for v in captured
    ]
    partials = emit_with_blocks(
        "Scan",
        [*start, *(v.value for v in scanned)],
        {"body": block},
        [v.type for v in values],
        num_scan_inputs=len(scanned),
        scan_input_axes=[v.axis for v in scanned],
        scan_input_directions=[v.direction for v in scanned],
        scan_output_axes=[x.axis for x in results] or None,
        scan_output_directions=[x.direction for x in results] or None,
    )
    return answer_of(values, partials, wanted)


class _Scanned(NamedTuple):
    """A scanned operand or result: its axis, and 1 if the steps start at the end of the axis."""

    value: Any
    axis: int
    direction: int

    @property
    def element(self) -> TensorType:
        """The type of one step's slice."""
        shape = self.value.shape
        if shape is None:
            return TensorType(self.value.dtype, None)
        axis = self.axis % len(shape)
        return TensorType(self.value.dtype, shape[:axis] + shape[axis + 1 :])


def _backwards(b: Binding, kind: str, values: Sequence[Any]) -> list[_Scanned]:
    """Returns scanned operands (kind "input") or results ("output") in reverse direction of the
    Scan `b`.
    """
    axes = b.attr(f"scan_{kind}_axes") or [0] * len(values)
    directions = b.attr(f"scan_{kind}_directions") or [0] * len(values)
    return [_Scanned(v, axis, 1 - d) for v, axis, d in zip(values, axes, directions, strict=True)]


def _record_scan(b: Binding, body: BindingBlock, state: int, initial: Var) -> Var:
    """Adds a result to the Scan: the state before each step."""
    tape = record(b, body, body.inputs[state], initial.type or TensorType(initial.dtype, None))
    for name in ("scan_output_axes", "scan_output_directions"):
        if name in b.attrs:  # an absent attribute means zeros for every operand
            b.set_attribute(name, [*b.attrs[name], 0])
    return tape


vjp_blocks("Scan", scan_gradient)
