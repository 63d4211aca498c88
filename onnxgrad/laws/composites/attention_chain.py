"""Reads a chain of attention: scores, scale, masks, keys, repeated heads, rows."""

from __future__ import annotations

import math
from dataclasses import field

from onnxgrad.frozen import frozen
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.ops import op
from onnxgrad.ir.type_inference.shape_arithmetic import sizes
from onnxgrad.ir.types import Shape, same_dim, same_shape
from onnxgrad.ir.var import Var
from onnxgrad.laws.composites.attention_masks import Replaced
from onnxgrad.laws.composites.conditions import scalar
from onnxgrad.rewrite.trace import decline, decline_if


@frozen
class Scores:
    """Scores: scale query key^T, and the masks that are added or replace scores."""

    product: Binding
    scale: float = 1.0
    added: list[Var] = field(default_factory=list)
    replaced: Replaced | None = None


def scores_of(v: Var) -> Scores:
    """Returns the operations between the product of queries and keys and its softmax. Raises
    Decline.
    """
    added: list[Var] = []
    swapped: Replaced | None = None
    scale = 1.0
    while (b := v.definition) is not None and b.domain == "":
        if b.op == "MatMul":
            return Scores(b, scale, added, swapped)
        decline_if(v.sole_user() is None, f"{v.name} has other readers and would stay")
        if b.op == "Where" and swapped is None and scale == 1.0:
            v, swapped = _where(b)
            continue
        if b.op == "Add" and scale == 1.0:
            v, mask = _summands(b)
            added.append(mask)
            continue
        inner, factor = scaled(v)
        if inner is v:
            break
        v, scale = inner, scale * factor
    raise decline(f"{v.name} is not a product of queries and keys, scaled and masked or not")


def _where(b: Binding) -> tuple[Var, Replaced]:
    keep, yes, no = b.inputs
    for scores, fill, inverted in ((yes, no, False), (no, yes, True)):
        number = scalar(fill)
        if keep is not None and scores is not None and number is not None:
            return scores, Replaced(keep, number, inverted)
    raise decline(f"'{b}' chooses between two values, not a score and a number")


def _summands(b: Binding) -> tuple[Var, Var]:
    """Returns the scores and the mask of a sum. Scores are a product, maybe scaled and masked."""
    for scores, mask in (b.inputs, b.inputs[::-1]):
        if scores is not None and mask is not None and _is_score(scores):
            return scores, mask
    raise decline(f"'{b}' adds no mask to scores")


_BEHIND = 32  # values that are looked at behind scores


def _is_score(v: Var) -> bool:
    behind = [v]
    for value in behind:
        b = value.definition
        if b is None or b.domain != "":
            continue
        if b.op == "MatMul":
            return True
        inner = (
            b.inputs if b.op == "Add" else b.inputs[1:] if b.op == "Where" else scaled(value)[:1]
        )
        behind += dict.fromkeys(u for u in inner if u is not None and u not in behind)
        if len(behind) > _BEHIND:
            break
    return False


def scaled(v: Var) -> tuple[Var, float]:
    """Returns x and c of a value x c or x / c with a constant number c; any other value, and 1."""
    b = v.definition
    if b is None or b.domain != "" or b.op not in ("Mul", "Div"):
        return v, 1.0
    x, c = b.inputs
    number = scalar(c)
    if number is None and b.op == "Mul":
        x, number = c, scalar(x)
    if x is None or not number or not math.isfinite(number) or x.rank != v.rank:
        return v, 1.0
    return x, number if b.op == "Mul" else 1 / number


def all_scales(v: Var) -> tuple[Var, float]:
    """As `scaled`, through every constant number that the value is multiplied by."""
    scale = 1.0
    while True:
        inner, factor = scaled(v)
        if inner is v:
            return v, scale
        v, scale = inner, scale * factor


def matrices_transposed(v: Var) -> Var | None:
    """Returns the value of which `v` is the transpose in the last two axes, or None. Any rank; the
    other axes stay.
    """
    b = v.definition
    if b is None or b.domain != "":
        return None
    if b.op == "Transpose":
        perm, x = b.attr("perm"), b.inputs[0]
        if x is None or perm is None:
            return None
        return x if tuple(perm) == (*range(len(perm) - 2), len(perm) - 1, len(perm) - 2) else None
    if b.op != "Reshape" or b.inputs[0] is None:
        return None
    # merged into one stack of matrices for the transpose, then split again
    middle = b.inputs[0].definition
    if middle is None or not middle.is_op("Transpose") or middle.inputs[0] is None:
        return None
    stack = matrices_transposed(middle.out)
    merge = None if stack is None else stack.definition
    if merge is None or not merge.is_op("Reshape"):
        return None
    kept = _keeps_matrices(b) and _keeps_matrices(merge)
    return merge.inputs[0] if kept or _stacked(merge, b) else None


