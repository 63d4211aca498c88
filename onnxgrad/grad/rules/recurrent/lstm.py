"""LSTM: a forward sweep computes the gates and cell states of all steps, and a backward sweep the
adjoints of both states.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnxgrad.frozen import frozen
from onnxgrad.grad.registry import vjp_all
from onnxgrad.grad.rules.recurrent._gates import Gate, gates, is_kept, take_place
from onnxgrad.grad.rules.recurrent._sweep import Direction, Recurrent, flat_product
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
    needed = [*wanted, *[False] * (8 - len(wanted))]
    both = list(zip(cell.directions, kinds, strict=True))
    if binding.operand(7) is None and is_kept(cell, kinds):
        kept = [_kept(cell, d, kind) for d, kind in both]
        finals = [[final[i] for _, _, final in kept] for i in range(2)]
        take_place(cell, [series for _, series, _ in kept], finals)
        steps = [at for at, _, _ in kept]
    else:
        steps = [_again(cell, d, kind) for d, kind in both]
    found = [
        _direction(cell, d, at, g, needed) for d, at in zip(cell.directions, steps, strict=True)
    ]
    of_z, of_r, of_p, of_h, of_c = ([part[i] for part in found] for i in range(5))
    return cell.partials(wanted, x=of_z, h=of_z, r=of_r, initial_h=of_h, initial_c=of_c, p=of_p)


@frozen
class _Steps:
    """The values of a direction's steps, (T, B, H) each: the hidden and the cell state before each,
    the gates i, o and f, the candidate c, and h(C).

    slopes: those of i, o, f, c and h(C). p: the peepholes of i, o, f, whose operand is `seen`,
    (T, B, 3H): C_before, C, C_before.
    """

    h_before: Var
    c_before: Var
    i: Var
    o: Var
    f: Var
    c: Var
    of_c: Var
    slopes: Sequence[Var]
    p: Var | None = None
    seen: Var | None = None


def _kept(
    cell: Recurrent, d: Direction, kinds: Sequence[Gate]
) -> tuple[_Steps, Var, Sequence[Var]]:
    """Replaces a direction without peepholes by a Scan that stores its steps (see `take_place`).

    Returns the steps, H after each, (T, B, H), and the final H and C.
    """
    f, g, h = kinds
    r = cell.weight(cell.r, d)

    def step(states: Sequence[Var], elements: Sequence[Var]) -> tuple[list[Var], list[Var]]:
        h_before, c_before = states
        z = op.Gemm(h_before, r, elements[0], transB=1)
        z_i, z_o, z_f, z_c = op.Split(z, axis=1, outputs=4)
        i, o, c = f(z_i), f(z_o), g(z_c)
        forget = 1.0 - i if _is_coupled(cell) else f(z_f)
        c_after = forget * c_before + i * c
        of_c = h(c_after)
        h_after = o * of_c
        return [h_after, c_after], [h_after, c_before, i, o, forget, c, of_c]

    initial = [cell.state(cell.binding.operand(k), d) for k in (5, 6)]
    scans = [cell.in_time(cell.of_x(d), cell.width)]
    finals, (y, *found) = cell.sweep(step, initial, scans, d.reverse)
    c_before, i, o, forget, c, of_c = found
    slopes = [f.slope_at(i), f.slope_at(o), f.slope_at(forget), g.slope_at(c), h.slope_at(of_c)]
    h_before = cell.before(y, initial[0], d)
    return _Steps(h_before, c_before, i, o, forget, c, of_c, slopes), y, finals


def _again(cell: Recurrent, d: Direction, kinds: Sequence[Gate]) -> _Steps:
    """Computes the steps again: Z = X W^T + H_before R^T + Wb + Rb, and the cells by a sweep."""
    f, g, h = kinds
    h_before, r = cell.h_before(d), cell.weight(cell.r, d)
    flat_z = op.Gemm(op.Flatten(h_before, axis=2), r, cell.of_x(d), transB=1)
    all_z = cell.in_time(flat_z, cell.width)
    z, z_c = op.Split(all_z, [3 * cell.hidden, cell.hidden], axis=2, outputs=2)
    given = cell.binding.operand(7)
    p = None if given is None else cell.of_direction(given, d)
    c_after = _cells(cell, d, f, g, z, z_c, p)
    c_before = cell.before(c_after, cell.state(cell.binding.operand(6), d), d)
    seen = op.Concat(c_before, c_after, c_before, axis=2)
    if p is not None:
        z = z + seen * p
    i, o, forget = op.Split(f(z), axis=2, outputs=3)
    slopes = [*op.Split(f.slope(z), axis=2, outputs=3), g.slope(z_c), h.slope(c_after)]
    if _is_coupled(cell):
        forget = 1.0 - i
    return _Steps(h_before, c_before, i, o, forget, g(z_c), h(c_after), slopes, p, seen)


def _direction(
    cell: Recurrent, d: Direction, at: _Steps, adjoints: Adjoints, wanted: Sequence[bool]
) -> tuple[Any, ...]:
    """Returns the adjoints of the sums Z (T, B, 4H), of R, of P, of initial_h and of initial_c.

    With i, o, f = f(Z + P (C_before, C, C_before)), c = g(Z_c), C = f C_before + i c and
    H = o h(C):

        dZ_o = dH h(C) f'(Z_o)
        dC = dC_after + dH (o h'(C) + P_o h(C) f'(Z_o))
        dZ_i = dC c f'(Z_i)
        dZ_f = dC C_before f'(Z_f)
        dZ_c = dC i g'(Z_c)
        dH_before = dZ R
        dC_before = dC (f + P_i c f'(Z_i) + P_f C_before f'(Z_f))

    Every step is linear in dH and dC, with coefficients that are known beforehand for all steps.
    With input_forget, f is 1 - i and dZ_i = dC (c - C_before) f'(Z_i).
    """
    coupled, r = _is_coupled(cell), cell.weight(cell.r, d)
    of_i, of_o, of_f, of_g, of_h = at.slopes
    by_i = (at.c - at.c_before if coupled else at.c) * of_i
    by_o = at.of_c * of_o
    by_f = at.c_before * (0.0 if coupled else of_f)
    h_to_c, c_to_before = at.o * of_h, at.f
    if at.p is not None:
        p_i, p_o, p_f = op.Split(at.p, axis=0, outputs=3)
        h_to_c = h_to_c + by_o * p_o
        c_to_before = c_to_before + by_i * p_i
        if not coupled:
            c_to_before = c_to_before + by_f * p_f
    to_z = d.masked(op.Concat(by_i, by_o, by_f, at.i * of_g, axis=2))

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
    of_r = flat_product(dz, at.h_before) if wanted[2] else None
    of_p = (
        op.ReduceSum(op.Slice(dz, [0], [3 * cell.hidden], [2]) * at.seen, [0, 1], keepdims=0)
        if wanted[7]
        else None
    )
    return dz, of_r, of_p, finals[0], finals[1]


def _is_coupled(cell: Recurrent) -> bool:
    """Whether f = 1 - i."""
    return bool(cell.binding.attr("input_forget", 0))


def _cells(cell: Recurrent, d: Direction, f: Gate, g: Gate, z: Var, z_c: Var, p: Var | None) -> Var:
    """Returns the cell state after each step, (T, B, H).

    A row past its length keeps its last cell state.
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
    "LSTM", _lstm, notes="clip: the adjoint passes at the bounds; the cell's output is not clipped"
)
