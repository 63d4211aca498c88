"""The weighted sum of the targets along a line through the feeds: its central differences and
its kinks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from onnxgrad.grad.checking.vectors import Flat, Mask, shaped
from onnxgrad.verify.reference.in_child import Float64

STEP = 1e-5
# steps tried, each a fraction of the one before, until two of them agree to a part of the tolerance
SHRINK = (1.0, 1 / 16, 1 / 256, 1 / 4096)


class Line:
    """The weighted sum of the targets along a line through the feeds."""

    def __init__(
        self, reference: Float64, feeds: Mapping[str, Any], delta: str, direction: Flat,
        weights: Mapping[str, Flat],
        size: float,
    ) -> None:  # fmt: skip
        self.reference, self.feeds, self.delta = reference, feeds, delta
        self.direction, self.weights, self.size = direction, weights, size

    def central(self, h: float) -> float:
        """(f(h) - f(-h)) / 2h."""
        plus, minus = (self._run(s * h) for s in (1.0, -1.0))
        moved = sum(
            float(np.sum(np.float64(w) * (plus[t] - minus[t]))) for t, w in self.weights.items()
        )
        return moved / (2 * h)

    def kink(self, h: float) -> float:
        """By how much the slopes on both sides differ, each extrapolated from two steps."""
        runs = {k: self._run(k * h) for k in (-2, -1, 0, 1, 2)}

        def slope(k: int) -> float:
            rise = sum(
                float(np.sum(np.float64(w) * (runs[k][t] - runs[0][t])))
                for t, w in self.weights.items()
            )
            return rise / (k * h)

        return abs((2 * slope(1) - slope(2)) - (2 * slope(-1) - slope(-2)))

    def has_kink(self, least: float) -> bool:
        """Whether the slopes differ by more than `least` at every step: one nearby goes away with
        small steps, what rounding does with large ones.
        """
        return all(not self.kink(STEP * max(1.0, self.size) * part) <= least for part in SHRINK)

    def moving(self, elements: Mask) -> Line:
        """The line along which only these elements move."""
        direction = np.where(elements, self.direction, 0.0)
        return Line(self.reference, self.feeds, self.delta, direction, self.weights, self.size)

    def _run(self, h: float) -> Mapping[str, Any]:
        moved = {**self.feeds, self.delta: shaped(h * self.direction, self.feeds[self.delta])}
        return self.reference.run(moved, outputs=list(self.weights))
