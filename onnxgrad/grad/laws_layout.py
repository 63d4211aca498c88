"""Laws of layout for gradient graphs: what Reshape, Concat, Pad, Transpose and scattering leave side by side."""

from __future__ import annotations

from typing import Any

from onnx import numpy_helper

from onnxgrad.grad.accumulate import add_up, with_type_of
from onnxgrad.ir.block import Binding, BindingBlock, Var
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import is_static, same_shape
from onnxgrad.passes.transpose import is_matrix_transpose, transposed
from onnxgrad.rewrite.engine import Measure, count, rewrite
from onnxgrad.rewrite.match import attribute
from onnxgrad.rewrite.pattern import Each, P, capture

a, b, c, d, s, x = capture("a b c d s x")


def _scatters_into_zeros(block: BindingBlock) -> int:
    scatters = (b.inputs[0] for b in block.walk() if b.op in ("ScatterND", "ScatterElements"))
    return sum(v is not None and _is_zero(v) for v in scatters)


def _last_axis_of_products(block: BindingBlock) -> int:
    transposes = (b for b in block.walk() if b.op == "Transpose" and _moves_last(attribute(b, "perm")))
    made = (None if b.inputs[0] is None else b.inputs[0].definition for b in transposes)
    return sum(m is not None and m.op == "MatMul" for m in made)


SCATTERS_INTO_ZEROS = Measure("scatters into zeros", _scatters_into_zeros)
LAST_AXIS_OF_PRODUCTS = Measure("transposes of products that move the last axis", _last_axis_of_products)


def _is_zero(v: Var) -> bool:
    """Zeros, as a constant or as ConstantOfShape makes them."""
    made = v.definition
    if made is not None and made.is_op("ConstantOfShape"):
        value = made.attr("value")
        return value is None or not numpy_helper.to_array(value).any()
    array = v.const
    return array is not None and array.dtype != object and not array.any()


@rewrite(P.any_of("Sum", "Add")(Each(x)), shrinks=SCATTERS_INTO_ZEROS)
def sum_with_scattered(x: list[Var], root: Binding) -> Any:
    """a + Scatter(0, i, u) = Scatter(a, i, u), scattering being addition; through a Reshape too"""
    for i, v in enumerate(x):
        made, folded = v.definition, None
        if made is not None and made.is_op("Reshape") and v.use_count == 1 and made.inputs[0] is not None:
            v, folded = made.inputs[0], made
            made = v.definition
        if made is None or made.op not in ("ScatterND", "ScatterElements") or made.domain or v.use_count != 1:
            continue
        zeros, rest = made.inputs[0], [other for k, other in enumerate(x) if k != i]
        if made.attr("reduction") != "add" or zeros is None or not _is_zero(zeros):
            continue
        if not rest or not all(same_shape(o.shape, root.out.shape) for o in rest):
            continue
        if folded is not None and v.rank != 1:
            continue
        base = add_up(rest)
        axis = made.attr("axis") if made.op == "ScatterElements" else None
        onto = base if folded is None else op.Reshape(base, [-1])
        summed = getattr(op, made.op)(onto, *made.inputs[1:], axis=axis, reduction="add")
        return summed if folded is None else op.Reshape(summed, folded.inputs[1], allowzero=folded.attr("allowzero"))
    return None


@rewrite(P.Sum(Each(x)), shrinks=count("Pad"))
def sum_of_tiles(x: list[Var], root: Binding) -> Any:
    """Pad(a, after) + Pad(b, before) = Concat(a, b), where each is zero exactly where the other is not"""
    return _joined(x)


@rewrite(P.Add(a, b), shrinks=count("Pad"))
def add_of_tiles(a: Var, b: Var, root: Binding) -> Any:
    """Pad(a, after) + Pad(b, before) = Concat(a, b), where each is zero exactly where the other is not"""
    return _joined([a, b])


