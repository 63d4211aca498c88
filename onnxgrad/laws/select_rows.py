"""f(x) at some rows = f of these rows, for operators that compute each row by itself.

A classifier reads the first token and CLIP the last: the products of the last layer are then those
of one row. For Attention only the selected queries are needed; all keys and values stay.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from onnxgrad.frozen import frozen
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.domains import BROADCASTING, ELEMENTWISE, VIEWS
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import Dim, Shape, element_count, same_dim, same_shape
from onnxgrad.ir.var import Var
from onnxgrad.laws.fold_scale_axis.scale import again
from onnxgrad.rewrite.pattern import P, capture
from onnxgrad.rewrite.trace import decline, decline_if
from onnxgrad.rewrite.worklist import Measure, rewrite

x, i = capture("x i")

_NORMS = frozenset({"LayerNormalization", "RMSNormalization"})
_MOVES = frozenset((*VIEWS, "Gather", "GatherND"))
# stands for an open size in the measure
_OPEN = 1 << 10
# Gather takes as long for a short row as for one of so many elements, and longer than a sum
_WIDTH = 32


def _computed(block: BindingBlock) -> int:
    """The elements of all results but those that move elements only."""
    return sum(
        prod(d if isinstance(d, int) else _OPEN for d in v.shape)
        for b in block.walk()
        if b.op not in _MOVES
        for v in b.outputs
        if v is not None and v.shape is not None
    )


@frozen
class Rows:
    """Some rows of a value: those at `index` along the first `lead` axes. `axis` is that of a
    Gather, None for GatherND; `flat`: a Gather from all rows as one matrix.
    """

    source: Var
    index: Var
    lead: int
    axis: int | None = None
    flat: bool = False

    def of(self, v: Var) -> Var:
        """Emits the same rows of another value, unless something else reads them already."""
        if self.flat:
            width = v.shape[-1] if v.shape else None
            fits = isinstance(width, int) and width > 0  # -1 of nothing is no size
            decline_if(not fits, f"the width of {v.name} is unknown or 0")
            return op.Gather(op.Reshape(v, np.array([-1, width])), self.index, axis=0)
        for user in v.users:
            same = user.inputs == [v, self.index] and not user.has_refs and user.block is v.block
            if same and _rows(user) == Rows(v, self.index, self.lead, self.axis):
                return user.out
        if self.axis is None:
            return op.GatherND(v, self.index)
        return op.Gather(v, self.index, axis=self.axis)


def _rows(root: Binding) -> Rows | None:
    """The rows that a Gather or GatherND reads; None if it reads columns or most rows, or is
    another operator.
    """
    if root.domain or root.op not in ("Gather", "GatherND"):
        return None
    x, i = root.operand(0), root.operand(1)
    if x is None or i is None or not x.shape or i.shape is None or root.has_refs:
        return None
    if root.is_op("GatherND"):
        depth = i.shape[-1] if i.shape else None
        if not isinstance(depth, int) or not 0 < depth < len(x.shape) or root.attr("batch_dims"):
            return None
        return Rows(x, i, depth) if _fewer(i.shape[:-1], x.shape[:depth]) else None
    axis = root.attr("axis", 0) % len(x.shape)
    y = _flattened(x) if axis == 0 and len(i.shape) == 1 else None
    if y is not None and y.shape is not None and x.sole_user() is root:
        lead = len(y.shape) - 1
        return Rows(y, i, lead, flat=True) if _fewer(i.shape, y.shape[:lead]) else None
    fits = axis < len(x.shape) - 1 and _fewer(i.shape, x.shape[axis : axis + 1])
    return Rows(x, i, axis + 1, axis) if fits else None


def _flattened(x: Var) -> Var | None:
    """The value of more axes of which `x` is the matrix of all rows; None if there is none."""
    made = x.definition
    if x.rank != 2 or made is None or made.domain or made.op not in ("Flatten", "Reshape"):
        return None
    y = made.inputs[0]
    if y is None or y.shape is None or x.shape is None or len(y.shape) < 3:
        return None
    width = y.shape[-1]
    return y if isinstance(width, int) and width > 0 and width == x.shape[-1] else None


def _fewer(taken: Shape, there: Shape) -> bool:
    """Whether at most a quarter of the rows are taken, or one of each batch of unknown many."""
    some, every = element_count(taken), element_count(there)
    if some is not None and every is not None:
        return 4 * some <= every
    left: list[Dim] = [d for d in there if d != 1]
    for d in taken:
        if d == 1:
            continue
        same = next((k for k, other in enumerate(left) if same_dim(d, other)), None)
        if same is None:
            return False
        del left[same]
    return bool(left)


@rewrite(P.any_of("Gather", "GatherND")(x, i), shrinks=Measure("computed elements", _computed))
def rows_of_result(root: Binding) -> Any:
    """f(x)[rows] = f(x[rows]), if f computes each row by itself; of Attention, the queries' rows"""
    rows = _rows(root)
    made = None if rows is None else rows.source.definition
    if rows is None or made is None or made.block is not root.block:
        return None
    result = rows.source
    if made.domain or made.has_refs or len([v for v in made.outputs if v is not None]) > 1:
        return None
    rule = _RULES.get(made.op)
    if rule is None or all(v is None or v.is_constant for v in made.inputs):
        return None
    shape = result.shape or ()
    decline_if(result.use_count > 1, f"all rows of {result.name} have other readers")
    decline_if(0 in shape, f"{result.name} has no elements")
    decline_if(
        (element_count(shape[rows.lead :]) or 0) < _WIDTH,
        f"rows of less than {_WIDTH} elements are computed as fast as they are taken",
    )
    return rule(rows, made, shape)