def _stacked(merge: Binding, split: Binding) -> bool:
    """Whether the targets are (-1, rows, width) and (batch, heads, width, rows) for an operand
    (batch, heads, rows, width), of open sizes too: a 0 among them copies a 0, or no run splits.
    """
    x, given, wanted = merge.inputs[0], merge.inputs[1], split.inputs[1]
    if x is None or x.shape is None or len(x.shape) != 4 or given is None or wanted is None:
        return False
    *lead, rows, width = x.shape
    stack, heads = sizes(given), sizes(wanted)
    return (
        isinstance(width, int)
        and width > 0
        and stack is not None
        and stack[0] == -1
        and same_shape(stack[1:], (rows, width))
        and same_shape(heads, (*lead, width, rows))
    )


def _keeps_matrices(reshape: Binding) -> bool:
    x = reshape.inputs[0]
    before, after = None if x is None else x.shape, reshape.out.shape
    return (
        before is not None
        and after is not None
        and min(len(before), len(after)) >= 2
        and same_shape(before[-2:], after[-2:])
    )


@frozen
class Heads:
    """(B, heads, rows, width); each head stands for `times` heads of the chain."""

    value: Var
    times: int = 1


def heads_of(v: Var) -> Heads:
    """Returns the heads before each was repeated for its group of queries."""
    b = v.definition
    if b is not None and b.is_op("Reshape") and b.inputs[0] is not None:
        found = _expanded(b.inputs[0])
        shape = v.shape
        if found is not None and shape is not None and _joined(found, shape):
            return found
    found = _expanded(v)
    return Heads(v) if found is None else found


def _joined(found: Heads, shape: Shape) -> bool:
    """Whether the axes (B, heads, times, rows, width) became (B, heads times, rows, width)."""
    whole = found.value.shape
    if whole is None or len(shape) != 4 or not isinstance(whole[1], int):
        return False
    return shape[1] == whole[1] * found.times and same_shape(
        (whole[0], *whole[2:]), (shape[0], *shape[2:])
    )


def _expanded(v: Var) -> Heads | None:
    """Heads of (B, heads, times, rows, width), which an Expand repeats along `times`."""
    expand = v.definition
    shape = v.shape
    if expand is None or not expand.is_op("Expand") or shape is None or len(shape) != 5:
        return None
    lifted = None if expand.inputs[0] is None else expand.inputs[0].definition
    if lifted is None or not lifted.is_op("Unsqueeze") or lifted.inputs[0] is None:
        return None
    x = lifted.inputs[0]
    if x.shape is None or not same_shape(x.shape, (*shape[:2], *shape[3:])):
        return None
    one = lifted.out.shape
    if one is None or not same_shape(one, (*x.shape[:2], 1, *x.shape[2:])):
        return None
    axes = lifted.operand(1)
    at_two = axes is not None and axes.ints in ((2,), (-3,))
    times = shape[2]
    return Heads(x, times) if at_two and isinstance(times, int) else None


def rows_of(v: Var) -> Var | None:
    """Returns the (B, rows, heads width) of which heads (B, heads, rows, width) were split."""
    transpose = v.definition
    if transpose is None or not transpose.is_op("Transpose"):
        return None
    if tuple(transpose.attr("perm") or ()) != (0, 2, 1, 3) or transpose.inputs[0] is None:
        return None
    reshape = transpose.inputs[0].definition
    if reshape is None or not reshape.is_op("Reshape") or reshape.inputs[0] is None:
        return None
    x, split = reshape.inputs[0], reshape.out.shape
    return x if x.rank == 3 and is_split(x.shape, split) else None


def joined_rows(v: Var) -> Var | None:
    """Returns `rows_of(v)`. If something else than a split made (B, rows, heads, width), such as a
    normalisation of each head, emits its join.
    """
    found, transpose = rows_of(v), v.definition
    if found is not None or transpose is None or not transpose.is_op("Transpose"):
        return found
    x = transpose.inputs[0]
    if tuple(transpose.attr("perm") or ()) != (0, 2, 1, 3) or x is None or not x.shape:
        return None
    heads, width = x.shape[2:]
    if v.sole_user() is None or not isinstance(heads, int) or not isinstance(width, int):
        return None
    joined: Var = op.Reshape(x, [0, 0, heads * width])
    return joined if is_split(joined.shape, x.shape) else None


def is_split(joined: Shape | None, split: Shape | None) -> bool:
    """Whether (B, rows, heads width) is (B, rows, heads, width) with its last axes joined."""
    if joined is None or split is None or len(joined) != 3 or len(split) != 4:
        return False
    heads, width = split[2:]
    return (
        isinstance(heads, int)
        and isinstance(width, int)
        and joined[2] == heads * width
        and same_dim(joined[0], split[0])
        and same_dim(joined[1], split[1])
    )