def _joined(values: list[Var]) -> Any:
    """The sum, the Pads that tile one axis joined into a Concat; None when they do not."""
    tiles: dict[tuple[int, int], list[tuple[int, Var, Var]]] = {}
    for v in values:
        found = _tile(v)
        if found is not None:
            axis, size, before, inner = found
            tiles.setdefault((axis, size), []).append((before, inner, v))
    for (axis, size), parts in tiles.items():
        parts.sort(key=lambda part: part[0])
        ends = [before + (inner.shape or ())[axis] for before, inner, _ in parts]  # type: ignore[operator]  # ints, see _tile
        if [before for before, _, _ in parts] != [0, *ends[:-1]] or ends[-1] != size or len(parts) < 2:
            continue
        whole = op.Concat(*(inner for _, inner, _ in parts), axis=axis)
        rest = [v for v in values if all(v is not part for _, _, part in parts)]
        return op.Sum(whole, *rest) if len(rest) > 1 else whole + rest[0] if rest else whole
    return None


def _tile(v: Var) -> tuple[int, int, int, Var] | None:
    """(axis, whole size, zeros before, part) of a Pad by zeros along one axis, read only here."""
    made = v.definition
    if made is None or not made.is_op("Pad") or v.use_count != 1 or made.operand(2) is not None:
        return None
    inner, pads, axes = made.inputs[0], made.inputs[1], made.operand(3)
    ints = None if pads is None else pads.ints
    if inner is None or inner.shape is None or ints is None or attribute(made, "mode") != "constant":
        return None
    rank = len(inner.shape)
    if axes is not None and axes.ints != tuple(range(rank)):
        return None
    padded = [i for i in range(rank) if ints[i] or ints[i + rank]]
    if len(padded) != 1:
        return None
    size = inner.shape[padded[0]]
    if not isinstance(size, int):
        return None
    return padded[0], size + ints[padded[0]] + ints[padded[0] + rank], ints[padded[0]], inner


@rewrite(P.any_of("Sum", "Add")(Each(P.Reshape(x, s).only)), shrinks=count("Reshape"))
def sum_of_reshapes(x: list[Var], s: list[Var], root: Binding) -> Any:
    """Reshape(a, s) + Reshape(b, s) = Reshape(a + b, s), for a and b of equal shapes"""
    inner = [v.definition for v in root.inputs if v is not None]
    zeros = {None if b is None else b.attr("allowzero", 0) for b in inner}
    if len(x) < 2 or any(v is not s[0] for v in s) or len(zeros) > 1:
        return None
    if not all(same_shape(v.shape, x[0].shape) for v in x[1:]):
        return None
    whole = x[0] + x[1] if len(x) == 2 else op.Sum(*x)
    return op.Reshape(whole, s[0], allowzero=zeros.pop() or None)


@rewrite(P.Reshape(P.Reshape(x, c), s), shrinks=count())
def reshape_back(x: Var, root: Binding) -> Any:
    """Reshape(Reshape(x, s), t) = x, where t is the shape of x"""
    return x if is_static(x.shape) and x.shape == root.out.shape and not root.out.returned else None


@rewrite(P.Squeeze(P.ReduceSum(x, a, keepdims=1).only, s), shrinks=count("Squeeze"))
def squeeze_of_sum(x: Var, a: Var, s: Var, root: Binding) -> Any:
    """Squeeze(ReduceSum(x, axes), axes) = ReduceSum(x, axes) that drops them"""
    rank = x.rank or 0
    if a.ints is None or s.ints is None or sorted(i % rank for i in a.ints) != sorted(i % rank for i in s.ints):
        return None
    return op.ReduceSum(x, a, keepdims=0)


@rewrite(P.Reshape(P.Mul(P.Reshape(x, c).only, a).only, s), shrinks=count("Reshape"))
def reshape_around_product(x: Var, a: Var, s: Var, root: Binding) -> Any:
    """Reshape(Reshape(x, s) * a, t) = x * Reshape(a, t), where t is the shape of x and a has that of the product"""
    product = None if root.inputs[0] is None else root.inputs[0].shape
    if not is_static(x.shape) or x.shape != root.out.shape or not same_shape(a.shape, product):
        return None
    return x * op.Reshape(a, s, allowzero=root.attr("allowzero") or None)


