"""RNN, GRU and LSTM with everything their texts allow; onnx.reference knows neither two directions nor activations,
lengths or clip.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from onnxgrad.verify.reference.kernels.elementwise import sigmoid_of
from onnxgrad.verify.reference.kernels.registry import Array, Call, Unsupported, kernel

Activation = Callable[[Array], Array]

# name -> (function of x, alpha, beta; default alpha; default beta)
_ACTIVATIONS: dict[str, tuple[Callable[[Array, float, float], Any], float, float]] = {
    "sigmoid": (lambda x, a, b: sigmoid_of(x), 0.0, 0.0),
    "tanh": (lambda x, a, b: np.tanh(x), 0.0, 0.0),
    "relu": (lambda x, a, b: np.maximum(x, 0.0), 0.0, 0.0),
    "affine": (lambda x, a, b: a * x + b, 1.0, 0.0),
    "leakyrelu": (lambda x, a, b: np.where(x >= 0, x, a * x), 0.01, 0.0),
    "thresholdedrelu": (lambda x, a, b: np.where(x >= a, x, 0.0), 1.0, 0.0),
    "scaledtanh": (lambda x, a, b: a * np.tanh(b * x), 1.0, 1.0),
    "hardsigmoid": (lambda x, a, b: np.clip(a * x + b, 0.0, 1.0), 0.2, 0.5),
    "elu": (lambda x, a, b: np.where(x >= 0, x, a * np.expm1(np.minimum(x, 0.0))), 1.0, 0.0),
    "softsign": (lambda x, a, b: x / (1 + np.abs(x)), 0.0, 0.0),
    "softplus": (lambda x, a, b: np.logaddexp(0.0, x), 0.0, 0.0),
}
# which of alpha and beta an activation reads from the lists
_TAKES = {
    "affine": (True, True),
    "leakyrelu": (True, False),
    "thresholdedrelu": (True, False),
    "scaledtanh": (True, True),
    "hardsigmoid": (True, True),
    "elu": (True, False),
}


def _activations(call: Call, defaults: list[str], directions: int, unclipped: int = -1) -> list[Activation]:
    """One function per gate and direction; alphas and betas are consumed in order by those that take them.

    `unclipped`: the position among a direction's functions that `clip` does not reach.
    """
    names = [n.lower() for n in (call["activations"] or defaults * directions)]
    alphas, betas = iter(call["activation_alpha"] or ()), iter(call["activation_beta"] or ())
    found: list[Activation] = []
    for number, name in enumerate(names):
        if name not in _ACTIVATIONS:
            raise Unsupported(f"{call.op_type} with the activation {name!r}")
        function, alpha, beta = _ACTIVATIONS[name]
        takes_alpha, takes_beta = _TAKES.get(name, (False, False))
        alpha = next(alphas, alpha) if takes_alpha else alpha
        beta = next(betas, beta) if takes_beta else beta
        bound = 0.0 if number % len(defaults) == unclipped else float(call["clip"] or 0.0)
        found.append(_activation(function, alpha, beta, bound))
    return found


def _activation(function: Callable[[Array, float, float], Any], alpha: float, beta: float, clip: float) -> Activation:
    """`function` of x, clipped to [-clip, clip] before where clip is not 0."""
    return lambda x: function(np.clip(x, -clip, clip) if clip else x, alpha, beta)


Cell = Callable[[Array, tuple[Array, ...]], tuple[Array, ...]]


def _unroll(call: Call, x: Array, lengths: Array | None, states: list[Array], cells: list[Cell]) -> tuple[Array, ...]:
    """x (T, B, I), states (D, B, H) each -> (T, D, B, H) and the final states; rows beyond their length give 0 and keep
    their state.
    """
    steps, batch = x.shape[:2]
    reverse = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[
        (call["direction"] or "forward").lower()
    ]
    limit = np.full(batch, steps) if lengths is None else np.asarray(lengths).astype(np.int64)
    hidden = states[0].shape[-1]
    y = np.zeros((steps, len(reverse), batch, hidden))
    finals: list[list[Array]] = [[] for _ in states]
    rows = np.arange(batch)
    for direction, (backwards, cell) in enumerate(zip(reverse, cells, strict=True)):
        state = tuple(s[direction] for s in states)
        for step in range(steps):
            position = np.where(backwards, limit - 1 - step, step)  # each row runs backwards from its own end
            active = (step < limit)[:, None]
            new = cell(x[np.maximum(position, 0), rows], state)
            state = tuple(np.where(active, n, s) for n, s in zip(new, state, strict=True))
            chosen = rows[active[:, 0]]
            y[position[chosen], direction, chosen] = state[0][chosen]
        for column, value in zip(finals, state, strict=True):
            column.append(value)
    stacked = tuple(np.stack(column) for column in finals)
    if call["layout"]:
        return (y.transpose(2, 0, 1, 3), *(s.transpose(1, 0, 2) for s in stacked))
    return (y, *stacked)


def _prepare(call: Call, x: Array, r: Array, *initial: Array | None) -> tuple[Array, list[Array]]:
    """x as (T, B, I) and the initial states as (D, B, H)."""
    if call["layout"]:
        x = x.transpose(1, 0, 2)
    shape = (r.shape[0], x.shape[1], r.shape[2])
    return x, [np.zeros(shape) if s is None else (s.transpose(1, 0, 2) if call["layout"] else s) for s in initial]


def _biases(b: Array | None, directions: int, width: int) -> tuple[Array, Array]:
    """(of the input, of the recurrence), each (D, width)."""
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
    directions, hidden = r.shape[0], r.shape[2]
    x, states = _prepare(call, x, r, h0)
    wb, rb = _biases(b, directions, hidden)
    functions = _activations(call, ["Tanh"], directions)

    def make(d: int) -> Cell:
        return lambda xt, s: (functions[d](xt @ w[d].T + s[0] @ r[d].T + wb[d] + rb[d]),)

    return _unroll(call, x, lengths, states, [make(d) for d in range(directions)])


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
    directions, hidden = r.shape[0], r.shape[2]
    x, states = _prepare(call, x, r, h0)
    wb, rb = _biases(b, directions, 3 * hidden)
    functions = _activations(call, ["Sigmoid", "Tanh"], directions)

    def make(d: int) -> Cell:
        f, g = functions[2 * d : 2 * d + 2]
        wz, wr, wh = np.split(w[d], 3)
        rz, rr, rh = np.split(r[d], 3)
        bz, br, bh = np.split(wb[d], 3)
        cz, cr, ch = np.split(rb[d], 3)

        def cell(xt: Array, s: tuple[Array, ...]) -> tuple[Array, ...]:
            h = s[0]
            z = f(xt @ wz.T + h @ rz.T + bz + cz)
            reset = f(xt @ wr.T + h @ rr.T + br + cr)
            inner = reset * (h @ rh.T + ch) if call["linear_before_reset"] else (reset * h) @ rh.T + ch
            return ((1 - z) * g(xt @ wh.T + inner + bh) + z * h,)

        return cell

    return _unroll(call, x, lengths, states, [make(d) for d in range(directions)])


@kernel("LSTM", why="wrong")
def lstm(
    call: Call,
    x: Array,
    w: Array,
    r: Array,
    b: Array | None = None,
    lengths: Array | None = None,
    h0: Array | None = None,
    c0: Array | None = None,
    p: Array | None = None,
) -> tuple[Array, ...]:
    """Gates in the order i, o, f, c; peepholes in the order i, o, f."""
    directions, hidden = r.shape[0], r.shape[2]
    x, states = _prepare(call, x, r, h0, c0)
    wb, rb = _biases(b, directions, 4 * hidden)
    # onnxruntime clips what enters the gates, not what leaves the cell
    functions = _activations(call, ["Sigmoid", "Tanh", "Tanh"], directions, unclipped=2)
    peep = np.zeros((directions, 3 * hidden)) if p is None else p

    def make(d: int) -> Cell:
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

    return _unroll(call, x, lengths, states, [make(d) for d in range(directions)])
