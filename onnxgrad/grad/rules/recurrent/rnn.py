"""RNN and GRU: one sweep over time for the state's adjoint, everything else for all steps at
once (see _sweep).
"""

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


def _rnn(
    g: Adjoints, y: Sequence[Var], xs: Sequence[Var], binding: Binding, wanted: Sequence[bool]
) -> list[Any]:
    """h = f(z), z = W x + R h_before + b."""
    cell = Recurrent(binding, y, 1)
    kinds = gates(binding, ["Tanh"], len(cell.directions))
    found = [
        _rnn_direction(cell, d, f, g, wanted)
        for d, (f,) in zip(cell.directions, kinds, strict=True)
    ]
    of_z, of_r, of_h = ([part[i] for part in found] for i in range(3))
    return cell.partials(wanted, x=of_z, h=of_z, r=of_r, initial_h=of_h)


def _rnn_direction(
    cell: Recurrent, d: Direction, f: Gate, g: Adjoints, wanted: Sequence[bool]
) -> tuple[Any, ...]:
    """dz = f'(z) dh, dh_before = dz R; the adjoints of z, of R and of the initial state."""
    h = cell.h_before(d)
    r = cell.weight(cell.r, d)
    inner = cell.product(
        cell.flat_x, cell.weight(cell.w, d), plus(cell.bias(d, 0), cell.bias(d, 1))
    )
    z = cell.in_time(cell.product(op.Flatten(h, axis=2), r, inner), cell.width)

    def step(states: Sequence[Var], elements: Sequence[Var]) -> tuple[list[Var], list[Var]]:
        dh, slope = states[0], elements[0]
        if g[0] is not None:
            dh = dh + elements[1]
        dz = dh * slope
        before = op.MatMul(dz, r)
        return [before if d.mask is None else before + dh * elements[-1]], [dz]

    scans = [d.masked(f.slope(z)), *cell.seed(g, d), *cell.carry(d)]
    finals, (dz,) = cell.sweep(step, [cell.final(g, 1, d)], scans, not d.reverse)
    return dz, flat_product(dz, h) if wanted[2] else None, finals[0]


def _gru(
    g: Adjoints, y: Sequence[Var], xs: Sequence[Var], binding: Binding, wanted: Sequence[bool]
) -> list[Any]:
    """Gates z, r and the candidate n: h = (1 - z) n + z h_before."""
    cell = Recurrent(binding, y, 3)
    sweep = _gru_reset_after if binding.attr("linear_before_reset", 0) else _gru_reset_before
    kinds = gates(binding, ["Sigmoid", "Tanh"], len(cell.directions))
    found = [sweep(cell, d, f, n, g) for d, (f, n) in zip(cell.directions, kinds, strict=True)]
    of_x, of_h, of_r, initial = ([part[i] for part in found] for i in range(4))
    return cell.partials(wanted, x=of_x, h=of_h, r=of_r, initial_h=initial)


def _gru_reset_after(
    cell: Recurrent, d: Direction, f: Gate, n: Gate, g: Adjoints
) -> tuple[Var, Var, Var, Var]:
    """n = g(W x + b + r (R h + c)): all three products with R share one, and so do their
    adjoints.
    """
    hidden, width = cell.hidden, cell.width
    h, r = cell.h_before(d), cell.weight(cell.r, d)
    of_x = cell.in_time(cell.product(cell.flat_x, cell.weight(cell.w, d), cell.bias(d, 0)), width)
    of_h = cell.in_time(cell.product(op.Flatten(h, axis=2), r, cell.bias(d, 1)), width)
    x_gates, x_n = op.Split(of_x, [2 * hidden, hidden], axis=2, outputs=2)
    h_gates, h_n = op.Split(of_h, [2 * hidden, hidden], axis=2, outputs=2)
    both = f(x_gates + h_gates)
    update, reset = op.Split(both, axis=2, outputs=2)
    slope_update, slope_reset = op.Split(f.slope(x_gates + h_gates), axis=2, outputs=2)
    inner = x_n + reset * h_n
    to_n = (1.0 - update) * n.slope(inner)
    coefficients = d.masked(
        op.Concat(
            (h - n(inner)) * slope_update, to_n * h_n * slope_reset, to_n * reset, to_n, axis=2
        )
    )
    keep = d.masked(update, 1.0)

    def step(states: Sequence[Var], elements: Sequence[Var]) -> tuple[list[Var], list[Var]]:
        dh = states[0] if g[0] is None else states[0] + elements[2]
        dz = op.Concat(dh, dh, dh, dh, axis=1) * elements[0]
        of_r = op.Slice(dz, [0], [width], [1])
        return [dh * elements[1] + op.MatMul(of_r, r)], [dz]

    finals, (dz,) = cell.sweep(
        step, [cell.final(g, 1, d)], [coefficients, keep, *cell.seed(g, d)], not d.reverse
    )
    of_gates, of_q, of_n = op.Split(dz, [2 * hidden, hidden, hidden], axis=2, outputs=3)
    recurrent = op.Concat(of_gates, of_q, axis=2)
    return op.Concat(of_gates, of_n, axis=2), recurrent, flat_product(recurrent, h), finals[0]


def _gru_reset_before(
    cell: Recurrent, d: Direction, f: Gate, n: Gate, g: Adjoints
) -> tuple[Var, Var, Var, Var]:
    """n = g(W x + b + R (r h) + c)."""
    hidden, width = cell.hidden, cell.width
    h = cell.h_before(d)
    r_gates, r_n = cell.weight(cell.r, d, 0, 2 * hidden), cell.weight(cell.r, d, 2 * hidden, width)
    bias = plus(cell.bias(d, 0), cell.bias(d, 1))
    of_x = cell.product(cell.flat_x, cell.weight(cell.w, d), bias)
    x_gates, x_n = op.Split(of_x, [2 * hidden, hidden], axis=1, outputs=2)
    z = cell.in_time(cell.product(op.Flatten(h, axis=2), r_gates, x_gates), 2 * hidden)
    update, reset = op.Split(f(z), axis=2, outputs=2)
    slope_update, slope_reset = op.Split(f.slope(z), axis=2, outputs=2)
    inner = cell.in_time(cell.product(op.Flatten(reset * h, axis=2), r_n, x_n), hidden)
    to_update = d.masked((h - n(inner)) * slope_update)
    to_n = d.masked((1.0 - update) * n.slope(inner))
    keep = d.masked(update, 1.0)

    def step(states: Sequence[Var], elements: Sequence[Var]) -> tuple[list[Var], list[Var]]:
        k_update, k_n, k_reset, kept, resetting = elements[:5]
        dh = states[0] if g[0] is None else states[0] + elements[5]
        of_n = dh * k_n
        of_product = op.MatMul(of_n, r_n)
        of_gates = op.Concat(dh * k_update, of_product * k_reset, axis=1)
        before = dh * kept + of_product * resetting + op.MatMul(of_gates, r_gates)
        return [before], [op.Concat(of_gates, of_n, axis=1)]

    scans = [to_update, to_n, d.masked(h * slope_reset), keep, reset, *cell.seed(g, d)]
    finals, (dz,) = cell.sweep(step, [cell.final(g, 1, d)], scans, not d.reverse)
    of_gates, of_n = op.Split(dz, [2 * hidden, hidden], axis=2, outputs=2)
    of_r = op.Concat(flat_product(of_gates, h), flat_product(of_n, reset * h), axis=0)
    return dz, dz, of_r, finals[0]


vjp_all("RNN", _rnn)
vjp_all("GRU", _gru)
