"""A multiply by one factor per channel: how it is read from a binding, constant or computed
factors, and how a weight takes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, overload

import numpy as np

from onnxgrad.frozen import frozen
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.domains import VIEWS
from onnxgrad.ir.emission.emit import constant, emit
from onnxgrad.ir.emission.emitter import emitter
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import FLOAT_DTYPES, Array, Shape, element_count, numpy_dtype, same_dim
from onnxgrad.ir.var import Var
from onnxgrad.laws.constant_values import fixed_value, reason_of_rounding
from onnxgrad.rewrite.pattern import capture
from onnxgrad.rewrite.trace import decline, decline_if

# x * s + c = (x + c / s) * s loses digits if s is small beside the other factors
_SPREAD_LIMIT = 2.0**-10
# most bindings that one attempt visits: the search is recursive, and a scale farther away stays
REACH = 100


@frozen
class Scale:
    """Multiplies (divides if `divide`) by `factors` (C,) along `axis`, or by one factor () if axis
    is None.
    """

    factors: Array
    axis: int | None
    divide: bool = False

    @property
    def positive(self) -> bool:
        return bool(np.all(np.greater(self.factors, 0)))

    @property
    def uniform(self) -> bool:
        """Whether all channels have one factor."""
        return bool((self.factors == self.factors.reshape(-1)[0]).all())

    @property
    def inverse(self) -> Scale:
        """The scale that undoes this one."""
        return replace(self, divide=not self.divide)

    def at(self, axis: int | None) -> Scale:
        """Returns the same factors along another axis."""
        return replace(self, axis=axis)

    def parts(self, sizes: Sequence[int]) -> list[Scale]:
        """Returns the scales of consecutive groups of channels, of these sizes."""
        return [replace(self, factors=f) for f in np.split(self.factors, np.cumsum(sizes)[:-1])]

    def among(self, index: int, sizes: Sequence[int]) -> Scale:
        """Returns this scale for part `index` of a value whose parts have these sizes, and 1 for
        the other parts.
        """
        ones = [np.ones(n, self.factors.dtype) for n in sizes]
        return replace(
            self, factors=np.concatenate([*ones[:index], self.factors, *ones[index + 1 :]])
        )

    def lined_up(self, behind: int) -> Array | Var:
        """Returns the factors followed by `behind` axes of size 1."""
        return self.factors if self.axis is None else self.factors.reshape(-1, *[1] * behind)

    def grouped(self, groups: int, rows: int, behind: int) -> Array | Var:
        """Returns (groups * rows, channels of a group, 1, ...): each group's factors, once for each
        of its rows.
        """
        table = np.repeat(self.factors.reshape(groups, -1), rows, axis=0)
        return table.reshape(*table.shape, *[1] * behind)

    @property
    def loses_digits(self) -> bool:
        """Whether dividing and multiplying again loses digits: a factor is zero, or far smaller
        than another.
        """
        magnitude = np.abs(self.factors.astype(np.float64))
        return bool(magnitude.min() < _SPREAD_LIMIT * magnitude.max()) or not magnitude.all()

    def times(self, v: Var, axis: int | None) -> Var:
        """Returns `v` scaled along `axis`. Declines if `v` does not have these channels."""
        if self.axis is None or axis is None:
            return self.apply(v, self.lined_up(0))
        # an unknown size must be this one, or the operator would fail
        if v.shape is None or (
            isinstance(v.shape[axis], int) and v.shape[axis] != self.factors.size
        ):
            raise decline(f"{v.name} does not have {self.factors.size} channels along axis {axis}")
        return self.apply(v, self.lined_up(len(v.shape) - 1 - axis))

    def apply(self, v: Var, factors: Array | Var) -> Var:
        """Returns `v` times (or over) `factors`, broadcast. Declines if a constant `v` would leave
        its dtype's range, and if the sizes are known not to fit.
        """
        decline_if(
            not _broadcast(v.shape, factors.shape), f"{v.name} does not have the sizes of its scale"
        )
        if isinstance(factors, Var):
            return v * factors
        if _leaf(v) is None:
            array = fixed_value(v)
            if array is None:
                raise decline(
                    f"{v.name} times its scale is not known to keep its digits: "
                    "fold-constant comes first"
                )
            with np.errstate(all="ignore"):
                # the product of two float32 numbers has as many digits as float64 holds
                single = array.dtype == factors.dtype == np.float32 and not self.divide
                kind = np.float64 if single else np.longdouble
                wide, by = array.astype(kind), factors.astype(kind)
                exact = np.divide(wide, by) if self.divide else np.multiply(wide, by)
            reason = reason_of_rounding(exact, v.dtype, f"{v.name} times its scale")
            if reason is not None:
                raise decline(reason)
        operand = constant(factors, name="scale")
        return op.Div(v, operand) if self.divide else op.Mul(v, operand)


def _broadcast(a: Shape | None, b: Shape | None) -> bool:
    """Whether two shapes may broadcast together, as far as sizes are known."""
    pairs = zip(reversed(a or ()), reversed(b or ()), strict=False)
    return not any(
        isinstance(n, int) and isinstance(m, int) and n != m and 1 not in (n, m) for n, m in pairs
    )


_SAME: Mapping[str, Any] = {}


@overload
def again(b: Binding, inputs: Sequence[Var | None], changed: Mapping[str, Any] = _SAME) -> Var: ...


@overload
def again(
    b: Binding, inputs: Sequence[Var | None], changed: Mapping[str, Any] = _SAME, *, outputs: int
) -> tuple[Var, ...]: ...


def again(
    b: Binding,
    inputs: Sequence[Var | None],
    changed: Mapping[str, Any] = _SAME,
    *,
    outputs: int | None = None,
) -> Any:
    """Emits the same operator on other operands. Attributes stay except those in `changed`; returns
    a tuple if there are several `outputs`.
    """
    attrs = {**b.attrs, **changed}
    decline_if(b.has_refs, f"an attribute of {b.op} is that of the enclosing function")
    decline_if(
        any(isinstance(value, tuple) and not value for value in attrs.values()),
        f"{b.op} has an empty attribute",
    )
    at = emitter()
    before = at.sources
    at.sources = [*before, b]
    try:
        wanted = attrs if outputs is None else {**attrs, "outputs": outputs}
        return emit(b.op, inputs, wanted, domain=b.domain)
    finally:
        at.sources = before


def weight(v: Var | None, result: Var) -> Var:
    """Returns `v` as a value that may take a scale. Declines.

    `v` is constant, or an input with fewer elements than the value that is scaled now: a scale that
    moved to an input of the same size would move back.
    """
    if v is None or v.rank is None:
        raise decline("the weight's rank is unknown")
    leaf = _leaf(v)
    if leaf is None:
        return v
    decline_if(leaf.definition is not None, f"the weight {v.name} is computed from other values")
    size, scaled = element_count(v.shape), element_count(result.shape)
    decline_if(
        size is None or scaled is None or size >= scaled,
        f"the weight {v.name} is not constant and not smaller than the scaled value",
    )
    return v


def fixed(v: Var) -> bool:
    """Whether `v` is constant, or a rearranged or scaled constant."""
    return _leaf(v) is None


def _leaf(v: Var) -> Var | None:
    """Returns the one value that is not constant and that `v` rearranges or scales; None if there
    is none.
    """
    # a dequantized weight is not among them: scaled, it would no longer be read by a quantized
    # kernel
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


_REARRANGED = frozenset((*VIEWS, "Cast", "Div", "Mul", "Transpose"))
_FIXED = _REARRANGED | {
    "Add",
    "Concat",
    "ConstantOfShape",
    "Expand",
    "Neg",
    "Slice",
    "Split",
    "Sqrt",
}


@frozen(kw_only=True)
class RunTimeScale(Scale):
    """Multiplies by a computed `vector` (C,) or (). Its values are unknown, so the factors are NaN:
    no sign, no magnitude, not equal.
    """

    vector: Var

    @staticmethod
    def of(s: Var, channels: int, axis: int) -> RunTimeScale:
        """Returns the scale of `s`, of any rank, with one factor for each of so many channels along
        `axis`.
        """
        vector = s if s.rank == 1 else op.Reshape(s, [-1])
        return RunTimeScale(_unknown(channels, s.dtype), axis, vector=vector)

    @staticmethod
    def one(s: Var) -> RunTimeScale:
        """Returns the scale of one factor for all channels."""
        vector = s if s.rank == 0 else op.Squeeze(s, list(range(s.rank or 0)))
        return RunTimeScale(np.full((), np.nan, numpy_dtype(s.dtype)), None, vector=vector)

    def parts(self, sizes: Sequence[int]) -> list[Scale]:
        """As `Scale.parts`, by a Split."""
        pieces = op.Split(self.vector, list(sizes), axis=0, outputs=len(sizes))
        return [self._like(piece, n) for piece, n in zip(pieces, sizes, strict=True)]

    def among(self, index: int, sizes: Sequence[int]) -> Scale:
        """As `Scale.among`, by a Concat with ones."""
        ones = [np.ones(n, self.factors.dtype) for n in sizes]
        whole = op.Concat(*ones[:index], self.vector, *ones[index + 1 :], axis=0)
        return self._like(whole, sum(sizes))

    def lined_up(self, behind: int) -> Var:
        """As `Scale.lined_up`, by a Reshape."""
        return (
            self.vector
            if self.axis is None or not behind
            else op.Reshape(self.vector, [-1, *[1] * behind])
        )

    def grouped(self, groups: int, rows: int, behind: int) -> Var:
        """As `Scale.grouped`, by an Expand."""
        n = self.factors.size // groups
        table = op.Expand(op.Reshape(self.vector, [groups, 1, n]), [groups, rows, n])
        return op.Reshape(table, [groups * rows, n, *[1] * behind])

    @property
    def loses_digits(self) -> bool:
        """True: a factor may be zero."""
        return True

    def _like(self, vector: Var, channels: int) -> Scale:
        return replace(self, factors=_unknown(channels, vector.dtype), vector=vector)


def _unknown(channels: int, dtype: int) -> np.ndarray:
    return np.full(channels, np.nan, numpy_dtype(dtype))


# a quick test: at most one axis of more than one element, as far as sizes are known
per_channel = capture("s").where(lambda v: v.shape is None or len(v.shape) - v.shape.count(1) <= 1)


def channel_vector(c: Var, y: Var) -> tuple[Array, int | None] | None:
    """Returns a constant operand beside `y` as values and an axis of `y`: (C,) along one axis that
    `y` has in full, or () and None.

    Returns None for anything else: not constant, several axes, or wider than `y`.
    """
    array = c.const
    if (
        array is None
        or y.shape is None
        or c.dtype not in FLOAT_DTYPES
        or array.ndim > len(y.shape)
        or not array.size
    ):
        return None
    offset = len(y.shape) - array.ndim
    axes = [i for i, d in enumerate(array.shape) if d != 1]
    if len(axes) > 1 or (axes and y.shape[axes[0] + offset] != array.shape[axes[0]]):
        return None
    if not axes:
        # (1, 1, 1) beside (N, 1, H, W) is the vector of its one channel; anything shorter is a
        # scalar
        single = array.ndim >= 2 and y.shape[offset] == 1
        return (array.reshape(-1), offset) if single else (array.reshape(()), None)
    return array.reshape(-1), axes[0] + offset


def _at_run_time(root: Binding, y: Var, s: Var, scalars: bool, runtime: bool) -> Scale | None:
    """Returns the scale of a computed `s` that has one axis of more than one element, which `y` has
    as well.
    """
    known = s.shape is not None and y.shape is not None and s.dtype in FLOAT_DTYPES
    if (
        s.is_constant
        or s.shape is None
        or y.shape is None
        or not known
        or not len(s.shape) <= len(y.shape) > 1
    ):
        return None
    axes = [i for i, d in enumerate(s.shape) if d != 1]
    if not axes and scalars and runtime and root.op == "Mul":
        return RunTimeScale.one(s)
    if len(axes) != 1 or not same_dim(s.shape[axes[0]], y.shape[axes[0] - len(s.shape)]):
        return None
    n = s.shape[axes[0]]
    decline_if(
        not runtime,
        f"{s.name} is computed at run time: without runtime=true only what the file fixes moves",
    )
    decline_if(
        root.op == "Div",
        f"{s.name} is computed at run time and may be zero, so the weight cannot be divided by it",
    )
    if not isinstance(n, int):
        raise decline(f"{s.name} is computed at run time and has an unknown number of channels")
    return RunTimeScale.of(s, n, axes[0] - len(s.shape) + len(y.shape))


def read_scale(root: Binding, y: Var, s: Var, scalars: bool, runtime: bool) -> Scale | None:
    """Returns the scale that `root` (a Mul or Div) applies to `y`; None if `s` is not a factor per
    channel.

    Declines if a factor is not finite, and for computed factors per channel, unless `runtime`
    accepts them.
    """
    found = channel_vector(s, y)
    if found is None and not fixed(y):
        return _at_run_time(root, y, s, scalars, runtime)
    if found is None or fixed(y):
        return None
    factors, axis = found
    if axis is None and not scalars:
        return None
    divide = root.op == "Div"
    decline_if(
        not np.isfinite(factors).all() or (divide and not factors.all()), "a factor is not finite"
    )
    return Scale(factors, axis, divide)
