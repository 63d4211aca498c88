"""Bodies of onnxruntime's LinearAttention and CausalConvWithState (com.microsoft), which compute
what its CPU kernels compute.

Shapes: B batch, T steps, M heads of states, N heads of queries, D and V the sizes of a head's keys
and values; C channels, W the length of a filter.
"""

from __future__ import annotations

import math
from typing import cast

import numpy as np

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.arithmetic import size_along
from onnxgrad.ir.emission.emit import emit_with_blocks, nested
from onnxgrad.ir.emission.fill_and_reshape import fill
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import Shape, TensorType, Type
from onnxgrad.ir.var import Var
from onnxgrad.laws.bodies.calls import Bodies, decline

_END = np.iinfo(np.int64).max


def _linear_attention(
    query: Var,
    key: Var,
    value: Var,
    past: Var | None,
    decay: Var | None,
    beta: Var | None,
    *,
    q_num_heads: int,
    kv_num_heads: int,
    scale: float = 0.0,
    update_rule: str = "gated_delta",
    binding: Binding,
) -> tuple[Var, Var]:
    """query (B, T, N D), key (B, T, M D) or fewer heads, value (B, T, M V), past (B, M, D, V),
    decay (B, T, M or M D), beta (B, T, M or 1). Returns (B, T, N V or M V) and the last state:

        state_t = e^decay_t state_(t-1) + k_t^T beta_t (v_t - k_t e^decay_t state_(t-1))
        y_t = scale q_t state_t

    Rules without "gated" have no decay, those without "delta" add k_t^T v_t.
    """
    decline(binding, "state_window", bool(binding.attr("state_window", 0)))
    lacks = ("gated" in update_rule and decay is None) or ("delta" in update_rule and beta is None)
    decline(binding, f"update_rule '{update_rule}' without its decay or beta", lacks)
    widths = [None if v.shape is None else v.shape[-1] for v in (query, key, value)]
    q_width, k_width, v_width = (n if isinstance(n, int) else 0 for n in widths)
    decline(binding, "heads of unknown size", not (q_width and k_width and v_width))
    d, v_size = q_width // q_num_heads, v_width // kv_num_heads
    groups = max(1, q_num_heads // kv_num_heads)
    q = op.Reshape(query, [0, 0, q_num_heads, d])
    q = op.Reshape(_repeated(q, kv_num_heads // q_num_heads), [0, 0, kv_num_heads, groups, d])
    k = op.Reshape(key, [0, 0, k_width // d, d])
    k = op.Unsqueeze(_repeated(k, kv_num_heads * d // k_width), [3])
    v = op.Reshape(value, [0, 0, kv_num_heads, 1, v_size])
    scans = [q * (scale or 1.0 / math.sqrt(d)), k, v]
    if "gated" in update_rule and decay is not None:
        scans.append(op.Unsqueeze(op.Exp(op.Reshape(decay, [0, 0, kv_num_heads, -1])), [4]))
    if "delta" in update_rule and beta is not None:
        scans.append(op.Unsqueeze(beta, [3, 4]))
    if past is None:
        batch = op.Shape(query, start=0, end=1)
        past = fill(op.Concat(batch, [kv_num_heads, d, v_size], axis=0), 0.0, query.dtype)
    y, last = _steps(past, scans, update_rule)
    return op.Reshape(y, [0, 0, kv_num_heads * groups * v_size]), last


def _repeated(v: Var, times: int) -> Var:
    """Repeats each head of (B, T, heads, size)."""
    heads = (v.shape or ())[2]
    if times <= 1 or not isinstance(heads, int):
        return v
    return op.Gather(v, np.repeat(np.arange(heads), times), axis=2)


def _steps(past: Var, scans: list[Var], rule: str) -> tuple[Var, Var]:
    """Returns the results (B, T, M, groups, V) of all steps and the last state."""
    with nested("linear_attention") as block:
        names = block.program.names
        state = block.add_input(
            names.fresh("state"), TensorType(past.dtype, past.shape or (None,) * 4)
        )
        q, k, v, *gates = (
            block.add_input(names.fresh("element"), TensorType(s.dtype, _without_time(s)))
            for s in scans
        )
        if "gated" in rule:
            state = state * gates.pop(0)
        added = gates.pop(0) * (v - k @ state) if "delta" in rule else v
        state = state + k.mT @ added
        y = q @ state
        for result in (state, y):
            block.add_output(result)
    steps = (scans[0].shape or (None, None))[1]
    shape = None if y.shape is None else (y.shape[0], steps, *y.shape[1:])
    types: list[Type | None] = [past.type, TensorType(past.dtype, shape)]
    last, stacked = emit_with_blocks(
        "Scan",
        [past, *scans],
        {"body": block},
        types,
        num_scan_inputs=len(scans),
        scan_input_axes=[1] * len(scans),
        scan_output_axes=[1],
    )
    return stacked, last


def _without_time(v: Var) -> Shape:
    batch, _, *rest = v.shape or (None,) * 5
    return (batch, *rest)


def _causal_conv(
    x: Var,
    w: Var,
    bias: Var | None,
    past: Var | None,
    *,
    activation: str = "none",
    binding: Binding,
) -> tuple[Var, Var]:
    """x (B, C, T) after past (B, C, W - 1), w (C, 1, W)."""
    for name, plain in _PLAIN.items():
        decline(binding, name, binding.attr(name, plain) not in (plain, 0))
    channels = (w.shape or (None,))[0]
    decline(binding, "an unknown number of channels", not isinstance(channels, int))
    before = size_along(w, 2) - 1
    if past is None:
        past = fill(op.Concat(op.Shape(x, end=2), before, axis=0), 0.0, x.dtype)
    whole = op.Concat(past, x, axis=2)
    y = op.Conv(whole, w, bias, group=cast(int, channels))
    if activation in ("silu", "swish"):
        y = y * op.Sigmoid(y)
    # from the front: a filter of length 1 keeps nothing
    kept = op.Slice(whole, op.Shape(x, start=2, end=3), [_END], [2])
    return y, kept


# attributes of CausalConvWithState, and the value that changes nothing
_PLAIN = {
    "ndim": 1, "dilation": 1, "channels_last": 0, "state_channels_last": -1, "state_window": 0,
    "state_length": 0, "state_update_capacity": 0, "input_channel_offset": 0, "input_channels": 0,
}  # fmt: skip

BODIES: Bodies = {
    "LinearAttention": (_linear_attention, "without state_window"),
    "CausalConvWithState": (
        _causal_conv,
        "one spatial axis, channels first, without dilation",
    ),
}
