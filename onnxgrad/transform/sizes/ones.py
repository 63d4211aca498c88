"""Axes of size 1: whether they have that size for any size of the inputs.

A fixed axis of size 1 that meets an open size of 1 may broadcast, or may be as long as that size.
"""

from __future__ import annotations

from collections.abc import Callable

from onnxgrad.batching.along_axes import UNARY
from onnxgrad.batching.registry import names
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


def _alike(d: Binding, axis: int, left: int) -> bool:
    """An elementwise result has an axis of 1 if all operands with that axis have one."""
    back = (d.out.rank or 0) - axis
    places = [(x, x.rank - back) for x in d.inputs if x is not None and x.rank]
    return all(always_one(x, a, left) for x, a in places if a >= 0)


def _reduced(d: Binding, axis: int, left: int) -> bool:
    axes = d.inputs[1].ints if len(d.inputs) > 1 and d.inputs[1] is not None else d.attr("axes")
    if d.op.startswith("Arg"):
        axes = (d.attr("axis", 0),)
    rank = max(d.out.rank or 1, 1)
    if not d.attr("keepdims", 1):
        return False
    own = axes is None or axis in [a % rank for a in axes]
    return own or always_one(d.inputs[0], axis, left)


def _unsqueezed(d: Binding, axis: int, left: int) -> bool:
    axes = d.inputs[1].ints if len(d.inputs) > 1 and d.inputs[1] is not None else d.attr("axes")
    if axes is None:
        return False
    made = [a % max(d.out.rank or 1, 1) for a in axes]
    return axis in made or always_one(d.inputs[0], axis - sum(a < axis for a in made), left)


def _transposed(d: Binding, axis: int, left: int) -> bool:
    perm = d.attr("perm") or [*range(d.out.rank or 0)][::-1]
    return always_one(d.inputs[0], int(perm[axis]), left)


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
    **dict.fromkeys(_ALIKE, _alike),
    **dict.fromkeys(_KEPT, _reduced),
    **dict.fromkeys(_POOLS, lambda d, axis, left: axis > 1),
    "Unsqueeze": _unsqueezed,
    "Transpose": _transposed,
    "Conv": _convolved,
    "MatMul": _product,
    "Gemm": _product,
}
