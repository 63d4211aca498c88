"""Axes of size 1: whether they have that size for any size of the inputs.

A fixed axis of size 1 that meets an open size of 1 may broadcast, or may be as long as that size.
"""

from __future__ import annotations

from collections.abc import Callable

from onnxgrad.batching.along_axes import UNARY
from onnxgrad.batching.registry import names
from onnxgrad.ir.axis_maps import axes, named_axes
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.domains import BROADCASTING, REDUCTIONS
from onnxgrad.ir.var import Var

_MOST = 40  # nodes on the way to the node that makes the axis
_ALIKE = {op for _, op in names(f"{UNARY} CastLike {' '.join(BROADCASTING)} Softmax LogSoftmax")}
_POOLS = frozenset({"GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"})
_KEPT = frozenset({*REDUCTIONS, "ArgMax", "ArgMin"})


def always_one(v: Var | None, axis: int, left: int = _MOST) -> bool:
    """Whether axis `axis` of a value, which is 1, is 1 at all sizes of the inputs."""
    d = None if v is None else v.definition
    if v is None or d is None or d.domain or not left:
        return False
    rule = _RULES.get(d.op)
    return rule is not None and rule(d, axis, left - 1)


def _carried(d: Binding, axis: int, left: int) -> bool:
    """An axis of the result is 1 if all axes of operands that it comes from are."""
    places = [
        (x, i)
        for k, x in enumerate(d.inputs)
        for i, a in enumerate(axes(d, k) or ())
        if a is not None and a.to == axis
    ]
    return all(always_one(x, i, left) for x, i in places)


def _reduced(d: Binding, axis: int, left: int) -> bool:
    if not d.attr("keepdims", 1):
        return False
    rank = max(d.out.rank or 1, 1)
    return axis in (named_axes(d, rank) or ()) or always_one(d.inputs[0], axis, left)


def _unsqueezed(d: Binding, axis: int, left: int) -> bool:
    made = named_axes(d, d.out.rank or 1)
    if made is None:
        return False
    return axis in made or always_one(d.inputs[0], axis - sum(a < axis for a in made), left)


def _convolved(d: Binding, axis: int, left: int) -> bool:
    """Channels have the size of the weights, and one position stays one without pads."""
    if axis == 1:
        return True
    weight = d.inputs[1]
    kernel = d.attr("kernel_shape") or ((weight and weight.shape) or ())[2:]
    plain = not any(d.attr("pads") or ()) and all(k == 1 for k in kernel)
    return axis > 1 and plain and always_one(d.inputs[0], axis, left)


def _product(d: Binding, axis: int, left: int) -> bool:
    """The columns of a product have the size of a constant weight."""
    weight = d.inputs[1]
    last = axis == (d.out.rank or 0) - 1
    return last and weight is not None and weight.is_constant


_RULES: dict[str, Callable[[Binding, int, int], bool]] = {
    **dict.fromkeys((*_ALIKE, "Transpose"), _carried),
    **dict.fromkeys(_KEPT, _reduced),
    **dict.fromkeys(_POOLS, lambda d, axis, left: axis > 1),
    "Unsqueeze": _unsqueezed,
    "Conv": _convolved,
    "MatMul": _product,
    "Gemm": _product,
}
