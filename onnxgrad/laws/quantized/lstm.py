"""The law of DynamicQuantizeLSTM: a Scan that quantizes the input once and the state at
every step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from onnx import TensorProto

from onnxgrad.ir.emission.emit import constant, emit_with_blocks, emitting, nested_block
from onnxgrad.ir.emission.emitter import emitter
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import TensorType
from onnxgrad.ir.var import Var
from onnxgrad.laws.quantized.calls import Quantized, QuantizedCall, dynamically
from onnxgrad.laws.quantized.forms import Shortfall
from onnxgrad.rewrite.trace import decline_if

OPERANDS = (
    "x", "w", "r", "b", "sequence_lens", "initial_h", "initial_c", "p",
    "w_scale", "w_zero", "r_scale", "r_zero",
)  # fmt: skip
OPTIONAL = ("b", "sequence_lens", "initial_h", "initial_c", "p")
_PLAIN = ["sigmoid", "tanh", "tanh"]
# measured with onnxruntime 1.32 at 1, 2 and 4 threads, 60 sizes and kinds: 0.14 of a quantum of the
# state on one thread, 0.7 on several (0.4 but for the cell); LSTM on floats is off by 2.4
_THREADS = Shortfall(
    None,
    "onnxruntime quantises the state with one scale for the rows of each thread, this form with "
    "one scale for all rows, as onnxruntime does on one thread; on several threads, results may "
    "differ by less than a quantum of the state",
)


class _Direction(NamedTuple):
    """The float weights and the input of one direction of the operator."""

    call: QuantizedCall
    gates: Var  # of the input and the biases, (T, N, 4H)
    r: Var  # (H, 4H)
    size: int  # H
    peepholes: Sequence[Var]  # those of i, o, f; or none
    reverse: bool


def dynamic_quantize_lstm(call: QuantizedCall, *operands: Any) -> list[Any]:
    """z = quantize(x) W + quantize(h) R + b at each step; c' = f c + i c~, h' = o tanh(c'), where
    i, o, f = sigmoid(z), c~ = tanh(z)
    """
    x, w, r, b, lengths, initial_h, initial_c, p, w_scale, w_zero, r_scale, r_zero = operands
    _check(call, x, lengths)
    both = call.attr("direction", "forward")
    reverses = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[both]
    found = dynamically(call, x)
    floats = call.form.dequantize(*found)
    size = r.shape[1]
    decline_if(not isinstance(size, int), "the size of its state is not known")
    results: list[tuple[Var, Var, Var]] = []
    for d, reverse in enumerate(reverses):
        name = "" if len(reverses) == 1 else f"_{d}"
        gates = op.MatMul(floats, _weight(call, Quantized(w, w_scale, w_zero), d, name))
        if b is not None:
            gates = gates + _sum_of_biases(_part(b, d), size)
        peepholes = () if p is None else op.Split(_part(p, d), [size] * 3, axis=0, outputs=3)
        weights = _weight(call, Quantized(r, r_scale, r_zero), d, name)
        one = _Direction(call, gates, weights, size, peepholes, reverse)
        states = [_state(v, d, x, size) for v in (initial_h, initial_c)]
        results.append(_steps(one, states))
    if (x.shape or (None,) * 3)[1] != 1:
        call.note(_THREADS)
    y, h, c = zip(*results)
    axes = (1, 0, 0)
    return [
        op.Concat(*(op.Unsqueeze(v, [axis]) for v in values), axis=axis)
        if len(values) > 1
        else op.Unsqueeze(values[0], [axis])
        for values, axis in zip((y, h, c), axes)
    ]


def _check(call: QuantizedCall, x: Var, lengths: Var | None) -> None:
    decline_if(lengths is not None, "sequence_lens: the rows end at different steps")
    decline_if(x.rank != 3 or x.dtype != TensorProto.FLOAT, "x is not float32 of three axes")
    decline_if(bool(call.attr("input_forget", 0)), "input_forget is 1")
    decline_if(bool(call.attr("clip", 0.0)), "clip bounds the gates")
    given = [str(a).lower() for a in call.attr("activations") or ()]
    decline_if(given != _PLAIN * (len(given) // 3), "other activations than those of an LSTM")


def _part(v: Var, d: int) -> Var:
    """Returns the slice of one direction."""
    if v.const is not None:
        return constant(np.asarray(v.const)[d], name=v.name)
    return op.Squeeze(op.Slice(v, [d], [d + 1], [0]), [0])


def _weight(call: QuantizedCall, w: Quantized, d: int, name: str) -> Var:
    """Returns W or R of one direction as floats, of shape (rows, 4H). Raises Decline if it is not
    constant.
    """

    def part(v: Var) -> Var:
        decline_if(v.const is None, f"'{v.name}' is not constant")
        return constant(np.asarray(v.const)[d], name=f"{v.name.removesuffix('_quantized')}{name}")

    zero = None if w.zero is None else part(w.zero)
    return call.form.dequantize(part(w.value), part(w.scale), zero, -1)


def _sum_of_biases(b: Var, size: int) -> Var:
    ends = [4 * size, 8 * size]
    return op.Slice(b, [0], ends[:1], [0]) + op.Slice(b, ends[:1], ends[1:], [0])


def _state(given: Var | None, d: int, x: Var, size: int) -> Var:
    """Returns the state before the first step, of shape (N, H)."""
    if given is not None:
        return _part(given, d)
    batch = (x.shape or (None,) * 3)[1]
    if isinstance(batch, int):
        return constant(np.zeros((batch, size), np.float32))
    shape = op.Concat(op.Slice(op.Shape(x), [1], [2], [0]), [size], axis=0)
    return op.Expand(constant(np.zeros((1, 1), np.float32)), shape)


def _steps(one: _Direction, states: Sequence[Var]) -> tuple[Var, Var, Var]:
    """Returns the state h of every step, of shape (T, N, H), and the last h and c, of
    shape (N, H).
    """
    at, (steps, batch, _) = emitter(), one.gates.shape or (None, None, None)
    size = one.size
    state = TensorType(TensorProto.FLOAT, (batch, size))
    block = nested_block("lstm")
    with emitting(block, share=True, sources=at.sources, made_by=at.made_by):
        names = block.program.names
        h, c = (block.add_input(names.fresh(n), state) for n in ("state", "cell"))
        element = TensorType(TensorProto.FLOAT, (batch, 4 * size))
        z = block.add_input(names.fresh("gates"), element)
        rounded = one.call.form.dequantize(*dynamically(one.call, h))
        i, o, f, new = op.Split(z + rounded @ one.r, [size] * 4, axis=1, outputs=4)
        if one.peepholes:
            i, f = i + one.peepholes[0] * c, f + one.peepholes[2] * c
        after = op.Sigmoid(f) * c + op.Sigmoid(i) * op.Tanh(new)
        if one.peepholes:
            o = o + one.peepholes[1] * after
        out = op.Sigmoid(o) * op.Tanh(after)
        for v in (out, after, op.Identity(out)):
            block.add_output(v)
    back = [1] if one.reverse else None
    types = [state, state, TensorType(TensorProto.FLOAT, (steps, batch, size))]
    last, cell, series = emit_with_blocks(
        "Scan", [*states, one.gates], {"body": block}, types, num_scan_inputs=1,
        scan_input_directions=back, scan_output_directions=back,
    )  # fmt: skip
    return series, last, cell
