"""LSTM: the cell states of all steps by one sweep forwards, the adjoints of both states by one
backwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from onnxgrad.grad.registry import vjp_all
from onnxgrad.grad.rules.recurrent._gates import Gate, gates
from onnxgrad.grad.rules.recurrent._sweep import Direction, Recurrent, flat_product, plus
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var

Adjoints = Sequence["Var | None"]


def _lstm(
    g: Adjoints, y: Sequence[Var], xs: Sequence[Var], binding: Binding, wanted: Sequence[bool]
) -> list[Any]:
    """Gates i, o, f and the candidate c: C = f C_before + i c, H = o h(C)."""
    cell = Recurrent(binding, y, 4)
    kinds = gates(binding, ["Sigmoid", "Tanh", "Tanh"], len(cell.directions), unclipped=2)
    asked = [*wanted, *[False] * (8 - len(wanted))]
    found = [
        _direction(cell, d, kind, g, asked) for d, kind in zip(cell.directions, kinds, strict=True)
    ]
    of_z, of_r, of_p, of_h, of_c = ([part[i] for part in found] for i in range(5))
    return cell.partials(wanted, x=of_z, h=of_z, r=of_r, initial_h=of_h, initial_c=of_c, p=of_p)


@dataclass(frozen=True)
class _Again:
    """What a direction's steps computed, all of them at once: time, batch, and features as said.

    c_before, c_after (H): the cell states around each step. z (3H): the sums that enter the gates
    i, o, f, with their peepholes P, which saw `seen`: C_before, C, C_before. z_c (H): the
    candidate's.
    """

    c_before: Var
    c_after: Var
    z: Var
    z_c: Var
    p: Var | None
    seen: Var


def _again(cell: Recurrent, d: Direction, f: Gate, g: Gate, h_before: Var, r: Var) -> _Again:
    """Z = X W^T + H_before R^T + Wb + Rb, and the cell states that follow from it."""
    inner = cell.product(
        cell.flat_x, cell.weight(cell.w, d), plus(cell.bias(d, 0), cell.bias(d, 1))
    )
    all_z = cell.in_time(cell.product(op.Flatten(h_before, axis=2), r, inner), cell.width)
    z, z_c = op.Split(all_z, [3 * cell.hidden, cell.hidden], axis=2, outputs=2)
    given = cell.binding.operand(7)
    p = None if given is None else cell.of_direction(given, d)
    c_after = _cells(cell, d, f, g, z, z_c, p)
    c_before = cell.before(c_after, cell.state(cell.binding.operand(6), d), d)
    seen = op.Concat(c_before, c_after, c_before, axis=2)
    return _Again(c_before, c_after, z if p is None else z + seen * p, z_c, p, seen)


def _direction(
    cell: Recurrent, d: Direction, kinds: Sequence[Gate], adjoints: Adjoints, wanted: Sequence[bool]
) -> tuple[Any, ...]:
    """The adjoints of the sums Z (T, B, 4H), of R, of P, of initial_h and of initial_c.

    With i, o, f = f(Z + P (C_before, C, C_before)), c = g(Z_c), C = f C_before + i c and H = o
    h(C):

        dZ_o = dH h(C) f'(Z_o)      dC = dC_after + dH (o h'(C) + P_o h(C) f'(Z_o)) dZ_i = dC c
        f'(Z_i)         dZ_f = dC C_before f'(Z_f)                          dZ_c = dC i g'(Z_c)
        dH_before = dZ R            dC_before = dC (f + P_i c f'(Z_i) + P_f C_before f'(Z_f))

    Every step is linear in dH and dC, with coefficients that are known for all steps beforehand.
    Under input_forget f is 1 - i, and dZ_i = dC (c - C_before) f'(Z_i).
    """
    f, g, h = kinds
    h_before, r = cell.h_before(d), cell.weight(cell.r, d)
    at = _again(cell, d, f, g, h_before, r)
    i, o, kept = op.Split(f(at.z), axis=2, outputs=3)
    c = g(at.z_c)
    if _is_coupled(cell):
        kept = 1.0 - i
        by_gate = op.Concat(c - at.c_before, h(at.c_after), at.c_before * 0.0, axis=2)
    else:
        by_gate = op.Concat(c, h(at.c_after), at.c_before, axis=2)
    by_z = by_gate * f.slope(at.z)
    h_to_c = o * h.slope(at.c_after)
    c_to_before = kept
    if at.p is not None:
        by_i, by_o, by_f = op.Split(by_z * at.p, axis=2, outputs=3)
        h_to_c = h_to_c + by_o
        c_to_before = c_to_before + by_i if _is_coupled(cell) else c_to_before + by_i + by_f
    to_z = d.masked(op.Concat(by_z, i * g.slope(at.z_c), axis=2))

    def step(states: Sequence[Var], elements: Sequence[Var]) -> tuple[list[Var], list[Var]]:
        to_z, h_to_c, c_to_before = elements[:3]
        dh = states[0] if adjoints[0] is None else states[0] + elements[3]
        dc = states[1] + dh * h_to_c
        dz = op.Concat(dc, dh, dc, dc, axis=1) * to_z
        before = op.MatMul(dz, r)
        return [before if d.mask is None else before + dh * elements[-1], dc * c_to_before], [dz]

    scans = [
        to_z,
        d.masked(h_to_c),
        d.masked(c_to_before, 1.0),
        *cell.seed(adjoints, d),
        *cell.carry(d),
    ]
    finals, (dz,) = cell.sweep(
        step, [cell.final(adjoints, 1, d), cell.final(adjoints, 2, d)], scans, not d.reverse
    )
    of_r = flat_product(dz, h_before) if wanted[2] else None
    of_p = (
        op.ReduceSum(op.Slice(dz, [0], [3 * cell.hidden], [2]) * at.seen, [0, 1], keepdims=0)
        if wanted[7]
        else None
    )
    return dz, of_r, of_p, finals[0], finals[1]


def _is_coupled(cell: Recurrent) -> bool:
    """f = 1 - i."""
    return bool(cell.binding.attr("input_forget", 0))


def _cells(cell: Recurrent, d: Direction, f: Gate, g: Gate, z: Var, z_c: Var, p: Var | None) -> Var:
    """The cell state after each step, (T, B, H); of a row past its length, the one it ended
    with.
    """
    initial, coupled = cell.state(cell.binding.operand(6), d), _is_coupled(cell)
    c = g(z_c)
    if p is None:
        i, _, kept = op.Split(f(z), axis=2, outputs=3)
        kept = d.masked(1.0 - i if coupled else kept, 1.0)

        def step(states: Sequence[Var], elements: Sequence[Var]) -> tuple[list[Var], list[Var]]:
            after = states[0] * elements[0] + elements[1]
            return [after], [after]

        return cell.sweep(step, [initial], [kept, d.masked(i * c)], d.reverse)[1][0]
    z_i, _, z_f = op.Split(z, axis=2, outputs=3)
    p_i, _, p_f = op.Split(p, axis=0, outputs=3)

    def peeping(states: Sequence[Var], elements: Sequence[Var]) -> tuple[list[Var], list[Var]]:
        before = states[0]
        i = f(elements[0] + before * p_i)
        kept = 1.0 - i if coupled else f(elements[1] + before * p_f)
        after = kept * before + i * elements[2]
        if d.mask is not None:
            after = op.Where(elements[3], after, before)
        return [after], [after]

    scans = [z_i, z_f, c, *([] if d.mask is None else [d.mask])]
    return cell.sweep(peeping, [initial], scans, d.reverse)[1][0]


vjp_all(
    "LSTM", _lstm, notes="clip: the bounds pass the adjoint; it does not reach the cell's output"
)
