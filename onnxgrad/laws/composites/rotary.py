"""RotaryEmbedding from the chain that exporters write."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.emit import constant
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import Dim, same_dim
from onnxgrad.ir.var import Var
from onnxgrad.laws.composites.attention_chain import is_split, joined_rows
from onnxgrad.laws.composites.conditions import require, scalar
from onnxgrad.rewrite.pattern import P, capture
from onnxgrad.rewrite.trace import decline, decline_if
from onnxgrad.rewrite.worklist import count, rewrite

x, cos, sin, axis = capture("x cos sin axis")

_DTYPES = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16})
_ROTARY = ("RotaryEmbedding", 23)
_TURNED = P.Concat(
    P.Neg(P.Slice(x, capture("s1"), capture("e1"), capture("a1"), capture("t1").maybe).only).only,
    P.Slice(x, capture("s0"), capture("e0"), capture("a0"), capture("t0").maybe).only,
    axis=axis,
).named("turned")


@rewrite(
    P.Add(P.Mul(x, cos).only, P.Mul(_TURNED.only, sin).only), shrinks=count("Neg"), needs=_ROTARY
)
def rotary_embedding(x: Var, cos: Var, sin: Var, turned: Binding, root: Binding) -> Any:
    """x cos + concat(-x2, x1) sin = RotaryEmbedding(x, cos1, sin1), where x1 and x2 are the halves
    of x, and cos and sin have two equal halves
    """
    require(root, _ROTARY, x, _DTYPES)
    shape = x.shape
    if shape is None or len(shape) != 4 or not isinstance(shape[3], int) or shape[3] % 2:
        return decline(f"{x.name} does not have the axes (batch, heads, rows, width)")
    half = shape[3] // 2
    decline_if(
        not _is_turned(turned, half),
        "the sine does not multiply the two halves in swapped order",
    )
    return op.RotaryEmbedding(x, _table(cos, x, half), _table(sin, x, half))


def _is_turned(turned: Binding, half: int) -> bool:
    """Whether the value is concat(-x2, x1) along the last axis."""
    negative, plain = (None if v is None else v.definition for v in turned.inputs)
    second = None if negative is None or negative.inputs[0] is None else negative.inputs[0]
    at_end = turned.attr("axis") in (-1, 3)
    return (
        at_end
        and second is not None
        and second.definition is not None
        and plain is not None
        and _bounds(second.definition, 2 * half) == (half, 2 * half)
        and _bounds(plain, 2 * half) == (0, half)
    )


def _bounds(b: Binding, size: int) -> tuple[int, int] | None:
    """Returns the bounds of a Slice along the last of four axes; None for any other Slice."""
    start, end, axes, step = (
        (None if v is None else v.ints) for v in (b.operand(i) for i in (1, 2, 3, 4))
    )
    if start is None or end is None or axes not in ((-1,), (3,)):
        return None
    if b.operand(4) is not None and step != (1,):
        return None
    ends = [min(max(i + size if i < 0 else i, 0), size) for i in (*start, *end)]
    return ends[0], ends[1]


def _table(v: Var, x: Var, half: int) -> Var:
    """Returns the first half (batch, rows, width / 2) of a table of two equal halves. Raises
    Decline.
    """
    shape, own = v.shape, x.shape
    if shape is None or own is None or len(shape) > 4 or not same_dim(shape[-1], own[3]):
        raise decline(f"{v.name} has no number for each element of {x.name}")
    decline_if(
        len(shape) < 2 or not same_dim(shape[-2], own[2]),
        f"{v.name} has no row for each row of {x.name}",
    )
    decline_if(len(shape) > 2 and shape[-3] != 1, f"{v.name} differs from head to head")
    batch: Dim = shape[0] if len(shape) == 4 else 1
    if v.const is not None:
        return _constant_table(v, own, batch, half)
    decline_if(not _repeats(v, half), f"{v.name} is not known to have two equal halves")
    first = op.Slice(v, [0], [half], [-1])
    rows = op.Squeeze(first, [len(shape) - 3]) if len(shape) > 2 else first
    rows = rows if len(shape) == 4 else op.Unsqueeze(rows, [0]) if len(shape) == 2 else rows
    if same_dim(batch, own[0]):
        return rows
    decline_if(batch != 1, f"{rows.name} has another batch size than the value that it rotates")
    return op.Expand(rows, op.Concat(op.Shape(x, start=0, end=1), [1, half], axis=0))


def _constant_table(v: Var, own: Any, batch: Dim, half: int) -> Var:
    array = v.const
    if array is None or not np.array_equal(array[..., :half], array[..., half:]):
        raise decline(f"{v.name} does not have two equal halves")
    rows = array.reshape(-1, *array.shape[-2:])[..., :half]
    if not same_dim(batch, own[0]):
        if batch != 1 or not isinstance(own[0], int):
            raise decline(f"{v.name} has another batch size than the value that it rotates")
        rows = np.repeat(rows, own[0], axis=0)
    return constant(np.ascontiguousarray(rows), name=f"{v.name}_half")


# elementwise: equal halves stay equal
_ELEMENTWISE = frozenset({"Cos", "Sin", "Cast", "Identity", "Neg"})


def _repeats(v: Var, half: int) -> bool:
    """Whether Concat(f, f) made the last axis."""
    while (b := v.definition) is not None and b.domain == "":
        if b.op == "Concat":
            x, last = b.operand(0), b.attr("axis") in (-1, (v.rank or 0) - 1)
            size = None if x is None or not x.shape else x.shape[-1]
            return last and len(b.inputs) == 2 and x is b.inputs[1] and size == half
        inner = _same_halves(b, 2 * half)
        if inner is None:
            return False
        v = inner
    return False


def _same_halves(b: Binding, size: int) -> Var | None:
    """Returns the operand that decides whether the last axis of a result has two equal halves; None
    if unknown.
    """
    x = b.operand(0)
    if b.op in _ELEMENTWISE:
        return x
    if b.op in ("Mul", "Div") and scalar(b.operand(1)) is not None:
        return x
    if b.op == "Mul" and scalar(x) is not None:
        return b.operand(1)
    if b.op not in ("Unsqueeze", "Squeeze") or x is None or not x.shape or not b.out.shape:
        return None
    return x if x.shape[-1] == b.out.shape[-1] == size else None


def rotated_rows(v: Var) -> Var | None:
    """Returns the (B, rows, heads width) of which rotated heads were split, and emits the rotation
    of the rows. None if `v` is not such a rotation, or has other readers.
    """
    b = v.definition
    if b is None or not b.is_op("RotaryEmbedding") or b.has_refs or v.sole_user() is None:
        return None
    inner = b.inputs[0]
    rows = None if inner is None else joined_rows(inner)
    if rows is None or inner is None or inner.shape is None:
        return None
    if not is_split(rows.shape, (inner.shape[0], inner.shape[2], inner.shape[1], inner.shape[3])):
        return None
    return op.RotaryEmbedding(rows, *b.inputs[1:], **{**b.attrs, "num_heads": inner.shape[1]})
