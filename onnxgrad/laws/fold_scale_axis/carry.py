"""Operators of one data operand through which a scale passes, on the same or another axis: f(x * s)
= f(x) * s.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from onnxgrad.frozen import frozen
from onnxgrad.ir.axis_maps import RESHAPES, How, axes, carried
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.types import Array
from onnxgrad.ir.var import Var
from onnxgrad.laws.fold_scale_axis.scale import Scale
from onnxgrad.rewrite.trace import decline, decline_if


@frozen
class Carried:
    """The scale on the other side, and the operator's changed parts (Clip's bounds)."""

    scale: Scale
    rest: Sequence[Var | None]
    attrs: dict[str, Any]


def carry(b: Binding, scale: Scale, forward: bool) -> Carried:
    """Returns `scale` of `b`'s operand as a scale of its result if `forward`, else the reverse.
    Declines.
    """
    if b.op == "Clip":
        return _clip(b, scale, forward)
    decline_if(
        b.op in _POSITIVE and not scale.positive,
        f"a factor is not positive, so it does not pass {b.op}",
    )
    decline_if(len([v for v in b.outputs if v is not None]) > 1, f"{b.op} has a second output")
    if b.op == "Pad":
        _fills_with_zero(b)
    axis = scale.axis if scale.axis is None else _axis(b, scale.axis, forward)
    return Carried(scale.at(axis), b.inputs[1:], {})


def carries(b: Binding) -> bool:
    """Whether a scale may pass this operator at all."""
    return b.domain == "" and b.op in {*_POSITIVE, *_LINEAR, "Clip"} and not b.has_refs


def _axis(b: Binding, axis: int, forward: bool) -> int:
    relations, kept = axes(b, 0), carried(b, 0)
    if relations is None or kept is None:
        raise decline(f"{b.op}'s axes or amounts are known only at run time, or a rank is unknown")
    to = kept[axis] if forward else kept.index(axis) if axis in kept else None
    if to is None:
        given = b.operand(1)
        computed = b.op == "Pad" and given is not None and given.ints is None
        decline_if(computed, "Pad's amounts are known only at run time")
        how = next((a.how for a in relations if a is not None and a.how in _WHY), None)
        raise decline(f"{b.op} {_WHY.get(how, 'does not keep the channel axis')}")
    return to


def _fills_with_zero(b: Binding) -> None:
    """Pad(x, fill) * s = Pad(x * s, fill * s): the same Pad if it fills with 0, or nothing."""
    given = b.operand(2)
    value = b.attr("value", 0.0) if given is None else given.const
    decline_if(
        b.attr("mode") == "constant" and (value is None or np.any(value)),
        "Pad fills with a value other than 0",
    )


_POSITIVE = frozenset({"Relu", "LeakyRelu", "PRelu", "MaxPool", "GlobalMaxPool"})
_LINEAR = frozenset({
    *RESHAPES, "AveragePool", "GlobalAveragePool", "Identity", "Neg", "Pad", "ReduceMean",
    "ReduceSum", "Transpose",
})  # fmt: skip


# why a scale does not pass, by the relation of the axes that do not stay
_WHY: dict[How | None, str] = {
    "contracted": "sums over the axis of the scale",
    "offset": "lengthens the axis of the scale",
    "windowed": "mixes the axis of the scale",
}


def _clip(b: Binding, scale: Scale, forward: bool) -> Carried:
    """Clip(x, lo, hi) * s = Clip(x * s, lo * s, hi * s) for one s > 0; for several factors if the
    bounds are 0 or infinite
    """
    decline_if(not scale.positive, "a factor is not positive, so it does not pass Clip")
    outward = scale.inverse if forward else scale
    if b.version < 11:
        attrs = {}
        for name in ("min", "max"):
            bound = b.attr(name)
            if bound is not None and _moves(np.asarray(bound, np.float32), scale):
                factor = float(scale.factors.reshape(-1)[0])
                attrs[name] = bound / factor if outward.divide else bound * factor
        return Carried(scale, b.inputs[1:], attrs)
    rest: list[Var | None] = []
    for v in b.inputs[1:]:
        decline_if(v is not None and v.const is None, "a bound of Clip is known only at run time")
        if v is not None and v.const is not None and _moves(v.const, scale):
            rest.append(outward.apply(v, scale.factors.reshape(-1)[0].reshape(())))
        else:
            rest.append(v)
    return Carried(scale, rest, {})


def _moves(bound: Array, scale: Scale) -> bool:
    """Whether a bound has to be scaled, because it is neither 0 nor infinite. Declines for several
    factors.
    """
    value: Any = bound.reshape(-1)[0]
    largest = float(np.finfo(np.float32).max) if bound.dtype == np.float32 else np.inf
    if value == 0 or abs(float(value)) >= largest:
        return False
    if not scale.uniform:
        raise decline(
            f"Clip's bound {float(value):g} would have to be scaled differently in each channel"
        )
    return True
