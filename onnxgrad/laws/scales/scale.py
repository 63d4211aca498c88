"""A multiply by one factor per channel: how it is read off a binding, and how a weight takes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

import numpy as np

from onnxgrad.folding.digits import fixed_value, reason_of_rounding
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.constant import constant
from onnxgrad.ir.emission.emit import emit
from onnxgrad.ir.emission.emitter import emitter
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import FLOAT_DTYPES, Array, Shape, element_count, same_dim
from onnxgrad.ir.var import Var
from onnxgrad.rewrite.trace import decline

# bindings looked at in one attempt: the search is recursive, and a scale that is this far away stays where it is
REACH = 100


@dataclass(frozen=True)
class Scale:
    """Multiply (`divide`: divide) by `factors` (C,) along `axis`; axis None: by one factor (), whatever the axis."""

    factors: Array
    axis: int | None
    divide: bool = False

    @property
    def positive(self) -> bool:
        return bool(np.all(np.greater(self.factors, 0)))

    @property
    def uniform(self) -> bool:
        """One factor for all channels."""
        return bool((self.factors == self.factors.reshape(-1)[0]).all())

    @property
    def inverse(self) -> Scale:
        """What undoes it."""
        return replace(self, divide=not self.divide)

    def at(self, axis: int | None) -> Scale:
        """The same factors along another axis."""
        return replace(self, axis=axis)

    def of(self, factors: Array) -> Scale:
        """Other factors, the same axis."""
        return replace(self, factors=factors)

    def lined_up(self, behind: int) -> Array:
        """The factors with `behind` axes of one behind them."""
        return self.factors if self.axis is None else self.factors.reshape(-1, *[1] * behind)

    def times(self, v: Var, axis: int | None) -> Var:
        """`v` scaled along its axis `axis`. Declines when `v` does not have these channels."""
        if self.axis is None or axis is None:
            return self.apply(v, self.factors)
        # a size that is not known must be this one: the operator demands it
        if v.shape is None or (isinstance(v.shape[axis], int) and v.shape[axis] != self.factors.size):
            raise decline(f"{v.name} does not have {self.factors.size} channels along axis {axis}")
        return self.apply(v, self.lined_up(len(v.shape) - 1 - axis))

    def apply(self, v: Var, factors: Array) -> Var:
        """`v` times (or over) `factors`, broadcast. Declines when a fixed `v` would leave its dtype's range."""
        if _leaf(v) is None:
            array = fixed_value(v)
            if array is None:
                raise decline(f"{v.name} times its scale is not known to keep its digits: fold-constant comes first")
            with np.errstate(all="ignore"):
                wide, by = np.asarray(array, np.longdouble), np.asarray(factors, np.longdouble)
                exact = np.divide(wide, by) if self.divide else np.multiply(wide, by)
            reason = reason_of_rounding(exact, v.dtype, f"{v.name} times its scale")
            if reason is not None:
                raise decline(reason)
        operand = constant(factors, name="scale")
        return op.Div(v, operand) if self.divide else op.Mul(v, operand)


def channel_vector(c: Var, y: Var) -> tuple[Array, int | None] | None:
    """A constant operand beside `y` as (values, axis of y): (C,) along one axis that y has in full, or () and None.

    None when it is something else: not constant, several axes, or it would widen `y`.
    """
    array = c.const
    if array is None or y.shape is None or c.dtype not in FLOAT_DTYPES or array.ndim > len(y.shape) or not array.size:
        return None
    offset = len(y.shape) - array.ndim
    axes = [i for i, d in enumerate(array.shape) if d != 1]
    if len(axes) > 1 or (axes and y.shape[axes[0] + offset] != array.shape[axes[0]]):
        return None
    if not axes:
        # (1, 1, 1) beside (N, 1, H, W) is the vector of its one channel; anything shorter is a scalar
        single = array.ndim >= 2 and y.shape[offset] == 1
        return (array.reshape(-1), offset) if single else (array.reshape(()), None)
    return array.reshape(-1), axes[0] + offset


def _is_vector(s: Var, y: Var) -> bool:
    """`s` is not constant, and has one axis of more than one element, which `y` has as well."""
    if (
        s.is_constant
        or s.shape is None
        or y.shape is None
        or len(s.shape) > len(y.shape)
        or s.dtype not in FLOAT_DTYPES
    ):
        return False
    axes = [i for i, d in enumerate(s.shape) if d != 1]
    return len(axes) == 1 and len(y.shape) > 1 and same_dim(s.shape[axes[0]], y.shape[axes[0] - len(s.shape)])


