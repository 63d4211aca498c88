"""Pad and Unique.

onnx.reference's Pad fails on negative pads, which crop; its Unique with one output sorts although
`sorted` is 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxgrad.verify.reference.kernels.registry import Array, Call, kernel

_MODES: dict[str, Any] = {
    "constant": "constant",
    "reflect": "reflect",
    "edge": "edge",
    "wrap": "wrap",
}


@kernel("Pad", why="wrong")
def pad(
    call: Call,
    x: Array,
    pads: Array | None = None,
    value: Array | None = None,
    axes: Array | None = None,
) -> Array:
    """Crop first, then pad. Pads and value are attributes before opset 11."""
    amounts = np.asarray(call["pads"] if pads is None else pads).tolist()
    over = list(range(x.ndim)) if axes is None else [int(a) % x.ndim for a in axes]
    widths = [(0, 0)] * x.ndim
    for i, axis in enumerate(over):
        widths[axis] = (amounts[i], amounts[i + len(over)])
    x = x[
        tuple(slice(max(-a, 0), n - max(-b, 0)) for n, (a, b) in zip(x.shape, widths, strict=True))
    ]
    grow = [(max(a, 0), max(b, 0)) for a, b in widths]
    mode = call["mode"] or "constant"
    if mode != "constant":
        return np.pad(x, grow, mode=_MODES[mode])
    fill = call["value"] if value is None and pads is None else value
    return np.pad(
        x, grow, constant_values=0 if fill is None else np.asarray(fill).reshape(()).astype(x.dtype)
    )


@kernel("Unique", why="wrong")
def unique(call: Call, x: Array) -> tuple[Array, ...]:
    """Values, first places, inverse, counts; in order of first places where `sorted` is 0."""
    axis = call["axis"]
    values, first, inverse, counts = np.unique(x, True, True, True, axis=axis)
    inverse = inverse.reshape(-1)
    if call["sorted"] == 0:
        order = np.argsort(first)
        values, first, counts = np.take(values, order, axis=axis or 0), first[order], counts[order]
        inverse = np.argsort(order)[inverse]
    return values, first.astype(np.int64), inverse.astype(np.int64), counts.astype(np.int64)
