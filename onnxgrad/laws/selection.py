"""Choosing elements: Gather of Gather, Concat of Concat, Where that always chooses the same
side.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import broadcast_shapes, same_shape
from onnxgrad.ir.var import Var
from onnxgrad.laws.clipping import c, i, j, p, q, x, y
from onnxgrad.laws.noops import x_or_identity
from onnxgrad.rewrite.pattern import Each, P
from onnxgrad.rewrite.trace import decline
from onnxgrad.rewrite.worklist import count, rewrite


@rewrite(P.Gather(P.Gather(x, i.const, axis=p).only, j.const, axis=q), shrinks=count("Gather"))
def gather_of_gather(x: Var, i: Var, j: Var, p: int, q: int, root: Binding) -> Any:
    """Gather(Gather(x, i), j) = Gather(x, i[j]), for constant indices along one axis, i a vector"""
    inner = root.inputs[0]
    rank = None if inner is None else inner.rank
    if not rank or i.rank != 1 or p % rank != q % rank:
        return None
    first, second = i.const, j.const
    if first is None or second is None:
        return None
    if any(not -first.size <= k < first.size for k in second.reshape(-1).tolist()):
        return decline("an index is out of range")
    return op.Gather(x, np.asarray(first[second]), axis=p)


@rewrite(P.Concat(Each(x), axis=p), shrinks=count("Concat"))
def concat_of_concat(x: list[Var], p: int, root: Binding) -> Any:
    """Concat(Concat(a, b), c) = Concat(a, b, c) along one axis, where nothing else reads the
    inner one
    """
    rank = root.out.rank
    flat = [u for v in x for u in _parts(v, root, p, rank)]
    return op.Concat(*flat, axis=p) if len(flat) > len(x) else None


def _parts(v: Var, root: Binding, axis: int, rank: int | None) -> list[Var]:
    inner = v.definition
    if (
        inner is None
        or not inner.is_op("Concat")
        or v.sole_user() is not root
        or v.block is not root.block
    ):
        return [v]
    own = inner.attr("axis")
    if inner.has_refs or (own != axis and (not rank or own % rank != axis % rank)):
        return [v]
    return [u for u in inner.inputs if u is not None]


@rewrite(P.Where(c.const, x, y), shrinks=count("Where"))
def where_of_constant(c: Var, x: Var, y: Var, root: Binding) -> Any:
    """Where(true, x, y) = x and Where(false, x, y) = y, for a constant that says the same
    everywhere

    As ONNX has it: onnxruntime 1.31's Where gives 0.0 for a -0.0 that it chooses.
    """
    chooses = c.const
    if chooses is None or not chooses.size or (chooses.any() and not chooses.all()):
        return None
    chosen = x if chooses.any() else y
    if not same_shape(broadcast_shapes([c.shape, x.shape, y.shape]), chosen.shape):
        return decline("the chosen side may be broadcast")
    return x_or_identity(root, chosen)
