"""Rules in place for elementwise operators, which follow broadcasting, and for products, which keep
the rows on an axis that they do not contract.
"""

from __future__ import annotations

from collections.abc import Sequence

from onnxgrad.batching.layout import Dependent, Layout, Refused, Size
from onnxgrad.batching.registry import in_place
from onnxgrad.batching.site import Site
from onnxgrad.ir.axis_maps import einsum_indices
from onnxgrad.ir.domains import BROADCASTING
from onnxgrad.ir.ops import op
from onnxgrad.ir.sizes import product


@in_place("CastLike")
def cast_like(at: Site) -> list[Layout | None]:
    """Only the dtype of the second operand matters."""
    x, like = at.operands[0], at.operands[1]
    if x is None or like is None or not like.dtype or like.dtype in range(17, 21):
        raise Refused("its dtype is not known")
    at.replaced = [(op.Cast(x, to=like.dtype), at.at(0))]
    return []


@in_place("QuantizeLinear DequantizeLinear")
def quantization(at: Site) -> Layout:
    """Rows keep their axis unless the scales lie along it."""
    layout, scale = at.only_first(), at.rank(1)
    if scale > 1:
        raise Refused("its scales stand in blocks")
    if scale == 1 and at.sizes(1) != (1,) and at.axis("axis", 1, at.rank(0)) == layout.axis:
        raise Refused("its scales stand along the rows")
    return layout


@in_place(" ".join(BROADCASTING))
def broadcasting(at: Site) -> Layout:
    """The rows of all operands meet on one axis of the result."""
    if at.op != "PRelu":
        check_broadcasting(at)
    if at.op == "PRelu" and at.at(0) is None:
        raise Refused("the slope differs from row to row, and its operand does not")
    rank = len(at.result())
    return aligned(at, {k: rank - at.rank(k) for k in at.present()})


def check_broadcasting(at: Site) -> None:
    """Refuses operands of several shapes, or without rows, before the opset that broadcasts."""
    if at.version >= (8 if at.op in ("Max", "Mean", "Min", "Sum") else 7):
        return
    if len({at.sizes(k) for k in at.present()}) > 1 or at.batched() != at.present():
        raise Refused(f"{at.op} does not broadcast in this opset")


def aligned(at: Site, before: dict[int, int], end: int | None = None) -> Layout:
    """Moves the rows of all operands to one axis of the result. `before`: the number of axes of the
    result in front of each operand; `end`: rows must be before this axis.
    """
    spots = [_spot(at, k, before[k]) for k in at.batched()]
    wanted, size = next((spot for spot in spots if spot[1] != 1), spots[0])
    if end is not None and wanted.axis >= end:
        raise Refused("rows stand on an axis of the matrices")
    for k in before:
        place = Layout(wanted.axis - before[k], wanted.outer)
        if at.at(k) is None:
            _shared(at, k, place)
            continue
        if place.axis < 0 or at.sizes(k)[place.axis] != size or not at.moved(k, place):
            raise Refused("rows stand on two axes")
    return wanted


def _spot(at: Site, k: int, before: int) -> tuple[Layout, Size]:
    layout = at.at(k)
    if layout is None:
        raise Refused(f"operand {k} is shared")
    return Layout(layout.axis + before, layout.outer), at.sizes(k)[layout.axis]


def _shared(at: Site, k: int, place: Layout) -> None:
    """Checks that a shared operand broadcasts along the rows: its size there must be 1."""
    if place.axis >= 0 and at.count > 1 and at.sizes(k)[place.axis] not in (1, at.count):
        at.tile(k, place)  # rows beside others on the axis
        return
    if place.axis >= 0 and at.sizes(k)[place.axis] == at.count:
        at.of_one_row(k, place.axis)
    if place.axis >= 0 and at.sizes(k)[place.axis] != 1:
        raise Refused("a shared operand has several elements along the rows")


