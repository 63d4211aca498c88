"""Helpers that several families of rules share: restored axes after a reduction, counts, masks as
numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from onnx import TensorProto

from onnxgrad.ir.emission.arithmetic import in_dtype_of
from onnxgrad.ir.emission.emit import constant
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import Array, TensorType, element_count
from onnxgrad.ir.var import Var

V = TypeVar("V", bound="Var | None")
Axes = Sequence[int] | Var | None
# the note of rules that use `beside_zeros`
ZEROS = (
    "zeros: the exact product of the others; derivatives of every order if three factors are 0, "
    "of the first three orders if more are"
)


def as_number(mask: Var, like: Var) -> Var:
    """Returns a bool tensor as 0 and 1 in the dtype of `like`."""
    return op.Cast(mask, to=like.dtype)


def widened(v: Var) -> Var:
    """Returns `v`, cast to float32 if it is bfloat16.

    onnxruntime's CPU has few kernels for bfloat16 and hardly any arithmetic.
    """
    return op.Cast(v, to=TensorProto.FLOAT) if v.dtype == TensorProto.BFLOAT16 else v


def ranked(v: Var, rank: int) -> Var:
    """Returns `v`, whose type has this rank if shape inference does not know it."""
    if v.rank is None:
        v.type = TensorType(v.dtype or 0, (None,) * rank)
    return v


def around(v: Var, axis: int) -> Var:
    """Reshapes `v` of unknown rank to (A, K, B): the axes before `axis`, that axis, and the rest.

    A negative `axis` counts from the end.
    """
    flat = op.Flatten(v, axis=axis)
    size = op.Shape(v, start=axis, end=None if axis == -1 else axis + 1)
    return ranked(op.Reshape(flat, op.Concat([0], size, [-1], axis=0)), 3)


def beside_zeros(product: Var, x: Var, add: Callable[[Var], Var]) -> tuple[Var, Var, Var, Var]:
    """Returns p, w, h, d such that p (d (d + w) + h) is the product of all factors except a zero.

    product: that of the factors that are not 0. x: the factors. add: sums up a value of each
    factor over the factors of one product; p, w and h have its shape, d has that of x.

    The value is `product` beside one zero and else 0, but the derivatives are those of the product:
    with d = 1 - z of a zero z and 0 of other factors, the others have the sum r and the sum of
    squares q of d. Of up to two other zeros the product is ((1 - r)^2 + 1 - q) / 2. With more it
    is 0, which holds up to third derivatives.
    """
    is_zero = op.Equal(x, 0.0)
    d = counting(op.Where(is_zero, 1.0 - x, 0.0))  # has the value 1 at each zero
    count, squares = add(d), add(d * d)
    w = 1.0 - count
    return (
        op.Where(op.Less(count, 4.0), counting(product), 0.0),
        w,
        (w * w - squares + 1.0) * 0.5,
        d,
    )


def axes_operand(axes: Axes) -> Any:
    """Returns axes as an operand for an emitted node."""
    return axes if axes is None or isinstance(axes, Var) else list(axes)


def counting(v: Var) -> Var:
    """Returns `v` in a dtype for counts: float16 ends at 65504 and is not exact above 2048."""
    return op.Cast(v, to=TensorProto.FLOAT) if v.dtype == TensorProto.FLOAT16 else v


def as_count(sizes: Var, like: Var) -> Var:
    """Returns an integer as a number of the dtype of `counting(like)`."""
    narrow = like.dtype == TensorProto.FLOAT16
    return op.Cast(sizes, to=TensorProto.FLOAT if narrow else like.dtype)


def divided(g: Var, count: float | Array | Var) -> Var:
    """Returns g / count, even if the dtype of g is too narrow for the count.

    count: a number, an array, or a value of the dtype of `counting(g)`.
    """
    if g.dtype != TensorProto.FLOAT16:
        return g / count
    if isinstance(count, Var):
        return in_dtype_of(counting(g) / count, g)
    # first divide by a number in (0.5, 1], then by powers of two, so nothing is rounded twice
    power = int(np.floor(np.log2(np.max(count, initial=1.0))))
    return _shifted(g * np.asarray(2.0**power / np.asarray(count), np.float16), -power)


def multiplied(v: Var, count: float | Var) -> Var:
    """Returns v count, with the same care for narrow dtypes as `divided`."""
    if v.dtype != TensorProto.FLOAT16:
        return v * count
    if isinstance(count, Var):
        return in_dtype_of(counting(v) * count, v)
    power = int(np.floor(np.log2(max(count, 1.0))))
    return _shifted(v * np.asarray(count / 2.0**power, np.float16), power)


def _shifted(v: Var, power: int) -> Var:
    """Returns v 2^power, by factors that float16 can represent."""
    while power:
        step = max(-_FLOAT16_POWER, min(power, _FLOAT16_POWER))
        v, power = v * np.float16(2.0**step), power - step
    return v


# 2^-14 is the smallest float16 number in full precision
_FLOAT16_POWER = 14


def reduced_count(x: Var, y: Var, axes: Axes) -> int | Var:
    """Returns how many elements of `x` each element of `y` combines.

    The count is an int if the sizes are known, else a scalar of the dtype of `counting(x)`.
    """
    if x.shape is not None and not isinstance(axes, Var):
        count = element_count(tuple(x.shape[a] for a in axes or range(len(x.shape))))
        if count is not None:
            return count
    return as_count(op.Div(op.Size(x), op.Max(op.Size(y), constant(1, 7))), x)


def mean_share(g: Var, count: int | Var) -> Var:
    """Returns the part of a mean's adjoint for each of `count` elements."""
    if isinstance(count, Var) or g.dtype == TensorProto.FLOAT16:
        return divided(g, count if isinstance(count, Var) else max(count, 1))
    return g * (1.0 / max(count, 1))