@rewrite(P.Concat(Each(P.Reshape(x, s).only), axis=c), shrinks=count("Reshape"))
def concat_of_reshapes(x: list[Var], c: int, root: Binding) -> Any:
    """Concat(Reshape(a), Reshape(b)) = Reshape(Concat(a, b)), where each joins the axes from the concatenated one on"""
    rank = root.out.rank
    if rank is None or len(x) < 2 or c % rank != rank - 1:
        return None
    lead = rank - 1
    for v, part in zip(x, root.inputs):
        inner, outer = v.shape, None if part is None else part.shape
        if inner is None or outer is None or len(inner) != rank + 1:
            return None
        sizes = (*inner[lead:], *(x[0].shape or ())[lead + 1 :])
        if not same_shape(inner[:lead], outer[:lead]) or not all(isinstance(d, int) for d in sizes):
            return None
        if inner[lead + 1] != (x[0].shape or ())[lead + 1] or not same_shape(inner[:lead], (x[0].shape or ())[:lead]):
            return None
    return with_type_of(op.Reshape(op.Concat(*x, axis=lead), [0] * lead + [-1]), root.out)


@rewrite(P.Concat(Each(P.Unsqueeze(x, s).only), axis=c), shrinks=count("Unsqueeze"))
def stack(x: list[Var], s: list[Var], c: int, root: Binding) -> Any:
    """Concat(Unsqueeze(a, k), Unsqueeze(b, k), axis=k) = Reshape(Concat(a, b, axis=k)): k splits in two"""
    shape = root.out.shape
    first = x[0].shape
    if shape is None or first is None or len(x) < 2 or not all(same_shape(v.shape, first) for v in x):
        return None
    axis = c % len(shape)
    if axis == len(first) or any(a.ints is None or [i % len(shape) for i in a.ints] != [axis] for a in s):
        return None
    after = [d if isinstance(d, int) and d > 0 else -1 for d in first[axis:]]
    if after.count(-1) > 1:
        return None
    return with_type_of(op.Reshape(op.Concat(*x, axis=axis), [*[0] * axis, len(x), *after]), root.out)


def _moves_last(perm: Any) -> bool:
    return perm is not None and len(perm) >= 3 and perm[-1] != len(perm) - 1


@rewrite(P.Transpose(P.MatMul(P.Transpose(a, perm=c), b).only, perm=d), shrinks=LAST_AXIS_OF_PRODUCTS)
def transpose_of_product_of_transpose(a: Var, b: Var, c: Any, d: Any) -> Any:
    """Transpose(T(a) @ b, p) = Transpose(T(b) @ a, p after T), where that leaves the last axis in place"""
    if not is_matrix_transpose(c) or not _moves_last(d) or a.rank != b.rank or b.rank is None:
        return None
    if b.definition is not None and b.definition.is_op("MatMul"):
        return None  # its transpose would be one more of the same kind
    swapped = {b.rank - 1: b.rank - 2, b.rank - 2: b.rank - 1}
    perm = [swapped.get(i, i) for i in d]
    return None if _moves_last(perm) else op.Transpose(transposed(b) @ a, perm=perm)


@rewrite(P.Concat(Each(P.Transpose(x, perm=d).only), axis=c), shrinks=count("Transpose"))
def concat_of_transposes(x: list[Var], d: list[Any], c: int, root: Binding) -> Any:
    """Concat(T(a), T(b)) = T(Concat(a, b)), for one permutation"""
    if len(x) < 2 or d[0] is None or any(list(p) != list(d[0]) for p in d[1:]):
        return None
    return op.Transpose(op.Concat(*x, axis=d[0][c % len(d[0])]), perm=d[0])


RULES = [
    sum_with_scattered,
    sum_of_reshapes,
    reshape_back,
    reshape_around_product,
    squeeze_of_sum,
    concat_of_reshapes,
    stack,
    transpose_of_product_of_transpose,
    concat_of_transposes,
    sum_of_tiles,
    add_of_tiles,
]
