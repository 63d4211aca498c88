"""RNN and GRU: one sweep over time computes the state's adjoint. All other values are computed for
all steps at once (see `_sweep`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnxgrad.frozen import frozen
from onnxgrad.grad.registry import vjp_all
from onnxgrad.grad.rules.recurrent._gates import Gate, gates, is_kept, take_place
from onnxgrad.grad.rules.recurrent._sweep import Direction, Recurrent, flat_product
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.arithmetic import plus
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
    """dz = f'(z) dh, dh_before = dz R. Returns the adjoints of z, of R and of the initial state."""
    h = cell.h_before(d)
    r = cell.weight(cell.r, d)
    if f.is_by_value:
        slopes = f.slope_at(cell.after(d))
    else:
        weight, bias = cell.weight(cell.w, d), plus(cell.bias(d, 0), cell.bias(d, 1))
        of_x = op.Gemm(cell.flat_x, weight, bias, transB=1)
        flat_z = op.Gemm(op.Flatten(h, axis=2), r, of_x, transB=1)
        slopes = f.slope(cell.in_time(flat_z, cell.width))

    def step(states: Sequence[Var], elements: Sequence[Var]) -> tuple[list[Var], list[Var]]:
        dh, slope = states[0], elements[0]
        if g[0] is not None:
            dh = dh + elements[1]
        dz = dh * slope
        before = op.MatMul(dz, r)
        return [before if d.mask is None else before + dh * elements[-1]], [dz]

    scans = [d.masked(slopes), *cell.seed(g, d), *cell.carry(d)]
    finals, (dz,) = cell.sweep(step, [cell.final(g, 1, d)], scans, not d.reverse)
    return dz, flat_product(dz, h) if wanted[2] else None, finals[0]


def _gru(
    g: Adjoints, y: Sequence[Var], xs: Sequence[Var], binding: Binding, wanted: Sequence[bool]
) -> list[Any]:
    """Gates z, r and the candidate n: h = (1 - z) n + z h_before."""
    cell = Recurrent(binding, y, 3)
    after = bool(binding.attr("linear_before_reset", 0))
    kinds = gates(binding, ["Sigmoid", "Tanh"], len(cell.directions))
    both = list(zip(cell.directions, kinds, strict=True))
    if is_kept(cell, kinds):
        kept = [_gru_kept(cell, d, f, n, after) for d, (f, n) in both]
        take_place(cell, [series for _, series, _ in kept], [[final for _, _, final in kept]])
        steps = [at for at, _, _ in kept]
    else:
        again = _gru_again_after if after else _gru_again_before
        steps = [again(cell, d, f, n) for d, (f, n) in both]
    sweep = _gru_reset_after if after else _gru_reset_before
    found = [sweep(cell, d, at, g) for d, at in zip(cell.directions, steps, strict=True)]
    of_x, of_h, of_r, initial = ([part[i] for part in found] for i in range(4))
    return cell.partials(wanted, x=of_x, h=of_h, r=of_r, initial_h=initial)


@frozen
class _GruSteps:
    """The values of a direction's steps, (T, B, H) each: the state before each, the gates z
    (`update`) and r (`reset`), the candidate n, and R h + c of its sum if r multiplies that.

    slopes: those of z, r and n.
    """

    h: Var
    update: Var
    reset: Var
    n: Var
    slopes: Sequence[Var]
    of_h: Var | None = None


def _gru_kept(
    cell: Recurrent, d: Direction, f: Gate, n: Gate, after: bool
) -> tuple[_GruSteps, Var, Var]:
    """Replaces a direction by a Scan that stores its steps (see `take_place`).

    Returns the steps, h after each, (T, B, H), and the final h. `after`: n is
    g(W x + b + r (R h + c)) instead of g(W x + b + R (r h) + c).
    """
    hidden, width = cell.hidden, cell.width
    r_gates, r_n = cell.weight(cell.r, d, 0, 2 * hidden), cell.weight(cell.r, d, 2 * hidden, width)
    of_n = cell.bias(d, 1, 2 * hidden, width)
    x_gates = op.Gemm(
        cell.flat_x,
        cell.weight(cell.w, d, 0, 2 * hidden),
        plus(cell.bias(d, 0, 0, 2 * hidden), cell.bias(d, 1, 0, 2 * hidden)),
        transB=1,
    )
    bias_n = cell.bias(d, 0, 2 * hidden, width)
    x_n = op.Gemm(
        cell.flat_x,
        cell.weight(cell.w, d, 2 * hidden, width),
        bias_n if after else plus(bias_n, of_n),
        transB=1,
    )

    def step(states: Sequence[Var], elements: Sequence[Var]) -> tuple[list[Var], list[Var]]:
        h, (x_gates, x_n) = states[0], elements
        update, reset = op.Split(f(op.Gemm(h, r_gates, x_gates, transB=1)), axis=1, outputs=2)
        of_h = [op.Gemm(h, r_n, of_n, transB=1)] if after else []
        z = x_n + reset * of_h[0] if after else op.Gemm(reset * h, r_n, x_n, transB=1)
        candidate = n(z)
        h_after = candidate + update * (h - candidate)
        return [h_after], [h_after, update, reset, candidate, *of_h]

    initial = cell.state(cell.binding.operand(5), d)
    scans = [cell.in_time(x_gates, 2 * hidden), cell.in_time(x_n, hidden)]
    (final,), (series, update, reset, candidate, *of_h) = cell.sweep(
        step, [initial], scans, d.reverse
    )
    slopes = [f.slope_at(update), f.slope_at(reset), n.slope_at(candidate)]
    h = cell.before(series, initial, d)
    return _GruSteps(h, update, reset, candidate, slopes, *of_h), series, final


