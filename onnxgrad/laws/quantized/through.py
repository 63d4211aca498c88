"""Laws by which operators that move or compare quantized values work on the integers, each equal to
the bit.

D is DequantizeLinear and Q is QuantizeLinear, of 8 bits, with one constant scale s > 0 and zero
point z. Both are monotonic. Q(D(x)) with equal s and z is x, because (x - z) s / s lies within two
roundings of x - z.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.domains import MOVES
from onnxgrad.ir.emission.emit import constant
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import numpy_dtype
from onnxgrad.ir.var import Var
from onnxgrad.laws.fold_scale_axis.scale import again
from onnxgrad.laws.quantized.forms import LIMITS
from onnxgrad.laws.quantized.scaled import Scaled, dequantized, quantized, to_integer
from onnxgrad.rewrite.pattern import Each, P, capture
from onnxgrad.rewrite.trace import decline, decline_if
from onnxgrad.rewrite.worklist import Rule, count, rewrite

x, v = capture("x v")
rest = Each(capture("rest").maybe)

_MOVES = tuple(op for op in MOVES if op not in ("Identity", "Split"))
# MaxPool, Max and Clip of 8-bit integers
_ORDERS_SINCE = 12


def _again(y: Var, like: Scaled) -> Var:
    """Returns D(y) with the scale and zero point of `like`."""
    return op.DequantizeLinear(y, like.scale, like.zero)


def _alone(d: Var, root: Binding) -> None:
    """Raises Decline if the D would stay, or is outside of the loop or branch of `root`."""
    decline_if(
        d.sole_user() is not root or d.block is not root.block,
        f"{d.name} is read elsewhere as well",
    )


def _integer(value: int, like: Scaled) -> Var:
    return constant(np.array(value, numpy_dtype(like.dtype)), name="bound")


@rewrite(P.QuantizeLinear(x, rest), shrinks=count("QuantizeLinear"))
def quantize_of_dequantize(root: Binding) -> Any:
    """Q(D(x)) = x, of equal scales and zero points"""
    to, given = quantized(root), dequantized(root.inputs[0])
    if to is None or given is None:
        return None
    return given.value if given.like(to) else decline("the scales or zero points differ")


@rewrite(P.any_of(*_MOVES)(x, rest))
def move_of_dequantize(root: Binding) -> Any:
    """f(D(x)) = D(f(x)), where f moves values: Reshape, Transpose, Slice, Gather, ..."""
    given = dequantized(root.inputs[0])
    if given is None or root.inputs[0] is None or not given.single:
        return None
    _alone(root.inputs[0], root)
    return _again(again(root, [given.value, *root.inputs[1:]]), given)


@rewrite(P.Concat(Each(v)), shrinks=count("DequantizeLinear"))
def concat_of_dequantize(v: list[Var], root: Binding) -> Any:
    """Concat(D(x), D(y), ...) = D(Concat(x, y, ...)), of equal scales and zero points"""
    found = [dequantized(one) for one in v]
    given = [f for f in found if f is not None]
    if not given or len(set(v)) < 2:
        return None
    decline_if(
        len(given) < len(found) or not all(f.like(given[0]) for f in given),
        "not all are of the same scale and zero point",
    )
    for one in v:
        decline_if(
            one.returned or set(one.users) != {root}, f"{one.name} is read elsewhere as well"
        )
    return _again(again(root, [f.value for f in given]), given[0])


@rewrite(P.Pad(x, rest))
def pad_of_dequantize(root: Binding) -> Any:
    """Pad(D(x)) = D(Pad(x)), zeros by the zero point"""
    given, value = dequantized(root.inputs[0]), root.operand(2)
    if given is None or root.inputs[0] is None or not given.single or root.version < 13:
        return None
    _alone(root.inputs[0], root)
    operands = [given.value, *root.inputs[1:2]]
    if root.attr("mode") == "constant":
        number = 0.0 if value is None else None if value.const is None else value.const.item()
        decline_if(number != 0, "the padding is not zero")
        operands.append(_integer(given.at, given))
    elif root.operand(3) is not None:
        operands.append(None)
    return _again(again(root, [*operands, *root.inputs[3:]]), given)


@rewrite(P.MaxPool(x))
def maxpool_of_dequantize(root: Binding) -> Any:
    """MaxPool(D(x)) = D(MaxPool(x)), for D never falls"""
    given = dequantized(root.inputs[0])
    if given is None or root.inputs[0] is None or not given.single or root.version < _ORDERS_SINCE:
        return None
    _alone(root.inputs[0], root)
    decline_if(
        len(root.outputs) > 1 or root.attr("ceil_mode") or {*root.attr("dilations", ())} - {1},
        "a window may hold padding only, or the places of maxima are read",
    )
    return _again(again(root, [given.value]), given)


@rewrite(P.Relu(x))
def relu_of_dequantize(root: Binding) -> Any:
    """Relu(D(x)) = D(max(x, z))"""
    given = dequantized(root.inputs[0])
    if given is None or root.inputs[0] is None or not given.single or root.version < _ORDERS_SINCE:
        return None
    if given.at == LIMITS[given.dtype][0]:
        return root.inputs[0]  # there is nothing below z
    _alone(root.inputs[0], root)
    return _again(op.Max(given.value, _integer(given.at, given)), given)


def bounds_of(between: Binding, to: Scaled) -> tuple[int, int]:
    """Returns the integers of `to` between which a Relu or Clip limits its result: Q of its bounds.
    Raises Decline if the bounds are not constant or not in order.
    """
    decline_if(between.version < _ORDERS_SINCE, "before opset 12 integers have no Max and no Clip")
    if between.op == "Relu":
        return to.at, LIMITS[to.dtype][1]
    ends = [between.operand(i) for i in (1, 2)]
    arrays = [f if e is None else e.const for e, f in zip(ends, (-np.inf, np.inf), strict=True)]
    low, high = (None if n is None else float(np.asarray(n).item()) for n in arrays)
    if low is None or high is None or not low <= high:
        raise decline("the bounds are not constant, or not in order")
    return to_integer(low, to), to_integer(high, to)


def held(y: Var, bounds: tuple[int, int], to: Scaled) -> Var:
    """Returns the integers y limited to the bounds, or y itself if the bounds are the limits of the
    dtype.
    """
    if bounds == LIMITS[to.dtype]:
        return y
    return op.Clip(y, *(_integer(n, to) for n in bounds))


@rewrite(
    P.QuantizeLinear(
        P.any_of("Relu", "Clip")(v, Each(capture("ends").maybe)).only.named("between"), rest
    ),
    shrinks=count("Relu", "Clip", "QuantizeLinear"),
)
def quantize_of_bounded(v: Var, between: Binding, root: Binding) -> Any:
    """Q(Clip(v, low, high)) = Clip(Q(v), Q(low), Q(high)), for Q never falls; Relu likewise; Q(v)
    where Q saturates there by itself
    """
    to, given = quantized(root), dequantized(v)
    if to is None or not to.single:
        return None
    bounds = bounds_of(between, to)
    if given is not None and given.like(to):
        return held(given.value, bounds, to)
    decline_if(
        bounds != LIMITS[to.dtype],
        "the bounds are not the limits of the integers, and a product may hold them",
    )
    return again(root, [v, *root.inputs[1:]])


THROUGH: list[Rule] = [
    quantize_of_dequantize,
    move_of_dequantize,
    concat_of_dequantize,
    pad_of_dequantize,
    maxpool_of_dequantize,
    relu_of_dequantize,
    quantize_of_bounded,
]
