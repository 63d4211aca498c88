"""A scale known only at run time: the weight is scaled each time the model runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from onnxgrad.ir.ops import op
from onnxgrad.ir.types import numpy_dtype
from onnxgrad.ir.var import Var
from onnxgrad.laws.scales.scale import Scale


@dataclass(frozen=True, kw_only=True)
class RunTimeScale(Scale):
    """`vector` (C,) or (); nothing is known of its values, so its factors are NaN: no sign, no
    magnitude, not equal.
    """

    vector: Var

    @staticmethod
    def of(s: Var, channels: int, axis: int) -> RunTimeScale:
        """One factor for each of so many channels along `axis`, `s` of any rank."""
        vector = s if s.rank == 1 else op.Reshape(s, [-1])
        return RunTimeScale(_unknown(channels, s.dtype), axis, vector=vector)

    @staticmethod
    def one(s: Var) -> RunTimeScale:
        """One factor for all."""
        vector = s if s.rank == 0 else op.Squeeze(s, list(range(s.rank or 0)))
        return RunTimeScale(np.full((), np.nan, numpy_dtype(s.dtype)), None, vector=vector)

    def parts(self, sizes: Sequence[int]) -> list[Scale]:
        """By a Split."""
        pieces = op.Split(self.vector, list(sizes), axis=0, outputs=len(sizes))
        return [self._like(piece, n) for piece, n in zip(pieces, sizes, strict=True)]

    def among(self, index: int, sizes: Sequence[int]) -> Scale:
        """By a Concat with ones."""
        ones = [np.ones(n, self.factors.dtype) for n in sizes]
        whole = op.Concat(*ones[:index], self.vector, *ones[index + 1 :], axis=0)
        return self._like(whole, sum(sizes))

    def lined_up(self, behind: int) -> Var:
        """By a Reshape."""
        return (
            self.vector
            if self.axis is None or not behind
            else op.Reshape(self.vector, [-1, *[1] * behind])
        )

    def grouped(self, groups: int, rows: int, behind: int) -> Var:
        """By an Expand."""
        n = self.factors.size // groups
        table = op.Expand(op.Reshape(self.vector, [groups, 1, n]), [groups, rows, n])
        return op.Reshape(table, [groups * rows, n, *[1] * behind])

    @property
    def loses_digits(self) -> bool:
        """A factor may be zero."""
        return True

    def _like(self, vector: Var, channels: int) -> Scale:
        return replace(self, factors=_unknown(channels, vector.dtype), vector=vector)


def _unknown(channels: int, dtype: int) -> np.ndarray:
    return np.full(channels, np.nan, numpy_dtype(dtype))
