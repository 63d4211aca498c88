"""RNN, GRU and LSTM with everything that the specification allows; onnx.reference lacks
bidirectional runs, activations, lengths and clip.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from onnxgrad.verify.reference.kernels.elementwise import ACTIVATIONS
from onnxgrad.verify.reference.kernels.registry import Array, Call, Unsupported, kernel

Activation = Callable[[Array], Array]

# the activations that read an alpha or a beta from the lists
_TAKE_BETA = {"affine", "scaledtanh", "hardsigmoid"}
_TAKE_ALPHA = _TAKE_BETA | {"leakyrelu", "thresholdedrelu", "elu"}


def _activations(
    call: Call, defaults: list[str], directions: int, unclipped: int = -1
) -> list[Activation]:
    """Returns one function per gate and direction. Activations with parameters consume alphas and
    betas in order.

    `unclipped`: the position among a direction's functions to which `clip` does not apply.
    """
    names = [n.lower() for n in (call["activations"] or defaults * directions)]
    alphas, betas = iter(call["activation_alpha"] or ()), iter(call["activation_beta"] or ())
    found: list[Activation] = []
    for number, name in enumerate(names):
        if name not in ACTIVATIONS:
            raise Unsupported(f"{call.op_type} with the activation {name!r}")
        function, alpha, beta = ACTIVATIONS[name]
        alpha = next(alphas, alpha) if name in _TAKE_ALPHA else alpha
        beta = next(betas, beta) if name in _TAKE_BETA else beta
        bound = 0.0 if number % len(defaults) == unclipped else float(call["clip"] or 0.0)
        found.append(_activation(function, alpha, beta, bound))
    return found


def _activation(
    function: Callable[[Array, float, float], Any], alpha: float, beta: float, clip: float
) -> Activation:
    """Returns `function` of x, which is first clipped to [-clip, clip] unless clip is 0."""
    return lambda x: function(np.clip(x, -clip, clip) if clip else x, alpha, beta)


Cell = Callable[[Array, tuple[Array, ...]], tuple[Array, ...]]


def _unroll(
    call: Call,
    x: Array,
    r: Array,
    lengths: Array | None,
    initial: list[Array | None],
    cell_of: Callable[[int], Cell],
) -> tuple[Array, ...]:
    """Runs the cells of D directions over the steps of x, from states (D, B, H) or zeros. Returns Y
    and the final states.

    Rows beyond their length give 0 and keep their state. With layout 1, the batch axis of x, of the
    states and of the results comes first.
    """
    batch_first = bool(call["layout"])
    x = x.transpose(1, 0, 2) if batch_first else x
    steps, batch = x.shape[:2]
    directions, hidden = r.shape[0], r.shape[2]
    given = [None if s is None else s.transpose(1, 0, 2) if batch_first else s for s in initial]
    states = [np.zeros((directions, batch, hidden)) if s is None else s for s in given]
    reverse = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[
        (call["direction"] or "forward").lower()
    ]
    limit = np.full(batch, steps) if lengths is None else np.asarray(lengths).astype(np.int64)
    y = np.zeros((steps, directions, batch, hidden))
    finals: list[list[Array]] = [[] for _ in states]
    rows = np.arange(batch)
    for direction, backwards in enumerate(reverse):
        cell, state = cell_of(direction), tuple(s[direction] for s in states)
        for step in range(steps):
            # each row runs backwards from its own end
            position = np.where(backwards, limit - 1 - step, step)
            active = (step < limit)[:, None]
            new = cell(x[np.maximum(position, 0), rows], state)
            state = tuple(np.where(active, n, s) for n, s in zip(new, state, strict=True))
            chosen = rows[active[:, 0]]
            y[position[chosen], direction, chosen] = state[0][chosen]
        for column, value in zip(finals, state, strict=True):
            column.append(value)
    stacked = tuple(np.stack(column) for column in finals)
    if batch_first:
        return (y.transpose(2, 0, 1, 3), *(s.transpose(1, 0, 2) for s in stacked))
    return (y, *stacked)


def _biases(b: Array | None, w: Array) -> tuple[Array, Array]:
    """Returns the biases (of the input, of the recurrence), each (D, rows of W)."""
    directions, width = w.shape[:2]
    full = np.zeros((directions, 2 * width)) if b is None else b
    return full[:, :width], full[:, width:]


@kernel("RNN", why="opset")
def rnn(
    call: Call,
    x: Array,
    w: Array,
    r: Array,
    b: Array | None = None,
    lengths: Array | None = None,
    h0: Array | None = None,
) -> tuple[Array, ...]:
    wb, rb = _biases(b, w)
    functions = _activations(call, ["Tanh"], len(r))

    def cell_of(d: int) -> Cell:
        return lambda xt, s: (functions[d](xt @ w[d].T + s[0] @ r[d].T + wb[d] + rb[d]),)

    return _unroll(call, x, r, lengths, [h0], cell_of)


@kernel("GRU", why="wrong")
def gru(
    call: Call,
    x: Array,
    w: Array,
    r: Array,
    b: Array | None = None,
    lengths: Array | None = None,
    h0: Array | None = None,
) -> tuple[Array, ...]:
    """Gates in the order z, r, h."""
    wb, rb = _biases(b, w)
    functions = _activations(call, ["Sigmoid", "Tanh"], len(r))

    def cell_of(d: int) -> Cell:
        f, g = functions[2 * d : 2 * d + 2]
        (wz, wr, wh), (rz, rr, rh), (bz, br, bh), (cz, cr, ch) = (
            np.split(v[d], 3) for v in (w, r, wb, rb)
        )

        def cell(xt: Array, s: tuple[Array, ...]) -> tuple[Array, ...]:
            h = s[0]
            z = f(xt @ wz.T + h @ rz.T + bz + cz)
            reset = f(xt @ wr.T + h @ rr.T + br + cr)
            inner = (
                reset * (h @ rh.T + ch) if call["linear_before_reset"] else (reset * h) @ rh.T + ch
            )
            return ((1 - z) * g(xt @ wh.T + inner + bh) + z * h,)

        return cell

    return _unroll(call, x, r, lengths, [h0], cell_of)


@kernel("LSTM", why="wrong")
def lstm(call: Call, x: Array, w: Array, r: Array, *rest: Any) -> tuple[Array, ...]:
    """Gates in the order i, o, f, c; peepholes in the order i, o, f."""
    b, lengths, h0, c0, p = rest + (None,) * (5 - len(rest))
    wb, rb = _biases(b, w)
    # onnxruntime clips the inputs of the gates, not the output of the cell
    functions = _activations(call, ["Sigmoid", "Tanh", "Tanh"], len(r), unclipped=2)
    peep = np.zeros((len(r), 3 * r.shape[2])) if p is None else p

    def cell_of(d: int) -> Cell:
        f, g, out = functions[3 * d : 3 * d + 3]
        pi, po, pf = np.split(peep[d], 3)

        def cell(xt: Array, s: tuple[Array, ...]) -> tuple[Array, ...]:
            h, c = s
            gi, go, gf, gc = np.split(xt @ w[d].T + h @ r[d].T + wb[d] + rb[d], 4, axis=1)
            enter = f(gi + pi * c)
            keep = 1 - enter if call["input_forget"] else f(gf + pf * c)
            new = keep * c + enter * g(gc)
            return f(go + po * new) * out(new), new

        return cell

    return _unroll(call, x, r, lengths, [h0, c0], cell_of)
