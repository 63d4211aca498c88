"""Moves a per-channel multiply after a product into the product's weight (Relay's
BackwardFoldScaleAxis).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.types import element_count
from onnxgrad.ir.var import Var
from onnxgrad.laws.constant_values import fixed_value
from onnxgrad.laws.fold_scale_axis.carry import carries, carry
from onnxgrad.laws.fold_scale_axis.products import PRODUCTS, product_times
from onnxgrad.laws.fold_scale_axis.scale import REACH, Scale, again, per_channel, read_scale
from onnxgrad.rewrite.attempt import closes_cycle
from onnxgrad.rewrite.pattern import P, capture
from onnxgrad.rewrite.trace import decline, decline_if
from onnxgrad.rewrite.worklist import Rule, rewrite

x = capture("x")


@dataclass
class _Ascent:
    """One attempt. `also`: further values that are computed anew, the other parts of a Split."""

    block: BindingBlock
    seen: set[Binding] = field(default_factory=set)
    also: dict[Var, Var] = field(default_factory=dict)

    def take(self, v: Var, scale: Scale) -> Var:
        """Returns `v * scale`, with the scale in the weights of the products that compute `v`.
        Declines.
        """
        b = v.definition
        if b is None:
            raise decline(f"{v.name} is an input: no product can absorb the scale")
        if v.block is not self.block or v.sole_user() is None:
            raise decline(f"{v.name} is read elsewhere as well, or is an output")
        decline_if(
            b in self.seen or len(self.seen) >= REACH or b.blocks or b.has_refs,
            f"{v.name} cannot be scaled alone",
        )
        self.seen.add(b)
        if b.domain == "" and b.op in PRODUCTS:
            return product_times(b, scale)
        if carries(b):
            return self._through(b, scale)
        decline_if(
            b.domain != "" or b.op not in _SPREAD,
            f"{b.op} does not commute with a multiply per channel",
        )
        return _SPREAD[b.op](self, b, v, scale)

    def _through(self, b: Binding, scale: Scale) -> Var:
        data = b.inputs[0]
        if data is None:
            raise decline(f"{b.op} has no operand")
        carried = carry(b, scale, forward=False)
        return again(b, [self.take(data, carried.scale), *carried.rest], carried.attrs)

    def operand(self, v: Var | None, scale: Scale, out: Var) -> Var:
        """Returns an operand that broadcasts to `out`, scaled along the axis that the scale has in
        `out`.
        """
        if v is None or v.shape is None or out.shape is None:
            raise decline("an operand's rank is unknown")
        axis = None if scale.axis is None else scale.axis - (len(out.shape) - len(v.shape))
        if axis is not None and (axis < 0 or v.shape[axis] != scale.factors.size):
            decline_if(
                not v.is_constant or element_count(v.shape) != 1,
                f"{v.name} does not have the channel axis in full",
            )
            return scale.apply(v, scale.lined_up(len(out.shape) - 1 - (scale.axis or 0)))
        return scale.times(v, axis) if v.is_constant else self.take(v, scale.at(axis))


def _sum(ascent: _Ascent, b: Binding, v: Var, scale: Scale) -> Var:
    """(a + b) * s = a * s + b * s, if every branch can take the scale; constants are scaled"""
    return again(b, [ascent.operand(u, scale, b.out) for u in b.inputs])


def _multiply(ascent: _Ascent, b: Binding, v: Var, scale: Scale) -> Var:
    """(a * c) * s = a * (c * s), c constant"""
    constants = [i for i, u in enumerate(b.inputs) if u is not None and u.is_constant]
    decline_if(not constants, "a product of two activations cannot absorb a scale")
    inputs = list(b.inputs)
    scaled = ascent.operand(inputs[constants[0]], scale, b.out)
    factor = fixed_value(scaled)
    if factor is not None and np.all(factor == 1):
        # onnxruntime 1.31 drops it, and loses what nested graphs read of a pair of Casts that then
        # meet
        raise decline(f"the factors at {b.op} cancel: a product with 1 would stay")
    inputs[constants[0]] = scaled
    return again(b, inputs)


def _concat(ascent: _Ascent, b: Binding, v: Var, scale: Scale) -> Var:
    """Concat(a, b) * s = Concat(a * s_a, b * s_b)"""
    values = [u for u in b.inputs if u is not None]
    parts = parts_of(scale, b, values)
    scaled = [
        part.times(u, part.axis) if u.is_constant else ascent.take(u, part)
        for u, part in zip(values, parts, strict=True)
    ]
    return again(b, scaled)


def parts_of(scale: Scale, b: Binding, values: Sequence[Var]) -> list[Scale]:
    """Returns the scale of each of `values`, which a Concat joins or a Split divides. Declines."""
    rank = values[0].rank
    if scale.axis is None:
        return [scale] * len(values)
    decline_if(not rank, f"the rank at {b.op} is unknown")
    if b.attr("axis", 0) % rank != scale.axis:
        return [scale] * len(values)
    sizes = [None if v.shape is None else v.shape[scale.axis] for v in values]
    known = [d for d in sizes if isinstance(d, int)]
    decline_if(
        len(known) < len(sizes) or sum(known) != scale.factors.size,
        f"the sizes at {b.op} are unknown",
    )
    return scale.parts(known)


def _split(ascent: _Ascent, b: Binding, v: Var, scale: Scale) -> Var:
    """One part of Split(a) times s = that part of Split(a * (1, ..., s, ..., 1)), along the channel
    axis
    """
    data, parts = b.inputs[0], [u for u in b.outputs if u is not None]
    if data is None or not data.shape or scale.axis is None or len(parts) < len(b.outputs):
        raise decline("the split value's sizes are unknown")
    decline_if(
        b.attr("axis", 0) % len(data.shape) != scale.axis,
        "Split parts another axis, so the other parts would be scaled too",
    )
    sizes = [None if u.shape is None else u.shape[scale.axis] for u in parts]
    known = [n for n in sizes if isinstance(n, int)]
    decline_if(len(known) < len(parts), "the split value's sizes are unknown")
    whole = scale.among(parts.index(v), known)
    outs = again(b, [ascent.take(data, whole), *b.inputs[1:]], outputs=len(parts))
    ascent.also.update((u, new) for u, new in zip(parts, outs, strict=True) if u is not v)
    return outs[parts.index(v)]


_SPREAD: dict[str, Callable[[_Ascent, Binding, Var, Scale], Var]] = {
    "Add": _sum,
    "Sub": _sum,
    "Sum": _sum,
    "Mul": _multiply,
    "Concat": _concat,
    "Split": _split,
}


@cache
def scale_behind_product(scalars: bool, runtime: bool) -> Rule:
    """Returns the rule for a scale per channel. `scalars`: also for one factor for all channels;
    `runtime`: also for computed factors.
    """

    @rewrite(P.any_of("Mul", "Div")(x, per_channel))
    def scale_of_product(x: Var, s: Var, root: Binding) -> Any:
        """(a @ w) * s = a @ (w * s), the scale along the columns (output channels) of w"""
        scale = read_scale(root, x, s, scalars, runtime)
        if scale is None:
            return None
        ascent = _Ascent(root.block)
        mapping = {root.out: ascent.take(x, scale)} | ascent.also
        decline_if(closes_cycle(mapping), "another part of the same Split feeds this one")
        return mapping

    return scale_of_product
