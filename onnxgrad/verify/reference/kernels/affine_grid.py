"""AffineGrid in float64. The schema's own body fails for a batch of one and for an axis of size
one.
"""

from __future__ import annotations

import numpy as np

from onnxgrad.verify.reference.kernels.registry import Array, Call, kernel


def _centres(n: int, align_corners: int) -> Array:
    """n points over [-1, 1]: the corners, or the middles of n equal cells. One aligned point lies
    at 1, as in onnxruntime."""
    if align_corners:
        return np.linspace(-1, 1, n) if n > 1 else np.ones(n)
    return (2 * np.arange(n) + 1) / n - 1


@kernel("AffineGrid", why="wrong")
def affine_grid(call: Call, theta: Array, size: Array) -> Array:
    """grid[n, p] = theta[n] (p, 1); p has its coordinates in the order x, y, z, the grid its
    axes in the other.
    """
    spatial = [int(d) for d in size[2:]]
    axes = np.meshgrid(*(_centres(n, call["align_corners"]) for n in spatial), indexing="ij")
    points = np.stack([*reversed(axes), np.ones(spatial)], axis=-1).astype(theta.dtype)
    grid: Array = np.einsum("nij,...j->n...i", theta, points)
    return grid
