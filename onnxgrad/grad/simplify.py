"""Clean-up of a gradient graph: SPEC S1, and the laws that what the walk leaves behind asks for."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from onnx import numpy_helper

from onnxgrad.grad.accumulate import add_up, with_type_of
from onnxgrad.grad.bodies import fold
from onnxgrad.ir.block import Binding, BindingBlock, Var
from onnxgrad.ir.ops import emitting, op
from onnxgrad.ir.program import Program
from onnxgrad.ir.types import FLOAT_DTYPES, broadcast_shapes, is_static, same_shape
from onnxgrad.passes.base import roots
from onnxgrad.passes.remove_noops import RULES as NOOPS
from onnxgrad.passes.remove_noops import transpose_in_order
from onnxgrad.passes.transpose import (
    GEMM_RULES,
    is_matrix_transpose,
    transpose_of_matmul,
    transpose_of_transpose,
    transposed,
)
from onnxgrad.rewrite.engine import Measure, apply_rules, count, rewrite
from onnxgrad.rewrite.match import attribute
from onnxgrad.rewrite.pattern import Each, P, capture
from onnxgrad.rewrite.trace import Trace

a, b, c, d, s, x, xs = capture("a b c d s x xs")


def simplify(
    program: Program, variables: Iterable[Var], forward: Collection[Binding], trace: Trace | None = None
) -> None:
    """Simplify in place what the backward walk added; the bindings in `forward` stay as they are.

    `variables`, the requested initializers, are never folded: their values will be replaced.
    """
    trace = trace or Trace()
    with _as_inputs(program, variables):
        for block in roots(program):
            apply_rules(block, [*TRANSPOSES, *RULES, *NOOPS], trace, where=lambda b: b not in forward)
            _fold_constants(block, forward)
            apply_rules(block, NOOPS, trace, where=lambda b: b not in forward)
    program.main.remove_unused()


def _fold_constants(block: BindingBlock, forward: Collection[Binding]) -> None:
    """Evaluate what depends on small constants and known sizes only."""
    block.schedule()
    with emitting(block, share=True):
        for b in [b for b in block.bindings if b not in forward and len(b.outputs) == 1]:
            value = fold(b)
            if value is not None:
                block.replace(b.out, value)
                block.remove(b)


@contextmanager
def _as_inputs(program: Program, variables: Iterable[Var]) -> Iterator[None]:
    """While this lasts, initializers among `variables` are no constants."""
    hidden = [v for v in variables if v.initializer is not None and not v.parameter]
    before = program.ir_version
    program.ir_version = max(before, 4)
    for v in hidden:
        v.parameter = True
    try:
        yield
    finally:
        program.ir_version = before
        for v in hidden:
            v.parameter = False


def _reads_of_expand(block: BindingBlock) -> int:
    return sum(b.op == "Expand" and b.out.use_count for b in block.walk())


def _scatters_into_zeros(block: BindingBlock) -> int:
    scatters = (b.inputs[0] for b in block.walk() if b.op in ("ScatterND", "ScatterElements"))
    return sum(v is not None and _is_zero(v) for v in scatters)


def _last_axis_of_products(block: BindingBlock) -> int:
    transposes = (b for b in block.walk() if b.op == "Transpose" and _moves_last(attribute(b, "perm")))
    made = (None if b.inputs[0] is None else b.inputs[0].definition for b in transposes)
    return sum(m is not None and m.op == "MatMul" for m in made)


READS_OF_EXPAND = Measure("operands that are Expands", _reads_of_expand)
SCATTERS_INTO_ZEROS = Measure("scatters into zeros", _scatters_into_zeros)
LAST_AXIS_OF_PRODUCTS = Measure("transposes of products that move the last axis", _last_axis_of_products)


def _fills(out: Var, *operands: Var) -> bool:
    """The operands broadcast to the shape of `out` among themselves."""
    return same_shape(broadcast_shapes([v.shape for v in operands]), out.shape)


@rewrite(P.any_of("Add", "Mul")(P.Expand(a, s), b), shrinks=READS_OF_EXPAND)
def commuting_with_expand(a: Var, b: Var, root: Binding) -> Any:
    """f(Expand(a, s), b) = f(a, b), f broadcasting, where b has the shape already"""
    return getattr(op, root.op)(a, b) if _fills(root.out, a, b) else None


@rewrite(P.any_of("Sub", "Div")(P.Expand(a, s), b), shrinks=READS_OF_EXPAND)
def left_of_expand(a: Var, b: Var, root: Binding) -> Any:
    """Expand(a, s) - b = a - b, where b has the shape already"""
    return getattr(op, root.op)(a, b) if _fills(root.out, a, b) else None


@rewrite(P.any_of("Sub", "Div")(a, P.Expand(b, s)), shrinks=READS_OF_EXPAND)
def right_of_expand(a: Var, b: Var, root: Binding) -> Any:
    """a - Expand(b, s) = a - b, where a has the shape already"""
    return getattr(op, root.op)(a, b) if _fills(root.out, a, b) else None


@rewrite(P.Where(c, P.Expand(a, s), b), shrinks=READS_OF_EXPAND)
def where_of_expand(a: Var, b: Var, c: Var, root: Binding) -> Any:
    """Where(c, Expand(a, s), b) = Where(c, a, b), where c and b have the shape already"""
    return op.Where(c, a, b) if _fills(root.out, a, b, c) else None


@rewrite(P.Mul(a, P.Div(c, b).only), shrinks=count())
def times_reciprocal(a: Var, b: Var, c: Var, root: Binding) -> Any:
    """a (1 / b) = a / b"""
    return a / b if _scalar(c) == 1 and same_shape(broadcast_shapes([a.shape, b.shape]), root.out.shape) else None


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
    """a + Scatter(0, i, u) = Scatter(a, i, u), scattering being addition"""
    for i, v in enumerate(x):
        made = v.definition
        if made is None or made.op not in ("ScatterND", "ScatterElements") or made.domain or v.use_count != 1:
            continue
        zeros, rest = made.inputs[0], [other for k, other in enumerate(x) if k != i]
        if made.attr("reduction") != "add" or zeros is None or not _is_zero(zeros):
            continue
        if not rest or not all(same_shape(o.shape, root.out.shape) for o in rest):
            continue
        base = add_up(rest)
        axis = made.attr("axis") if made.op == "ScatterElements" else None
        return getattr(op, made.op)(base, *made.inputs[1:], axis=axis, reduction="add")
    return None


@rewrite(P.Add(a, P.Neg(b).only), shrinks=count())
def add_of_neg(a: Var, b: Var) -> Any:
    """a + -b = a - b"""
    return a - b


@rewrite(P.Sub(a, P.Neg(b).only), shrinks=count())
def sub_of_neg(a: Var, b: Var) -> Any:
    """a - -b = a + b"""
    return a + b


@rewrite(P.Neg(P.Neg(a).only), shrinks=count())
def neg_of_neg(a: Var) -> Any:
    """--a = a"""
    return a


@rewrite(P.Neg(P.Sub(a, b).only), shrinks=count())
def neg_of_sub(a: Var, b: Var) -> Any:
    """-(a - b) = b - a"""
    return b - a


def _scalar(v: Var) -> Any:
    """The value of a constant of one element that broadcasting cannot widen by; None for anything else."""
    if v.shape not in ((), (1,)) or not v.is_constant:
        return None
    array = v.const
    return None if array is None else array.reshape(())


@rewrite(P.Mul(P.Mul(a, c).only, d), shrinks=count())
def mul_by_two_numbers(a: Var, c: Var, d: Var) -> Any:
    """(a c) d = a (c d) for numbers c and d"""
    p, q = _scalar(c), _scalar(d)
    return None if p is None or q is None or not a.rank else a * np.asarray(p * q)


@rewrite(P.Mul(P.Mul(a, c).only, P.Mul(b, d).only), shrinks=count())
def numbers_of_a_product(a: Var, b: Var, c: Var, d: Var) -> Any:
    """(a c) (b d) = (a b) (c d) for numbers c and d"""
    p, q = _scalar(c), _scalar(d)
    if p is None or q is None or not a.rank or not b.rank:
        return None
    return (a * b) * np.asarray(p * q)


@rewrite(P.Mul(a, c.where(lambda v: v.is_constant and v.shape == ())), shrinks=count())
def times_one(a: Var, c: Var, root: Binding) -> Any:
    """a 1 = a"""
    return a if _scalar(c) == 1 and not root.out.returned else None


@rewrite(P.Mul(a, P.Neg(b).only), shrinks=count("Neg"))
def mul_of_neg_number(a: Var, b: Var) -> Any:
    """a (-b) = a c, where b is a number and c the opposite number"""
    p = _scalar(b)
    return None if p is None else a * np.asarray(-p)


@rewrite(P.Mul(P.Neg(a).only, c), shrinks=count("Neg"))
def neg_times_number(a: Var, c: Var) -> Any:
    """(-a) c = a (-c) for a number c"""
    p = _scalar(c)
    return None if p is None else a * np.asarray(-p)


@rewrite(P.Neg(P.Mul(a, c).only), shrinks=count("Neg"))
def neg_of_product_with_number(a: Var, c: Var) -> Any:
    """-(a c) = a (-c) for a number c"""
    p = _scalar(c)
    return None if p is None else a * np.asarray(-p)


@rewrite(P.Div(P.Mul(a, c).only, d), shrinks=count())
def product_over_number(a: Var, c: Var, d: Var) -> Any:
    """(a c) / d = a (c / d) for numbers c and d"""
    p, q = _scalar(c), _scalar(d)
    return None if p is None or not q or not a.rank else a * np.asarray(p / q)


@rewrite(P.any_of("Sum", "Add")(Each(x)), shrinks=count("Mul"))
def common_factor(x: list[Var], root: Binding) -> Any:
    """a b + (a c) d = a (b + c d): one product less for each further factor a"""
    products = _products(x, root)
    times: dict[Var, int] = {}
    for m in products:
        for v in m.inputs:
            if v is not None and same_shape(v.shape, root.out.shape) and v.definition not in products:
                times[v] = times.get(v, 0) + 1
    for factor, n in times.items():
        if n < 2:
            continue
        stripped: dict[Var, Var] = {}
        if all(_strip(v, factor, products, stripped) for v in x):
            terms = [stripped[v] for v in x]
            return factor * (op.Sum(*terms) if root.op == "Sum" else terms[0] + terms[1])
    return None


def _products(terms: list[Var], root: Binding) -> set[Binding]:
    """The Muls below `root` that nothing outside reads and that have its shape, in reach through such Muls."""
    found: dict[Binding, None] = {}
    work = list(terms)
    while work:
        m = work.pop().definition
        fits = m is not None and m.is_op("Mul") and not m.out.returned and same_shape(m.out.shape, root.out.shape)
        if m is not None and fits and m not in found and len(found) < _LONGEST:
            found[m] = None
            work += [v for v in m.inputs if v is not None]
    inside = set(found)
    while outside := {m for m in inside if any(u is not root and u not in inside for u in m.out.users)}:
        inside -= outside
    return inside


# Muls looked at for one sum
_LONGEST = 24


def _strip(v: Var, factor: Var, products: set[Binding], stripped: dict[Var, Var]) -> bool:
    """Put v / factor into `stripped`; False when `factor` is not exactly once in v, or is v."""
    if v in stripped:
        return True
    m = v.definition
    if m is None or m not in products:
        return False
    p, q = m.inputs[0], m.inputs[1]
    if p is None or q is None:
        return False
    for one, other in ((p, q), (q, p)):
        if one is factor:
            stripped[v] = other
            return other is not factor
        if _strip(one, factor, products, stripped):
            stripped[v] = stripped[one] * other
            return True
    return False


@rewrite(P.any_of("Sum", "Add")(Each(x)), shrinks=count("Sum", "Add"))
def sum_of_sums(x: list[Var], root: Binding) -> Any:
    """Sum(Sum(a, b), c) = Sum(a, b, c): the inner one with no other reader, equal shapes"""
    if root.out.dtype not in FLOAT_DTYPES:
        return None  # Sum, unlike Add, takes no integers
    flat: list[Var] = []
    for v in x:
        inner = v.definition
        opened = inner is not None and inner.op in ("Sum", "Add") and v.use_count == 1 and inner.domain == ""
        if inner is not None and opened and all(u is not None and same_shape(u.shape, v.shape) for u in inner.inputs):
            flat += [u for u in inner.inputs if u is not None]
        else:
            flat.append(v)
    if len(flat) == len(x) or not all(same_shape(v.shape, root.out.shape) for v in flat):
        return None
    return op.Sum(*flat)


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
    """Concat(T(a), T(b)) = T(Concat(a, b)), for one permutation (SPEC S5)"""
    if len(x) < 2 or d[0] is None or any(list(p) != list(d[0]) for p in d[1:]):
        return None
    return op.Transpose(op.Concat(*x, axis=d[0][c % len(d[0])]), perm=d[0])


TRANSPOSES = [transpose_in_order, transpose_of_transpose, transpose_of_matmul, *GEMM_RULES]

RULES = [
    times_reciprocal,
    sum_with_scattered,
    sum_of_reshapes,
    reshape_back,
    concat_of_reshapes,
    stack,
    transpose_of_product_of_transpose,
    concat_of_transposes,
    commuting_with_expand,
    left_of_expand,
    right_of_expand,
    where_of_expand,
    add_of_neg,
    sub_of_neg,
    neg_of_neg,
    neg_of_sub,
    times_one,
    mul_by_two_numbers,
    product_over_number,
    common_factor,
    numbers_of_a_product,
    mul_of_neg_number,
    neg_times_number,
    neg_of_product_with_number,
    sum_of_sums,
    sum_of_tiles,
    add_of_tiles,
]
