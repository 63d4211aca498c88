"""Indices that contain the number of their row, in a file of several rows, as a batched GatherND.

Such indices read an element of their own row, so the batch axis of GatherND replaces the number.
"""

from __future__ import annotations

import numpy as np

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.domains import VIEWS
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import Array
from onnxgrad.ir.var import Var

_BATCH_DIMS = 12  # the first opset whose GatherND has batch_dims
# operators that keep the integers of their first operand, in order
_KEEP = frozenset((*VIEWS, "Cast"))


def read_own_rows(block: BindingBlock, count: int) -> None:
    """Rewrites `x[(0, i0), (1, i1), ...]` and `flattened[0 + i0, n + i1, ...]` as a GatherND with a
    batch axis, which reads the same elements.
    """
    if block.opsets.get("", 0) < _BATCH_DIMS:
        return
    for b in list(block.bindings):
        rule = _gather_nd if b.is_op("GatherND") else _gather if b.is_op("Gather") else None
        if rule is None:
            continue
        with emitting(block, sources=[b], made_by="open-batch"):
            made = rule(b, count)
        if made is not None:
            block.replace(b.out, made)
            block.remove_unused([b])
    block.schedule()


def _gather_nd(b: Binding, count: int) -> Var | None:
    """Replaces a GatherND whose indices are the rows in order, joined with other indices."""
    data, indices = b.inputs[0], b.inputs[1]
    joined = None if indices is None else indices.definition
    if data is None or joined is None or not joined.is_op("Concat") or b.attr("batch_dims", 0):
        return None
    rank, (first, *rest) = indices.rank if indices is not None else None, joined.inputs
    if not rank or not rest or joined.attr("axis", 0) % rank != rank - 1:
        return None
    if (data.shape or (None,))[0] != count or not _counts(first, count, 1):
        return None
    return _read(data, list(rest), rank)


def _read(data: Var, rest: list[Var | None], rank: int) -> Var:
    indices = rest[0] if len(rest) == 1 else op.Concat(*rest, axis=rank - 1)
    made: Var = op.GatherND(data, indices, batch_dims=1)
    return made


def _gather(b: Binding, count: int) -> Var | None:
    """Replaces a Gather from flattened rows whose indices add the offset of each row."""
    data, indices = b.inputs[0], b.inputs[1]
    added = None if indices is None else indices.definition
    if data is None or data.shape is None or added is None or not added.is_op("Add"):
        return None
    if b.attr("axis", 0) % len(data.shape) or not isinstance(data.shape[0], int):
        return None
    step, rest = divmod(data.shape[0], count)
    for offset, inside in (added.inputs, added.inputs[::-1]):
        shape = None if inside is None else inside.shape
        if rest or inside is None or not shape or shape[0] != count:
            continue
        if _counts(offset, count, step) and offset is not None and _below(inside, step):
            if (offset.rank or 0) > len(shape) or (added.out.shape != shape):
                continue
            apart = op.Reshape(data, _sizes([count, step, *data.shape[1:]]))
            return _read(apart, [op.Unsqueeze(inside, np.array([len(shape)]))], len(shape) + 1)
    return None


def _sizes(sizes: list[object]) -> Array:
    return np.array([d if isinstance(d, int) else -1 for d in sizes], np.int64)


def _counts(v: Var | None, count: int, step: int) -> bool:
    """Whether `v` is a constant 0, step, 2 step, ... along its first axis."""
    array = None if v is None else v.const
    if array is None or array.ndim == 0 or array.size != count or array.shape[0] != count:
        return False
    return bool((array.reshape(-1) == step * np.arange(count)).all())


def _below(v: Var, size: int) -> bool:
    """Whether all elements are known to be at least 0 and below `size`, as those of ArgMax are."""
    b = v.definition
    while b is not None and b.op in _KEEP and not b.domain and b.inputs[0] is not None:
        b = b.inputs[0].definition
    if b is None or b.domain or b.op not in ("ArgMax", "ArgMin") or b.inputs[0] is None:
        return False
    shape = b.inputs[0].shape
    return bool(shape) and shape is not None and shape[b.attr("axis", 0) % len(shape)] == size