@in_place("MatMul")
def matmul(at: Site) -> Layout:
    """Rows stay on a leading axis, or on an axis of a matrix that is not contracted."""
    ranks, rank = (at.rank(0), at.rank(1)), len(at.result())
    if min(ranks) < 2:
        raise Refused("one operand is a vector")
    a, b = at.at(0), at.at(1)
    if b is None and a is not None and a.axis == ranks[0] - 2:
        return Layout(rank - 2, a.outer)
    if a is None and b is not None and b.axis == ranks[1] - 1:
        return Layout(rank - 1, b.outer)
    for k in at.batched():
        _off_the_matrix(at, k)
    return aligned(at, {k: rank - ranks[k] for k in (0, 1)}, rank - 2)


def _off_the_matrix(at: Site, k: int) -> None:
    """Moves rows on the first axis of a matrix to a leading axis of size 1."""
    layout, rank = at.at(k), at.rank(k)
    if layout is not None and layout.axis == rank - 2 and rank > 2 and at.sizes(k)[rank - 3] == 1:
        at.moved(k, Layout(rank - 3))


@in_place("Gemm")
def gemm(at: Site) -> Layout:
    """Rows stay on an axis of one matrix that is not contracted."""
    a, b = at.at(0), at.at(1)
    if (a is None) == (b is None):
        raise Refused("rows in both matrices, or in the bias alone")
    k, kept = (0, int(bool(at.attr("transA")))) if a else (1, 1 - int(bool(at.attr("transB"))))
    layout = a or b
    if layout is None or layout.axis != kept:
        raise Refused("it contracts the rows")
    return _with_bias(at, Layout(k, layout.outer))


def _with_bias(at: Site, layout: Layout) -> Layout:
    if at.operand(2) is None:
        return layout
    place = Layout(layout.axis - (2 - at.rank(2)), layout.outer)
    if at.at(2) is None:
        _shared(at, 2, place)
    elif at.at(2) != place or at.in_file(at.operand(2))[place.axis] != at.result()[layout.axis]:
        raise Refused("the bias has its rows elsewhere")
    return layout


def indices_of(at: Site) -> tuple[list[str], str]:
    """Returns the indices of each operand of an Einsum, and those of its result, without ellipsis.
    Raises Refused if a rank is unknown.
    """
    return einsum_indices(str(at.attr("equation")), [at.rank(k) for k in at.present()])


@in_place("Einsum")
def einsum(at: Site) -> Layout:
    """Rows stay on an index of the result, in every operand that has it; shared ones repeat."""
    terms, right = indices_of(at)
    found = {
        (terms[k][layout.axis], layout.outer, at.sizes(k)[layout.axis]) for k, layout in _placed(at)
    }
    if len(found) != 1:
        raise Refused("rows stand on two indices")
    ((index, outer, size),) = found
    if index not in right or any(term.count(index) > 1 for term in terms):
        raise Refused(f"it contracts index {index}, on which the rows stand")
    for k, term in enumerate(terms):
        if index in term and at.at(k) is None:
            if at.sizes(k)[term.index(index)] not in (size, product((size, at.count))):
                raise Refused("a shared operand repeats along the index of the rows")
            at.tile(k, Layout(term.index(index), outer))
    return Layout(right.index(index), outer)


def _placed(at: Site) -> Sequence[tuple[int, Layout]]:
    found = ((k, at.at(k)) for k in at.batched())
    return [(k, layout) for k, layout in found if layout is not None]


DEPENDENT = {
    "DynamicQuantizeLinear": "one scale for all rows",
    "ms:DynamicQuantizeLSTM": "one scale for all rows",
    "ms:DynamicQuantizeMatMul": "one scale for all rows",
    "NonZero": "a result whose size depends on values",
    "Compress": "a result whose size depends on values",
    "Unique": "a result whose size depends on values",
    "NonMaxSuppression": "a result whose size depends on values",
}


@in_place(" ".join(DEPENDENT))
def dependent(at: Site) -> Layout:
    """Refuses an operator whose rows depend on each other."""
    key = at.op if at.binding.domain == "" else f"ms:{at.op}"
    raise Dependent(f"{at.op} has {DEPENDENT[key]}")
