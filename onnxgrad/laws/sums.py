"""Simplifies sums: nested sums, a common factor of all terms, terms that do not overlap or were
scattered.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import FLOAT_DTYPES, same_shape
from onnxgrad.ir.var import Var
from onnxgrad.laws.constant_values import filling
from onnxgrad.rewrite.pattern import Each, P, capture
from onnxgrad.rewrite.worklist import Measure, count, rewrite

a, b, s, x = capture("a b s x")


@rewrite(P.any_of("Sum", "Add")(Each(x)), shrinks=count("Mul"))
def common_factor(x: list[Var], root: Binding) -> Any:
    """a b + (a c) d = a (b + c d): one product less for each further factor a"""
    products = _products(x, root)
    times: dict[Var, int] = {}
    for m in products:
        for v in m.inputs:
            if (
                v is not None
                and same_shape(v.shape, root.out.shape)
                and v.definition not in products
            ):
                times[v] = times.get(v, 0) + 1
    for factor, n in times.items():
        if n < 2:
            continue
        stripped: dict[Var, Var | None] = {}
        if all(_strip(v, factor, products, stripped) for v in x):
            terms: list[Any] = [stripped[v] for v in x]
            return factor * (op.Sum(*terms) if root.op == "Sum" else terms[0] + terms[1])
    return None


def _products(terms: list[Var], root: Binding) -> dict[Binding, None]:
    """The Muls that compute the terms of `root`, directly or through other such Muls. They have the
    shape of `root` and no readers outside. Their order depends on the graph only.
    """
    found: dict[Binding, None] = {}
    work = list(terms)
    while work:
        m = work.pop().definition
        fits = (
            m is not None
            and m.is_op("Mul")
            and not m.out.returned
            and same_shape(m.out.shape, root.out.shape)
        )
        if m is not None and fits and m not in found and len(found) < _LONGEST:
            found[m] = None
            work += [v for v in m.inputs if v is not None]
    while outside := [
        m for m in found if any(u is not root and u not in found for u in m.out.users)
    ]:
        for m in outside:
            del found[m]
    return found


# the most Muls that are visited for one sum
_LONGEST = 24


def _strip(
    v: Var, factor: Var, products: Collection[Binding], stripped: dict[Var, Var | None]
) -> bool:
    """Puts v / factor into `stripped`. Returns false, and puts None there, unless v is a product
    with `factor` in it exactly once.
    """
    if v not in stripped:
        stripped[v] = _without(v, factor, products, stripped)
    return stripped[v] is not None


def _without(
    v: Var, factor: Var, products: Collection[Binding], stripped: dict[Var, Var | None]
) -> Any:
    m = v.definition
    if m is None or m not in products:
        return None
    p, q = m.inputs[0], m.inputs[1]
    if p is None or q is None:
        return None
    for one, other in ((p, q), (q, p)):
        if one is factor:
            return other if other is not factor else None
        if _strip(one, factor, products, stripped):
            return stripped[one] * other
    return None


@rewrite(P.any_of("Sum", "Add")(Each(x)), shrinks=count("Sum", "Add"))
def sum_of_sums(x: list[Var], root: Binding) -> Any:
    """Sum(Sum(a, b), c) = Sum(a, b, c): the inner one with no other reader, equal shapes"""
    if root.out.dtype not in FLOAT_DTYPES:
        return None  # Sum, unlike Add, accepts no integers
    flat: list[Var] = []
    for v in x:
        inner = v.definition
        opened = (
            inner is not None
            and inner.op in ("Sum", "Add")
            and v.use_count == 1
            and inner.domain == ""
        )
        if (
            inner is not None
            and opened
            and all(u is not None and same_shape(u.shape, v.shape) for u in inner.inputs)
        ):
            flat += [u for u in inner.inputs if u is not None]
        else:
            flat.append(v)
    if len(flat) == len(x) or not all(same_shape(v.shape, root.out.shape) for v in flat):
        return None
    return op.Sum(*flat)


SCATTERS_INTO_ZEROS = Measure(
    "scatters into zeros",
    lambda block: sum(
        b.op in ("ScatterND", "ScatterElements")
        and b.inputs[0] is not None
        and _is_zero(b.inputs[0])
        for b in block.walk()
    ),
)


def _is_zero(v: Var) -> bool:
    """Whether `v` consists of zeros: a constant or the result of ConstantOfShape."""
    made = v.definition
    fills = made is not None and made.is_op("ConstantOfShape") and not made.has_refs
    array = filling(made) if made is not None and fills else v.const
    return array is not None and array.dtype != object and not array.any()


@rewrite(P.any_of("Sum", "Add")(Each(x)), shrinks=SCATTERS_INTO_ZEROS)
def sum_with_scattered(x: list[Var], root: Binding) -> Any:
    """a + Scatter(0, i, u) = Scatter(a, i, u), scattering being addition; a + Reshape(Scatter(0, i,
    u), s) = Reshape(Scatter(Reshape(a, -1), i, u), s) where the scattered is a vector
    """
    for k, v in enumerate(x):
        reshape = (
            v.definition if v.definition is not None and v.definition.is_op("Reshape") else None
        )
        scattered = v if reshape is None else reshape.inputs[0] if v.use_count == 1 else None
        scatter = None if scattered is None else _adds_to_zeros(scattered)
        if scattered is None or scatter is None or (reshape is not None and scattered.rank != 1):
            continue
        rest = [*x[:k], *x[k + 1 :]]
        if not rest or not all(same_shape(a.shape, root.out.shape) for a in rest):
            continue
        if reshape is None:
            return _scatter(scatter, add_up(rest))
        summed = _scatter(scatter, op.Reshape(add_up(rest), [-1]))
        return op.Reshape(summed, reshape.inputs[1], allowzero=reshape.attr("allowzero"))
    return None


def _adds_to_zeros(v: Var) -> Binding | None:
    """The binding that computes `v` by adding updates to zeros, if nothing else reads `v`."""
    scatter = v.definition
    if (
        scatter is None
        or scatter.domain
        or scatter.op not in ("ScatterND", "ScatterElements")
        or v.use_count != 1
    ):
        return None
    data = scatter.inputs[0]
    return (
        scatter
        if scatter.attr("reduction") == "add" and data is not None and _is_zero(data)
        else None
    )


def _scatter(scatter: Binding, data: Var) -> Var:
    """Emits a scatter of the same updates that adds to `data`."""
    axis = scatter.attr("axis") if scatter.op == "ScatterElements" else None
    summed: Var = getattr(op, scatter.op)(data, *scatter.inputs[1:], axis=axis, reduction="add")
    return summed


@rewrite(P.Sum(Each(x)), shrinks=count("Pad"))
def sum_of_tiles(x: list[Var], root: Binding) -> Any:
    """Pad(a, after) + Pad(b, before) = Concat(a, b), where each is zero exactly where the other
    is not
    """
    return _joined(x)


@rewrite(P.Add(a, b), shrinks=count("Pad"))
def add_of_tiles(a: Var, b: Var, root: Binding) -> Any:
    """Pad(a, after) + Pad(b, before) = Concat(a, b), where each is zero exactly where the other
    is not
    """
    return _joined([a, b])


def _joined(values: list[Var]) -> Any:
    """The sum, with Pads that tile one axis joined by a Concat; None if they do not tile it."""
    tiles: dict[tuple[int, int], list[tuple[int, Var, Var]]] = {}
    for v in values:
        found = _tile(v)
        if found is not None:
            axis, size, before, inner = found
            tiles.setdefault((axis, size), []).append((before, inner, v))
    for (axis, size), parts in tiles.items():
        parts.sort(key=lambda part: part[0])
        ends = [before + (inner.shape or ())[axis] for before, inner, _ in parts]  # type: ignore[operator]  # ints, see _tile
        if (
            [before for before, _, _ in parts] != [0, *ends[:-1]]
            or ends[-1] != size
            or len(parts) < 2
        ):
            continue
        whole = op.Concat(*(inner for _, inner, _ in parts), axis=axis)
        rest = [v for v in values if all(v is not part for _, _, part in parts)]
        return add_up([whole, *rest])
    return None


def _tile(v: Var) -> tuple[int, int, int, Var] | None:
    """(axis, padded size, zeros before, part) of a Pad by zeros along one axis that nothing else
    reads; None for anything else.
    """
    made = v.definition
    if made is None or not made.is_op("Pad") or v.use_count != 1 or made.operand(2) is not None:
        return None
    inner, pads, axes = made.inputs[0], made.inputs[1], made.operand(3)
    ints = None if pads is None else pads.ints
    if inner is None or inner.shape is None or ints is None or made.attr("mode") != "constant":
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
    return op.Reshape(add_up(x), s[0], allowzero=zeros.pop() or None)


def add_up(contributions: Sequence[Var]) -> Var:
    """Emits the sum of `contributions`, such as those to one adjoint."""
    first, *others = contributions
    if len(others) > 1:
        return op.Sum(*contributions)
    if others and others[0] is first:
        return first * 2.0  # which a number or a product in `first` can take up
    return first + others[0] if others else first