def _gru_again_after(cell: Recurrent, d: Direction, f: Gate, n: Gate) -> _GruSteps:
    """Computes the steps again: n = g(W x + b + r (R h + c)), all products with R in one."""
    hidden, width = cell.hidden, cell.width
    h, r = cell.h_before(d), cell.weight(cell.r, d)
    flat_x = op.Gemm(cell.flat_x, cell.weight(cell.w, d), cell.bias(d, 0), transB=1)
    of_x = cell.in_time(flat_x, width)
    of_h = cell.in_time(op.Gemm(op.Flatten(h, axis=2), r, cell.bias(d, 1), transB=1), width)
    x_gates, x_n = op.Split(of_x, [2 * hidden, hidden], axis=2, outputs=2)
    h_gates, h_n = op.Split(of_h, [2 * hidden, hidden], axis=2, outputs=2)
    z = x_gates + h_gates
    update, reset = op.Split(f(z), axis=2, outputs=2)
    inner = x_n + reset * h_n
    slopes = [*op.Split(f.slope(z), axis=2, outputs=2), n.slope(inner)]
    return _GruSteps(h, update, reset, n(inner), slopes, h_n)


def _gru_reset_after(
    cell: Recurrent, d: Direction, at: _GruSteps, g: Adjoints
) -> tuple[Var, Var, Var, Var]:
    """n = g(W x + b + r (R h + c)): one product computes all three products with R. One product
    also computes their adjoints.
    """
    hidden, width = cell.hidden, cell.width
    r = cell.weight(cell.r, d)
    of_update, of_reset, of_n = at.slopes
    to_n = (1.0 - at.update) * of_n
    coefficients = d.masked(
        op.Concat(
            (at.h - at.n) * of_update, to_n * at.of_h * of_reset, to_n * at.reset, to_n, axis=2
        )
    )
    keep = d.masked(at.update, 1.0)

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
    return op.Concat(of_gates, of_n, axis=2), recurrent, flat_product(recurrent, at.h), finals[0]


def _gru_again_before(cell: Recurrent, d: Direction, f: Gate, n: Gate) -> _GruSteps:
    """Computes the steps again: n = g(W x + b + R (r h) + c)."""
    hidden, width = cell.hidden, cell.width
    h = cell.h_before(d)
    r_gates, r_n = cell.weight(cell.r, d, 0, 2 * hidden), cell.weight(cell.r, d, 2 * hidden, width)
    x_gates, x_n = op.Split(cell.of_x(d), [2 * hidden, hidden], axis=1, outputs=2)
    z = cell.in_time(op.Gemm(op.Flatten(h, axis=2), r_gates, x_gates, transB=1), 2 * hidden)
    update, reset = op.Split(f(z), axis=2, outputs=2)
    inner = cell.in_time(op.Gemm(op.Flatten(reset * h, axis=2), r_n, x_n, transB=1), hidden)
    slopes = [*op.Split(f.slope(z), axis=2, outputs=2), n.slope(inner)]
    return _GruSteps(h, update, reset, n(inner), slopes)


def _gru_reset_before(
    cell: Recurrent, d: Direction, at: _GruSteps, g: Adjoints
) -> tuple[Var, Var, Var, Var]:
    """n = g(W x + b + R (r h) + c)."""
    hidden, width = cell.hidden, cell.width
    r_gates, r_n = cell.weight(cell.r, d, 0, 2 * hidden), cell.weight(cell.r, d, 2 * hidden, width)
    of_update, of_reset, of_n = at.slopes
    to_update = d.masked((at.h - at.n) * of_update)
    to_n = d.masked((1.0 - at.update) * of_n)
    keep = d.masked(at.update, 1.0)

    def step(states: Sequence[Var], elements: Sequence[Var]) -> tuple[list[Var], list[Var]]:
        k_update, k_n, k_reset, kept, resetting = elements[:5]
        dh = states[0] if g[0] is None else states[0] + elements[5]
        of_n = dh * k_n
        of_product = op.MatMul(of_n, r_n)
        of_gates = op.Concat(dh * k_update, of_product * k_reset, axis=1)
        before = dh * kept + of_product * resetting + op.MatMul(of_gates, r_gates)
        return [before], [op.Concat(of_gates, of_n, axis=1)]

    scans = [to_update, to_n, d.masked(at.h * of_reset), keep, at.reset, *cell.seed(g, d)]
    finals, (dz,) = cell.sweep(step, [cell.final(g, 1, d)], scans, not d.reverse)
    of_gates, of_n = op.Split(dz, [2 * hidden, hidden], axis=2, outputs=2)
    of_r = op.Concat(flat_product(of_gates, at.h), flat_product(of_n, at.reset * at.h), axis=0)
    return dz, dz, of_r, finals[0]


vjp_all("RNN", _rnn)
vjp_all("GRU", _gru)