def redirect(out: Var, new: Var) -> None:
    """Redirects the readers of a forward value to `new`, which gets its name."""
    returned = out.returned
    out.block.replace(out, new)
    if not returned:
        out.swap_names(new)


def sum_like(v: Var, scalar: Var) -> Var:
    """Returns the sum of all elements of `v` in the shape of `scalar`, which has one element."""
    total = op.ReduceSum(v, keepdims=0)
    return total if scalar.shape == () else op.Reshape(total, op.Shape(scalar))


def pad(v: Var, pads: Any, axes: Any = None, value: Any = None) -> Var:
    """Pads `v` with zeros, or with `value`, along `axes` or all axes (negative pads crop).

    The Pad always names all axes, with pads for all. onnxruntime 1.31 moves a Transpose through a
    Pad of some axes as if the Pad were one of all axes. It also fuses a Pad without axes into the
    following Conv or MaxPool, even if the Pad is that of the Conv's weight. Neither graph then
    runs.
    """
    if v.rank is not None:
        pads = pads if axes is None else _pads_of_all(pads, axes, v.rank)
        axes = list(range(v.rank))
    return op.Pad(v, pads, value, axes)


def _pads_of_all(pads: Any, axes: Any, rank: int) -> Any:
    known = axes.ints if isinstance(axes, Var) else axes
    given = pads.ints if isinstance(pads, Var) else pads
    places: Any
    if known is None:
        axes = op.Mod(op.Cast(axes, to=TensorProto.INT64) + np.int64(rank), np.int64(rank))
        places = op.Concat(axes, axes + np.int64(rank), axis=0)
    else:
        places = np.array([a % rank + end for end in (0, rank) for a in known], np.int64)
        if given is not None:
            full = np.zeros(2 * rank, np.int64)
            full[places] = given
            return full.tolist()
    return op.ScatterElements(np.zeros(2 * rank, np.int64), places, pads, axis=0)
