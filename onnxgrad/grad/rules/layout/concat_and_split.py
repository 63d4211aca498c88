"""Concat and Split, each the other's adjoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnxgrad.grad.registry import vjp, vjp_all
from onnxgrad.grad.rules._common import size_along
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var


def _concat(g: Var, y: Var, xs: Sequence[Var], axis: int, wanted: Sequence[bool]) -> list[Any]:
    """One Split; a single operand asked for is one Slice."""
    sizes = [None if v.shape is None else v.shape[axis] for v in xs]
    if len(xs) == 1:
        return [g]
    if all(isinstance(d, int) for d in sizes):
        if sum(wanted) == 1:
            i = list(wanted).index(True)
            start = sum(d for d in sizes[:i] if isinstance(d, int))
            size = sizes[i]
            part = op.Slice(g, [start], [start + (size if isinstance(size, int) else 0)], [axis])
            return [part if k == i else None for k in range(len(xs))]
        lengths: Any = [d for d in sizes if isinstance(d, int)]
    else:
        lengths = op.Concat(*(size_along(v, axis) for v in xs), axis=0)
    return list(op.Split(g, lengths, axis=axis, outputs=len(xs)))


vjp_all("Concat", _concat)


vjp("Split", lambda g, y, x, axis: g[0] if len(g) == 1 else op.Concat(*g, axis=axis), fill=True)