def read_scale(root: Binding, y: Var, s: Var, scalars: bool) -> Scale | None:
    """The scale that `root` (a Mul or Div) applies to `y`; None when `s` is no constant per-channel factor.

    Declines where a factor is not finite, and for one factor per channel that is computed at run time.
    """
    found = channel_vector(s, y)
    if found is None and _is_vector(s, y):
        raise decline(f"{s.name} is computed at run time: only a scale that the file fixes moves into a weight")
    if found is None or _leaf(y) is None:
        return None
    factors, axis = found
    if axis is None and not scalars:
        return None
    divide = root.op == "Div"
    if not np.isfinite(factors).all() or (divide and not factors.all()):
        raise decline("a factor is not finite")
    return Scale(factors, axis, divide)


_SAME: Mapping[str, Any] = {}


@overload
def again(b: Binding, inputs: Sequence[Var | None], changed: Mapping[str, Any] = _SAME) -> Var: ...


@overload
def again(
    b: Binding, inputs: Sequence[Var | None], changed: Mapping[str, Any] = _SAME, *, outputs: int
) -> tuple[Var, ...]: ...


def again(
    b: Binding, inputs: Sequence[Var | None], changed: Mapping[str, Any] = _SAME, *, outputs: int | None = None
) -> Any:
    """The same operator on other operands, attributes kept but for those in `changed`; a tuple for `outputs`."""
    attrs = {**b.attrs, **changed}
    if b.has_refs:
        raise decline(f"an attribute of {b.op} is that of the enclosing function")
    if any(isinstance(value, tuple) and not value for value in attrs.values()):
        raise decline(f"{b.op} has an empty attribute")
    at = emitter()
    before = at.sources
    at.sources = [*before, b]
    try:
        return emit(b.op, inputs, attrs if outputs is None else {**attrs, "outputs": outputs})
    finally:
        at.sources = before


def weight(v: Var | None, result: Var) -> Var:
    """`v` as something that may take a scale. Declines.

    The file must fix it, or it is an input that has no more elements than the product that is scaled now.
    """
    if v is None or v.rank is None:
        raise decline("the weight's rank is unknown")
    leaf = _leaf(v)
    if leaf is None:
        return v
    if leaf.definition is not None:
        raise decline(f"the weight {v.name} is computed from other values")
    size, scaled = element_count(v.shape), element_count(result.shape)
    if size is None or scaled is None or size > scaled:
        raise decline(f"the weight {v.name} is not constant and larger than the product")
    return v


def fixed(v: Var) -> bool:
    """Whether the file fixes `v`: a constant, or a rearranged or scaled one."""
    return _leaf(v) is None


def _leaf(v: Var) -> Var | None:
    """The one value that is not fixed by the file and that `v` is a rearranged or scaled form of, None without one."""
    # a dequantized weight is not among them: scaled, it would no longer be read by a quantized kernel
    for _ in range(REACH):
        if v.is_constant:
            return None
        b = v.definition
        if b is None or b.domain != "" or b.blocks:
            return v
        moving = [u for u in b.inputs if u is not None and not u.is_constant]
        if not moving and b.op in _FIXED:
            return None
        if len(moving) != 1 or b.op not in _REARRANGED:
            return v
        v = moving[0]
    return v


_REARRANGED = frozenset({"Cast", "Div", "Flatten", "Identity", "Mul", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
_FIXED = _REARRANGED | {"Add", "Concat", "ConstantOfShape", "Expand", "Neg", "Slice", "Split", "Sqrt"}


def kept_axis(source: Shape | None, axis: int | None, target: Shape | None) -> int | None:
    """Where an axis of `source` is in `target`, a reshape of it, when it is kept whole. Declines otherwise."""
    if axis is None:
        return None
    if source is None or target is None:
        raise decline("a reshaped value's rank is unknown")
    size, before = source[axis], _product(source[:axis])
    for i, d in enumerate(target):
        if d == size and size != 1 and _product(target[:i]) == before and before is not None:
            return i
    raise decline("the reshape does not keep the channel axis")


def _product(dims: Shape) -> tuple[int, tuple[str, ...]] | None:
    """A product of sizes as its known factor and its symbols; None when something is unknown."""
    known, symbols = 1, []
    for d in dims:
        if d is None:
            return None
        if isinstance(d, int):
            known *= d
        else:
            symbols.append(d)
    return known, tuple(sorted(symbols))