def _of_each(rows: Rows, made: Binding, shape: Shape) -> Any:
    """f element by element, with operands that broadcast behind the axes of the rows"""
    decline_if(made.version < 7, "it broadcasts by an attribute")
    inner = len(shape) - rows.lead
    found = [v if v is None or _is_inner(v, inner) else _full(v, shape, rows) for v in made.inputs]
    return again(made, found)


def _is_inner(v: Var, inner: int) -> bool:
    """Whether all rows have the same part of the operand."""
    return v.rank is not None and v.rank <= inner


def _full(v: Var, shape: Shape, rows: Rows) -> Var:
    decline_if(
        not same_shape(v.shape, shape), f"{v.name} is not known to have a row for each of them"
    )
    return rows.of(v)


def _of_product(rows: Rows, made: Binding, shape: Shape) -> Any:
    """x @ w, w a matrix"""
    x, w = made.inputs
    if x is None or w is None or w.rank != 2 or x.rank != len(shape):
        return decline("its right operand is not one matrix for all rows")
    return rows.of(x) @ w


def _of_norm(rows: Rows, made: Binding, shape: Shape) -> Any:
    """A normalisation of each row"""
    axis = made.attr("axis", -1) % len(shape)
    x, *others = made.inputs
    decline_if(axis < rows.lead, "it normalises over several rows")
    if x is None or not all(v is None or _is_inner(v, len(shape) - rows.lead) for v in others):
        return decline("its weights are not the same for all rows")
    return again(made, [rows.of(x), *others], {"axis": axis - len(shape)})


def _of_attention(rows: Rows, made: Binding, shape: Shape) -> Any:
    """Attention(q, k, v, mask) of rows (B, rows, heads width): the queries of one row of each
    batch
    """
    q, k, v, mask, *more = (*made.inputs, None)
    one = rows.index.shape in ((), (1,))
    one = one and rows.axis == 1 and len(shape) == 3
    if q is None or q.shape is None or not one or any(more) or made.attr("is_causal"):
        return decline("it is not one row of each batch, or the queries' places matter")
    vector = rows.index if rows.index.rank == 1 else op.Reshape(rows.index, [1])
    if mask is not None:
        sizes = mask.shape or ()
        decline_if(
            len(sizes) < 2 or not same_dim(sizes[-2], q.shape[1]),
            "its mask is not known to have a row for each query",
        )
        mask = op.Gather(mask, vector, axis=len(sizes) - 2)
    row = again(made, [op.Gather(q, vector, axis=1), k, v, mask])
    return row if rows.index.rank == 1 else op.Squeeze(row, [1])


_RULES: dict[str, Any] = {
    **dict.fromkeys((*ELEMENTWISE, *BROADCASTING), _of_each),
    **dict.fromkeys(_NORMS, _of_norm),
    "Attention": _of_attention,
    "MatMul": _of_product,
}
