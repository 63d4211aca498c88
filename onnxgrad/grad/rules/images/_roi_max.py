"""The pixel that won the maximum of each pooled bin."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from onnxgrad.grad.rules._common import size_along, where
from onnxgrad.grad.rules.images._sampling import product, reshaped
from onnxgrad.grad.rules.indexing._scatter import scatter_elements, zeros
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var

_LOWEST = -3.0e38  # what no pixel lies below; -inf would meet 0 * inf in a second derivative


@dataclass(frozen=True)
class Candidates:
    """K candidates for each of the P bins of R regions; images (N, C, H, W) as rows of channels.

    `pixels` (R, P, K) counts rows, `read` (R, P, K, C) is what stands there, `first` (R, P, C) the
    winner's number.
    """

    sizes: tuple[Any, ...]
    pixels: Var
    weights: Var | None
    read: Var
    first: Var

    @staticmethod
    def among(x: Var, pixels: Var, taken: Var, weights: Var | None) -> Candidates:
        """The largest of x times `weights` (None: of x) where `taken` is not 0; the first of
        equal ones.
        """
        n, c, h, w = sizes = tuple(size_along(x, i) for i in range(4))
        rows = reshaped(op.Transpose(x, perm=[0, 2, 3, 1]), [product([n, h, w]), c])
        read = op.Gather(rows, pixels, axis=0)
        values = read if weights is None else read * op.Unsqueeze(weights, [3])
        masked = where(op.Greater(op.Unsqueeze(taken, [3]), 0.0), values, _LOWEST)
        return Candidates(sizes, pixels, weights, read, op.ArgMax(masked, axis=2, keepdims=0))

    def of(self, v: Var | None) -> Any:
        """What of `v` (R, P, K) belongs to the winners, (R, P, C); 1 for None."""
        return 1.0 if v is None else op.GatherElements(v, self.first, axis=2)

    @cached_property
    def pixel(self) -> Var:
        """The winning pixels' values, (R, P, C)."""
        return op.Squeeze(op.GatherElements(self.read, op.Unsqueeze(self.first, [2]), axis=2), [2])

    def columns(self, g: Var) -> Var:
        """An adjoint (R, C, bins, bins) as (R, P, C)."""
        flat = reshaped(
            g, [size_along(g, 0), self.sizes[1], product([size_along(g, 2), size_along(g, 3)])]
        )
        return op.Transpose(flat, perm=[0, 2, 1])

    def spread(self, share: Var) -> Var:
        """(R, P, C) added into the winning pixels: (N, C, H, W)."""
        n, c, h, w = self.sizes
        places = op.GatherElements(self.pixels, self.first, axis=2)
        empty = zeros(op.Concat(product([n, h, w]), c, axis=0), share)
        flat = [np.array([-1], np.int64), c]
        added = scatter_elements(
            empty,
            op.Reshape(places, op.Concat(*flat, axis=0)),
            op.Reshape(share, op.Concat(*flat, axis=0)),
            axis=0,
            reduction="add",
        )
        return op.Transpose(reshaped(added, [n, h, w, c]), perm=[0, 3, 1, 2])
