"""GridSample, whose weights onnx.reference rounds to float32 and whose loops run in Python."""

from __future__ import annotations

import itertools

import numpy as np

from onnxgrad.verify.kernels.registry import Array, Call, kernel

_CUBIC = -0.75


@kernel("GridSample")
def grid_sample(call: Call, x: Array, grid: Array) -> Array:
    """x (N, C, *S), grid (N, *O, rank) with the last spatial axis first -> (N, C, *O)."""
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(call["mode"] or "linear", call["mode"] or "linear")
    padding = call["padding_mode"] or "zeros"
    aligned = bool(call["align_corners"])
    sizes = x.shape[2:]
    # per spatial axis: positions and weights, (taps, N, *O)
    spots: list[tuple[Array, Array]] = []
    for axis, size in enumerate(sizes):
        g = grid[..., len(sizes) - 1 - axis]
        position = (g + 1) / 2 * (size - 1) if aligned else ((g + 1) * size - 1) / 2
        if mode != "cubic":
            position = _inside(position, size, padding, aligned)
        spots.append(_taps(position, mode))
    batch = np.arange(x.shape[0]).reshape(-1, *[1] * (grid.ndim - 2))
    y = np.zeros((x.shape[0], *grid.shape[1:-1], x.shape[1]))
    for choice in itertools.product(*(range(len(p)) for p, _ in spots)):
        weight = np.ones(grid.shape[:-1])
        index = []
        for axis, (size, tap) in enumerate(zip(sizes, choice, strict=True)):
            positions, weights = spots[axis]
            where = positions[tap]
            weight = weight * weights[tap]
            if padding == "zeros":
                weight = weight * ((where >= 0) & (where < size))
                where = np.clip(where, 0, size - 1)
            else:
                where = np.rint(_inside(where.astype(np.float64), size, padding, aligned)).astype(np.int64)
            index.append(where)
        y += weight[..., None] * x[(batch, slice(None), *index)]
    return np.moveaxis(y, -1, 1)


def _inside(position: Array, size: int, padding: str, aligned: bool) -> Array:
    """Border clamps, reflection folds back at the edges (at the corner pixels' centres when aligned); zeros leaves
    positions alone.
    """
    if padding == "zeros":
        return position
    if padding == "reflection":
        low, high = (0.0, size - 1.0) if aligned else (-0.5, size - 0.5)
        span = high - low
        if span == 0:
            return np.zeros_like(position)
        folded = np.mod(position - low, 2 * span)
        position = low + np.where(folded > span, 2 * span - folded, folded)
    return np.clip(position, 0, size - 1)


def _taps(position: Array, mode: str) -> tuple[Array, Array]:
    """(neighbours, their weights), each (taps, *position.shape)."""
    if mode == "nearest":
        return np.rint(position).astype(np.int64)[None], np.ones((1, *position.shape))
    low = np.floor(position)
    t = position - low
    base = np.where(np.isfinite(low), low, -1e9).astype(np.int64)
    if mode == "linear":
        return np.stack([base, base + 1]), np.stack([1 - t, t])
    a = _CUBIC
    far, near = t + 1, 1 - t
    weights = [
        ((a * far - 5 * a) * far + 8 * a) * far - 4 * a,
        ((a + 2) * t - (a + 3)) * t * t + 1,
        ((a + 2) * near - (a + 3)) * near * near + 1,
        ((a * (near + 1) - 5 * a) * (near + 1) + 8 * a) * (near + 1) - 4 * a,
    ]
    return np.stack([base - 1, base, base + 1, base + 2]), np.stack(weights)
