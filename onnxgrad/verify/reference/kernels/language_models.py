"""MoE, LinearAttention and CausalConvWithState of onnxruntime (com.microsoft), as its CPU kernels
compute them.
"""

from __future__ import annotations

import numpy as np

from onnxgrad.verify.reference.kernels.registry import Array, Call, Unsupported, kernel

_MS = "com.microsoft"


@kernel("MoE", domain=_MS, why="missing")
def moe(
    call: Call,
    x: Array,
    router: Array,
    w1: Array,
    b1: Array | None,
    w2: Array,
    b2: Array | None = None,
    *third: Array | None,
) -> Array:
    """x (T, H) or (.., T', H), router (T, E), w1 (E, F or 2 F, H), w2 (E, H, F): each token visits
    its k likeliest experts, the later one of equals.
    """
    if call["use_sparse_mixer"] or any(v is not None for v in third):
        raise Unsupported("MoE with a third product or a sparse mixer")
    rows, y = x.reshape(-1, x.shape[-1]), np.zeros((len(router), x.shape[-1]))
    for t, logits in enumerate(router):
        e = np.exp(logits - logits.max())
        likely = e / e.sum()
        chosen = sorted(range(len(likely)), key=lambda i: (likely[i], i))[-int(call["k"] or 1) :]
        total = likely[chosen].sum() if call["normalize_routing_weights"] else 1.0
        for i in chosen:
            hidden = w1[i] @ rows[t] + (0.0 if b1 is None else b1[i])
            result = w2[i] @ _activated(call, hidden) + (0.0 if b2 is None else b2[i])
            y[t] += likely[i] / total * result
    return y.reshape(x.shape)


def _sigmoid(v: Array) -> Array:
    return np.asarray(0.5 * (1 + np.tanh(v / 2)))


def _activated(call: Call, v: Array) -> Array:
    kind = call["activation_type"] or "relu"
    if (
        kind == "swiglu"
        and call["swiglu_fusion"] == 1
        and not call["swiglu_limit_after_activation"]
    ):
        gate, value = v[::2], v[1::2]
        if call["swiglu_limit"] is not None:
            limit = call["swiglu_limit"]
            gate, value = np.minimum(gate, limit), np.clip(value, -limit, limit)
        alpha = 1.0 if call["activation_alpha"] is None else call["activation_alpha"]
        return gate * _sigmoid(alpha * gate) * (value + (call["activation_beta"] or 0.0))
    if kind == "gelu":
        return v * _sigmoid(2 * np.sqrt(2 / np.pi) * (v + 0.044715 * v**3))
    if kind not in ("relu", "silu", "identity"):
        raise Unsupported(f"MoE with the activation {kind}")
    return {"relu": np.maximum(v, 0), "silu": v * _sigmoid(v), "identity": v}[kind]


@kernel("LinearAttention", domain=_MS, why="missing")
def linear_attention(
    call: Call,
    query: Array,
    key: Array,
    value: Array,
    past: Array | None = None,
    decay: Array | None = None,
    beta: Array | None = None,
) -> tuple[Array, Array]:
    """query (B, T, N D), key (B, T, heads D), value (B, T, M V), past (B, M, D, V), decay (B, T, M
    or M D), beta (B, T, M or 1). Runs batch, head and step one by one.
    """
    if call["state_window"]:
        raise Unsupported("LinearAttention with a window of states")
    n, m, rule = call["q_num_heads"], call["kv_num_heads"], call["update_rule"] or "gated_delta"
    batch, steps, _ = query.shape
    q = query.reshape(batch, steps, n, -1)
    d = q.shape[-1]
    k, v = key.reshape(batch, steps, -1, d), value.reshape(batch, steps, m, -1)
    state = np.zeros((batch, m, d, v.shape[-1])) if past is None else past.copy()
    y = np.zeros((batch, steps, max(n, m), v.shape[-1]))
    for b, head, t in np.ndindex(batch, m, steps):
        row, s = k[b, t, head * k.shape[2] // m], state[b, head]
        if "gated" in rule and decay is not None:
            s = s * np.exp(decay[b, t].reshape(m, -1)[head])[:, None]
        added = v[b, t, head]
        if "delta" in rule and beta is not None:
            added = beta[b, t][head if beta.shape[-1] == m else 0] * (added - row @ s)
        s = state[b, head] = s + np.outer(row, added)
        readers = range(head * n // m, (head + 1) * n // m) if n >= m else [head * n // m]
        for reader in readers:
            at = head if n < m else reader
            y[b, t, at] = q[b, t, reader] @ s * (call["scale"] or d**-0.5)
    return y.reshape(batch, steps, -1), state


@kernel("CausalConvWithState", domain=_MS, why="missing")
def causal_conv(
    call: Call, x: Array, w: Array, bias: Array | None = None, past: Array | None = None
) -> tuple[Array, Array]:
    """x (B, C, T) after past (B, C, W - 1), w (C, 1, W)."""
    odd = ("state_window", "channels_last", "state_length", "input_channels")
    if any(call[name] for name in odd) or (call["ndim"] or 1) > 1 or (call["dilation"] or 1) > 1:
        raise Unsupported("CausalConvWithState of other layouts or dilated")
    width = w.shape[2]
    past = np.zeros((*x.shape[:2], width - 1)) if past is None else past
    whole = np.concatenate([past, x], axis=2)
    windows = np.lib.stride_tricks.sliding_window_view(whole, width, axis=2)
    y = np.einsum("bctw,cw->bct", windows, w[:, 0]) + (0.0 if bias is None else bias[:, None])
    if call["activation"] in ("silu", "swish"):
        y = y * _sigmoid(y)
    return y, whole[..., whole.shape[2] - width + 1 :]
