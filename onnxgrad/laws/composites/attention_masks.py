"""Which masks mean the same to Attention as to the chain. Both add the mask to the scores; they
differ in rows that are masked throughout.

Such a row is uniform in the chain if the mask is a large finite number, and NaN if the mask is
-inf. In Attention the row is 0 for -inf, and in onnxruntime for float32's lowest number as well
(measured with 1.31.1). A number that is large enough to cancel every score, but is not the lowest,
means the same in both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from onnx import TensorProto

from onnxgrad.frozen import frozen
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.domains import MOVES
from onnxgrad.ir.emission.emit import constant
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import numpy_dtype, same_dim
from onnxgrad.ir.var import Var
from onnxgrad.laws.composites.conditions import scalar
from onnxgrad.rewrite.trace import decline, decline_if

# stands for every lower number: added to a score, it cancels the score
_FLOOR = -1e30
# and a score of this size is not cancelled
_LARGE = 1e20
# no other score of a row is as small as such a number, which replaces scores
_REPLACED = -1e9
# operators whose results are elements of their operand
_ELSEWHERE = frozenset((*MOVES, "Cast"))


@frozen
class Replaced:
    """Scores where `keep` is true, and `fill` elsewhere; the reverse if `inverted`."""

    keep: Var
    fill: float
    inverted: bool


def together(masks: Sequence[Var], repaired: bool) -> Var:
    """Returns the sum of what the chain adds to its scores, one mask after the other. Raises
    Decline.

    Where two masks overlap, their numbers add up. Therefore no constant mask may mask a whole row,
    and at most one mask may be computed.
    """
    deep = [m for m in masks if not _is_moderate(m)]
    decline_if(
        len(deep) > 1 and (repaired or sum(m.const is None for m in deep) > 1),
        "it has two masks that may mask a whole row",
    )
    found = [added(m, repaired) for m in masks]
    if len(deep) > 1:
        found = [_at_floor(m) for m in found]
    total = found[-1]
    for m in found[-2::-1]:
        total = total + m
    return total


def _at_floor(mask: Var) -> Var:
    """Returns a constant mask whose elements are at least the number that means "masked"."""
    array = mask.const
    if array is None or mask.dtype != TensorProto.FLOAT:
        return mask
    return constant(np.maximum(array, np.float32(_FLOOR)), name=f"{mask.name}_at_floor")


def _is_moderate(mask: Var) -> bool:
    """Whether every element is known to be far from the numbers that mean "masked"."""
    low, high = bounds(mask)
    return low > _FLOOR and high < _LARGE


def added(mask: Var, repaired: bool) -> Var:
    """Returns the mask that Attention has to add in place of the chain's `mask`. `repaired`: the
    chain makes zeros of rows that are masked throughout. Raises Decline if that cannot be shown.
    """
    array = mask.const
    if array is not None:
        return _constant(mask, array, repaired)
    if _is_moderate(mask):
        return mask
    b = mask.definition
    if b is not None and b.is_op("Where") and b.inputs[0] is not None:
        return _chosen(b, b.inputs[0], repaired)
    if b is not None and b.is_op("Expand"):
        inner = b.inputs[0]
        new = None if inner is None else added(inner, repaired)
        return mask if new is inner else op.Expand(new, b.inputs[1])
    raise decline(f"its mask {mask.name} may mask a whole row, which Attention treats differently")


def replaced(mask: Replaced, dtype: int, repaired: bool) -> Var:
    """Returns the number to be added if the chain replaces scores. Raises Decline."""
    fill = mask.fill
    if fill == -math.inf:
        decline_if(not repaired, "a row that its mask fills with -inf is NaN, in Attention it is 0")
    elif fill <= _REPLACED and dtype == TensorProto.FLOAT:
        fill = _FLOOR
    else:
        raise decline(f"where its mask is, the scores become {fill:g}: not surely below the others")
    kind = numpy_dtype(dtype)
    zero, low = np.array(0, kind), np.array(fill, kind)
    return op.Where(mask.keep, low, zero) if mask.inverted else op.Where(mask.keep, zero, low)


def _constant(mask: Var, array: np.ndarray, repaired: bool) -> Var:
    """Returns a constant mask, unless it masks a row throughout."""
    wide = array.astype(np.float64)
    decline_if(
        np.isnan(wide).any() or (wide >= _LARGE).any(),
        f"its mask {mask.name} has a NaN, or a number that cancels scores",
    )
    best = wide.max(axis=-1, initial=-np.inf) if wide.ndim else wide
    if (best > _FLOOR).all() or (repaired and ((best > _FLOOR) | (best == -np.inf)).all()):
        return mask
    raise decline(f"its mask {mask.name} masks a whole row")


def _chosen(where: Binding, keep: Var, repaired: bool) -> Var:
    """Returns Where(keep, a, b) of two numbers, neither of which lies between 0 and the numbers
    that mean "masked".
    """
    numbers = [scalar(v) for v in where.inputs[1:]]
    out = where.out
    decline_if(
        any(n is None or not n <= -_FLOOR for n in numbers),
        f"its mask {out.name} is not chosen between two numbers",
    )
    known = [n for n in numbers if n is not None]
    decline_if(
        -math.inf in known and not repaired,
        "a row that its mask fills with -inf is NaN, in Attention it is 0",
    )
    if all(n == -math.inf or n > _FLOOR for n in known):
        return out
    decline_if(
        out.dtype != TensorProto.FLOAT,
        f"its mask {out.name} fills rows with the lowest number of its dtype",
    )
    decline_if(-math.inf in known, f"its mask {out.name} masks with -inf and with another number")
    one, other = (np.array(max(n, _FLOOR), np.float32) for n in known)
    return op.Where(keep, one, other)


_Bounds: TypeAlias = tuple[float, float]


def bounds(v: Var, known: dict[Var, _Bounds] | None = None) -> _Bounds:
    """Returns the numbers between which every element lies; infinite if nothing is known. `known`
    holds the bounds of operands, which may be shared.
    """
    known = {} if known is None else known
    if v not in known:
        known[v] = _bounds(v, known)
    return known[v]


def _bounds(v: Var, known: dict[Var, _Bounds]) -> _Bounds:
    work: Var | None = v
    while work is not None and work.const is None:
        b = work.definition
        if b is None or b.domain != "" or b.op not in _ELSEWHERE:
            break
        if b.op == "Cast" and b.inputs[0] is not None and b.inputs[0].dtype == TensorProto.BOOL:
            return 0.0, 1.0
        work = b.inputs[0]
    array = None if work is None else work.const
    if array is not None and array.size and array.dtype.kind in "biuf":
        low, high = float(array.min()), float(array.max())
        return (low, high) if not math.isnan(low) else (-math.inf, math.inf)
    made = None if work is None else work.definition
    return (-math.inf, math.inf) if made is None else _of_two(made, known)


def _of_two(b: Binding, known: dict[Var, _Bounds]) -> _Bounds:
    """The bounds of a sum, a difference, a product or a choice of values with bounds."""
    if b.domain != "" or b.op not in ("Add", "Sub", "Mul", "Where"):
        return -math.inf, math.inf
    (la, ha), (lb, hb) = (
        (-math.inf, math.inf) if v is None else bounds(v, known) for v in b.inputs[-2:]
    )
    if b.op == "Where":
        return min(la, lb), max(ha, hb)
    if b.op == "Add":
        return la + lb, ha + hb
    if b.op == "Sub":
        return la - hb, ha - lb
    if any(map(math.isinf, (la, ha, lb, hb))):
        return -math.inf, math.inf
    ends = [p * q for p in (la, ha) for q in (lb, hb)]
    return min(ends), max(ends)


def spread(mask: Var, rows: Var, columns: Var) -> Var:
    """Returns the mask with a row for each row of `rows` (its last axis but one), which onnxruntime
    requires, and with a column for each row of `columns`. Raises Decline if its sizes are not
    known.
    """
    if mask.shape is None or rows.shape is None or columns.shape is None or mask.rank is None:
        raise decline("the rank of its mask is unknown")
    decline_if(mask.rank > 4, f"its mask has {mask.rank} axes")
    count, width = rows.shape[-2], columns.shape[-2]
    decline_if(
        mask.rank == 0 or not same_dim(mask.shape[-1], width),
        "its mask is not known to have a number for each key",
    )
    if mask.rank > 1 and same_dim(mask.shape[-2], count):
        return mask
    decline_if(
        mask.rank > 1 and mask.shape[-2] != 1, "its mask is not known to have a row for each query"
    )
    if isinstance(count, int):
        return op.Expand(mask, [count, 1])
    one = constant(np.array([1], np.int64))
    return op.Expand(mask, op.Concat(op.Shape(rows, start=-2, end=-1), one, axis=0))
