"""LSTM: the cell states of all steps by one sweep forwards, the adjoints of both states by one backwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnxgrad.grad.registry import vjp_all
from onnxgrad.grad.rules.recurrent._gates import Gate, gates
from onnxgrad.grad.rules.recurrent._sweep import Direction, Recurrent, flat_product, plus
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var

Adjoints = Sequence["Var | None"]


def _lstm(g: Adjoints, y: Sequence[Var], xs: Sequence[Var], binding: Binding, wanted: Sequence[bool]) -> list[Any]:
    """Gates i, o, f and the candidate n: c = f c_before + i n, h = o tanh(c)."""
    cell = Recurrent(binding, y, 4)
    asked = [*wanted, *[False] * (8 - len(wanted))]
    found = [
        _direction(cell, d, kinds, g, asked)
        for d, kinds in zip(
            cell.directions, gates(binding, ["Sigmoid", "Tanh", "Tanh"], len(cell.directions), unclipped=2), strict=True
        )
    ]
    of_z, of_r, of_p, of_h, of_c = ([part[i] for part in found] for i in range(5))
    result = [
        cell.x_partial(of_z) if asked[0] else None,
        cell.w_partial(of_z) if asked[1] else None,
        cell.stacked(of_r) if asked[2] else None,
        cell.b_partial(of_z, of_z) if asked[3] else None,
        None,
        cell.stacked(of_h, state=True) if asked[5] else None,
        cell.stacked(of_c, state=True) if asked[6] else None,
        cell.stacked(of_p) if asked[7] else None,
    ]
    return result[: len(wanted)]


def _direction(
    cell: Recurrent, d: Direction, kinds: Sequence[Gate], g: Adjoints, wanted: Sequence[bool]
) -> tuple[Any, ...]:
    """The adjoints of the gates' sums (T, B, 4H), of R, of P, of the initial hidden and cell state.

    With dc the adjoint of c before it passes on, every gate's is a known coefficient times dc (for o: times dh), and
    peepholes only add to the coefficients with which dh enters dc and dc goes on to the step before.
    """
    f, n, out = kinds
    hidden, coupled = cell.hidden, bool(cell.binding.attr("input_forget", 0))
    h, r = cell.h_before(d), cell.weight(cell.r, d)
    inner = cell.product(cell.flat_x, cell.weight(cell.w, d), plus(cell.bias(d, 0), cell.bias(d, 1)))
    z = cell.in_time(cell.product(op.Flatten(h, axis=2), r, inner), cell.width)
    z_gates, z_n = op.Split(z, [3 * hidden, hidden], axis=2, outputs=2)
    p = cell.binding.operand(7)
    peephole = None if p is None else cell.of_direction(p, d)
    c_after = _cells(cell, d, f, n, z_gates, z_n, peephole, coupled)
    c = cell.before(c_after, cell.state(cell.binding.operand(6), d), d)
    seen = op.Concat(c, c_after, c, axis=2)
    if peephole is not None:
        z_gates = z_gates + seen * peephole
    enter, give, keep = op.Split(f(z_gates), axis=2, outputs=3)
    candidate = n(z_n)
    if coupled:
        keep = 1.0 - enter
        by_gate = op.Concat(candidate - c, out(c_after), c * 0.0, axis=2)
    else:
        by_gate = op.Concat(candidate, out(c_after), c, axis=2)
    of_gates = by_gate * f.slope(z_gates)
    to_c = give * out.slope(c_after)
    onward = keep
    if peephole is not None:
        part_i, part_o, part_f = op.Split(of_gates * peephole, axis=2, outputs=3)
        to_c = to_c + part_o
        onward = onward + part_i if coupled else onward + part_i + part_f
    coefficients = d.masked(op.Concat(of_gates, enter * n.slope(z_n), axis=2))

    def step(states: Sequence[Var], elements: Sequence[Var]) -> tuple[list[Var], list[Var]]:
        k, k_c, k_onward = elements[:3]
        dh = states[0] if g[0] is None else states[0] + elements[3]
        dc = states[1] + dh * k_c
        dz = op.Concat(dc, dh, dc, dc, axis=1) * k
        before = op.MatMul(dz, r)
        return [before if d.mask is None else before + dh * elements[-1], dc * k_onward], [dz]

    scans = [coefficients, d.masked(to_c), d.masked(onward, 1.0), *cell.seed(g, d), *cell.carry(d)]
    finals, (dz,) = cell.sweep(step, [cell.final(g, 1, d), cell.final(g, 2, d)], scans, not d.reverse)
    of_r = flat_product(dz, h) if wanted[2] else None
    of_p = op.ReduceSum(op.Slice(dz, [0], [3 * hidden], [2]) * seen, [0, 1], keepdims=0) if wanted[7] else None
    return dz, of_r, of_p, finals[0], finals[1]


def _cells(
    cell: Recurrent, d: Direction, f: Gate, n: Gate, z_gates: Var, z_n: Var, peephole: Var | None, coupled: bool
) -> Var:
    """The cell state after each step, (T, B, H); of a row past its length, the one it ended with."""
    initial = cell.state(cell.binding.operand(6), d)
    candidate = n(z_n)
    if peephole is None:
        enter, _, keep = op.Split(f(z_gates), axis=2, outputs=3)
        kept = d.masked(1.0 - enter if coupled else keep, 1.0)

        def step(states: Sequence[Var], elements: Sequence[Var]) -> tuple[list[Var], list[Var]]:
            c = states[0] * elements[0] + elements[1]
            return [c], [c]

        return cell.sweep(step, [initial], [kept, d.masked(enter * candidate)], d.reverse)[1][0]
    z_i, _, z_f = op.Split(z_gates, axis=2, outputs=3)
    p_i, _, p_f = op.Split(peephole, axis=0, outputs=3)

    def peeping(states: Sequence[Var], elements: Sequence[Var]) -> tuple[list[Var], list[Var]]:
        c = states[0]
        enter = f(elements[0] + c * p_i)
        keep = 1.0 - enter if coupled else f(elements[1] + c * p_f)
        after = keep * c + enter * elements[2]
        if d.mask is not None:
            after = op.Where(elements[3], after, c)
        return [after], [after]

    scans = [z_i, z_f, candidate, *([] if d.mask is None else [d.mask])]
    return cell.sweep(peeping, [initial], scans, d.reverse)[1][0]


vjp_all("LSTM", _lstm, notes="clip: the bounds pass the adjoint; it does not reach the cell's output")
