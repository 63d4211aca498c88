"""Moves a per-channel multiply in front of a product into the product's weight (Relay's
ForwardFoldScaleAxis).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.var import Var
from onnxgrad.laws.fold_scale_axis.backward import parts_of
from onnxgrad.laws.fold_scale_axis.carry import carries, carry
from onnxgrad.laws.fold_scale_axis.products import PRODUCTS, product_of_scaled
from onnxgrad.laws.fold_scale_axis.scale import REACH, Scale, again, per_channel, read_scale
from onnxgrad.rewrite.attempt import closes_cycle
from onnxgrad.rewrite.pattern import P, capture
from onnxgrad.rewrite.trace import decline, decline_if
from onnxgrad.rewrite.worklist import Rule, rewrite

x = capture("x")


@dataclass
class _Descent:
    """One attempt. `done`: the replacements of the products that took the scale."""

    block: BindingBlock
    done: dict[Var, Var] = field(default_factory=dict)
    seen: set[Binding] = field(default_factory=set)

    def push(self, old: Var, new: Var, scale: Scale) -> None:
        """Moves the scale of `old`, which is `new * scale`, into all its readers. Declines."""
        decline_if(old.returned, f"{old.name} is an output")
        decline_if(not old.users, f"{old.name} is not read")
        for user, slots in list(old.users.items()):
            decline_if(
                user.block is not self.block
                or slots != 1
                or user in self.seen
                or user.blocks
                or user.has_refs,
                f"{old.name} is read by {user.op} in a way that cannot absorb the scale",
            )
            decline_if(
                len(self.seen) >= REACH, "the products that could absorb the scale are too far away"
            )
            self.seen.add(user)
            self._into(user, old, new, scale)

    def _into(self, user: Binding, old: Var, new: Var, scale: Scale) -> None:
        index = user.inputs.index(old)
        if user.domain == "" and user.op in PRODUCTS:
            self.done[user.out] = product_of_scaled(user, index, new, scale)
        elif carries(user) and index == 0:
            carried = carry(user, scale, forward=True)
            self.push(user.out, again(user, [new, *carried.rest], carried.attrs), carried.scale)
        elif user.is_op("Add") or user.is_op("Sub"):
            self._add(user, index, new, scale)
        elif user.is_op("Concat"):
            self._concat(user, index, new, scale)
        elif user.is_op("Split") and index == 0:
            parts = [v for v in user.outputs if v is not None]
            scales = parts_of(scale, user, parts)
            outs = again(user, [new, *user.inputs[1:]], outputs=len(user.outputs))
            for part, out, own in zip(
                parts, [o for o in outs if o is not None], scales, strict=True
            ):
                self.push(part, out, own)
        else:
            raise decline(f"{user.op} does not commute with a multiply per channel")

    def _add(self, user: Binding, index: int, new: Var, scale: Scale) -> None:
        """x * s + c = (x + c / s) * s, c constant, if no factor of s is far smaller than another"""
        other = user.inputs[1 - index]
        if other is None or not other.is_constant or other.rank is None or new.rank is None:
            raise decline(f"{user.op} adds an operand with another scale")
        decline_if(
            scale.loses_digits,
            "a factor is so small that dividing the addend by it would lose digits",
        )
        decline_if(
            other.rank > new.rank or user.out.shape != new.shape,
            f"{user.op} widens the scaled value",
        )
        axis = None if scale.axis is None else scale.axis - (new.rank - other.rank)
        inverse = scale.inverse
        if axis is not None and (axis < 0 or (other.shape or ())[axis] != scale.factors.size):
            decline_if(
                (other.const is None) or other.const.size != 1,
                f"{other.name} does not have the channel axis in full",
            )
            divided = inverse.apply(other, scale.lined_up(new.rank - 1 - (scale.axis or 0)))
        else:
            divided = inverse.times(other, axis)
        self.push(user.out, again(user, [new, divided] if index == 0 else [divided, new]), scale)

    def _concat(self, user: Binding, index: int, new: Var, scale: Scale) -> None:
        """Concat(x * s, y) = Concat(x, y) * (s, 1) along the channel axis"""
        values = [v for v in user.inputs if v is not None]
        rank = new.rank
        if not rank or scale.axis is None or user.attr("axis", 0) % rank != scale.axis:
            raise decline("Concat joins it to an operand without the scale")
        sizes = [None if v.shape is None else v.shape[scale.axis] for v in values]
        known = [n for n in sizes if isinstance(n, int)]
        decline_if(len(known) < len(values), "the sizes at Concat are unknown")
        inputs = [new if i == index else v for i, v in enumerate(values)]
        self.push(user.out, again(user, inputs), scale.among(index, known))


@cache
def scale_in_front_of_product(scalars: bool, runtime: bool) -> Rule:
    """Returns the rule for a scale per channel. `scalars`: also for one factor for all channels;
    `runtime`: also for computed factors.
    """

    @rewrite(P.any_of("Mul", "Div")(x, per_channel))
    def product_of_scale(x: Var, s: Var, root: Binding) -> Any:
        """(a * s) @ w = a @ (s * w), the scale along the rows (input channels) of w"""
        scale = read_scale(root, x, s, scalars, runtime)
        if scale is None:
            return None
        descent = _Descent(root.block)
        descent.push(root.out, x, scale)
        decline_if(
            closes_cycle(descent.done),
            "one of the products that could absorb the scale feeds another",
        )
        return descent.done

    return product_of_scale
