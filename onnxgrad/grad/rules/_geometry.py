"""Sliding windows: pads, strides and dilations, and the two products behind Conv, ConvTranspose and
pooling.

A window operator relates long axes (D) and short axes (O): the long position is o s + k d - begin.
Known sizes give exact attributes. If sizes are known only at run time, the graph computes slightly
more and slices the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.grad.rules._common import pad
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.arithmetic import rank_of
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var

Zeros: TypeAlias = "tuple[int, ...] | Var"


@frozen
class Geometry:
    """Per spatial axis: kernel size, stride, dilation, zeros before and after.

    `kernel` is None if the size is known at run time only. `begin` and `end` may be int64 Vars.
    """

    kernel: tuple[int, ...] | None
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: Zeros
    end: Zeros

    @property
    def extent(self) -> tuple[int, ...]:
        """The dilated kernel sizes; the kernel must be known."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel or (), self.dilations))

    def around(self, small: Zeros, large: Zeros, auto: str) -> Geometry:
        """Returns a copy with `small` and `large` zeros placed as auto_pad places them."""
        begin, end = (small, large) if auto == "SAME_UPPER" else (large, small)
        return replace(self, begin=begin, end=end)

    def missing(self, long: Sequence[int], short: Sequence[int]) -> list[int]:
        """Returns by how many positions the last window reaches past the end of each long axis.

        A number is negative if the windows leave some positions unread.
        """
        parts = zip(short, self.strides, self.extent, self.fixed_begin, long)
        return [(a - 1) * s + e - b - size for a, s, e, b, size in parts]

    @property
    def is_fixed(self) -> bool:
        """Whether the kernel and the zeros before are known."""
        return self.kernel is not None and not isinstance(self.begin, Var)

    @property
    def fixed_begin(self) -> tuple[int, ...]:
        """The zeros before each axis; 0 if they are known at run time only."""
        return (0,) * len(self.strides) if isinstance(self.begin, Var) else self.begin

    @property
    def fixed_end(self) -> tuple[int, ...]:
        """The zeros after each axis; 0 if they are known at run time only."""
        return (0,) * len(self.strides) if isinstance(self.end, Var) else self.end


def spatial(v: Var) -> tuple[int, ...] | None:
    """Returns the sizes after batch and channel, or None unless all are known."""
    if v.shape is None or not all(isinstance(d, int) for d in v.shape[2:]):
        return None
    return tuple(d for d in v.shape[2:] if isinstance(d, int))


def geometry(binding: Binding, kernel: Sequence[int] | None, long: Var, short: Var) -> Geometry:
    """Returns the geometry of a Conv or pooling binding from `long` to `short`, auto_pad resolved.

    Raises InputError if the rank is not known, or if auto_pad is SAME and the kernel is not known.
    """
    geo = of_attributes(binding, kernel, spatial_rank(kernel, long, binding))
    auto = binding.attr("auto_pad", "NOTSET")
    if auto in ("NOTSET", "VALID"):
        return geo
    extent, strides, sizes = known_extent(geo, binding), geo.strides, spatial(long)
    if sizes is not None:
        total: Any = [
            max((-(-d // s) - 1) * s + e - d, 0) for d, s, e in zip(sizes, strides, extent)
        ]
    elif all(s == 1 for s in strides):
        total = [e - 1 for e in extent]
    else:
        covered = (op.Shape(short, start=2) - np.array([1], np.int64)) * np.array(strides, np.int64)
        total = op.Max(
            covered + np.array(extent, np.int64) - op.Shape(long, start=2), np.array([0], np.int64)
        )
    if isinstance(total, Var):
        half = op.Div(total, np.array([2], np.int64))
        return geo.around(half, total - half, auto)
    return geo.around(tuple(t // 2 for t in total), tuple(t - t // 2 for t in total), auto)


def of_attributes(binding: Binding, kernel: Sequence[int] | None, n: int) -> Geometry:
    """Returns the geometry of `n` spatial axes by the attributes; auto_pad counts as no padding."""
    pads: tuple[int, ...] = (0,) * (2 * n)
    if binding.attr("auto_pad", "NOTSET") == "NOTSET":
        pads = tuple(binding.attr("pads") or pads)
    strides, dilations = (tuple(binding.attr(a) or (1,) * n) for a in ("strides", "dilations"))
    return Geometry(
        None if kernel is None else tuple(kernel), strides, dilations, pads[:n], pads[n:]
    )


def known_extent(geo: Geometry, binding: Binding) -> tuple[int, ...]:
    """Returns the dilated kernel sizes. Raises InputError if they are not known."""
    if geo.kernel is None:
        raise InputError(
            f"the gradient of '{binding}' needs the kernel's size, which shape "
            "inference does not know"
        )
    return geo.extent


def spatial_rank(kernel: Sequence[int] | None, x: Var, binding: Binding) -> int:
    """Returns the number of spatial axes. Raises InputError if the number is not known."""
    return rank_of(x, binding) - 2 if kernel is None else len(kernel)


def kernel_of(w: Var, binding: Binding) -> tuple[int, ...] | None:
    """Returns the kernel sizes by the attribute or the weight's shape; None if both are unknown."""
    kernel = binding.attr("kernel_shape")
    return tuple(kernel) if kernel else spatial(w)


def onto_long(short: Var, w: Var, like: Var, geo: Geometry, group: int) -> Var:
    """Returns ConvTranspose of `short` by `w` (rows, columns per group, kernel), with the spatial
    sizes of `like`.
    """
    o, d = spatial(short), spatial(like)
    n = len(geo.strides)
    options: dict[str, Any] = {"group": group, "strides": geo.strides, "dilations": geo.dilations}
    if o is not None and d is not None and geo.is_fixed and not isinstance(geo.begin, Var):
        # positions past the end are cropped; positions that no window reaches are zero
        cropped = geo.missing(d, o)
        extra = [max(-c, 0) for c in cropped]
        fits = all(x < max(s, dil) for x, s, dil in zip(extra, geo.strides, geo.dilations))
        result = op.ConvTranspose(
            short,
            w,
            pads=[*geo.begin, *(max(c, 0) for c in cropped)],
            output_padding=extra if any(extra) and fits else None,
            **options,
        )
        return result if fits else pad(result, [0] * (n + 4) + extra)
    result = op.ConvTranspose(
        short,
        w,
        pads=[*geo.fixed_begin, *(0,) * n],
        output_padding=[s - 1 for s in geo.strides],
        **options,
    )
    size = op.Shape(like, start=2)
    first: Any = geo.begin if isinstance(geo.begin, Var) else np.zeros(n, np.int64)
    last = op.Add(first, size) if isinstance(geo.begin, Var) else size
    return op.Slice(result, first, last, np.arange(2, n + 2))


def onto_short(long: Var, w: Var, like: Var, geo: Geometry, group: int) -> Var:
    """Returns Conv of `long` by `w` with the spatial sizes of `like`: transpose of `onto_long`."""
    d, o = spatial(long), spatial(like)
    n = len(geo.strides)
    options: dict[str, Any] = {"group": group, "strides": geo.strides, "dilations": geo.dilations}
    if (
        d is None
        or o is None
        or not geo.is_fixed
        or isinstance(geo.begin, Var)
        or isinstance(geo.end, Var)
    ):
        result = padded_conv(long, w, geo, options)
        return op.Slice(result, np.zeros(n, np.int64), op.Shape(like, start=2), np.arange(2, n + 2))
    missing = geo.missing(d, o)
    result = op.Conv(long, w, pads=[*geo.begin, *(max(m, 0) for m in missing)], **options)
    if all(-m < s for m, s in zip(missing, geo.strides)):
        return result
    return op.Slice(result, [0] * n, list(o), list(range(2, n + 2)))


def padded_conv(long: Var, w: Var, geo: Geometry, options: dict[str, Any]) -> Var:
    if isinstance(geo.begin, Var) or isinstance(geo.end, Var):
        none = np.zeros(2, np.int64)
        long = pad(long, op.Concat(none, geo.begin, none, geo.end, axis=0))
        return op.Conv(long, w, **options)
    return op.Conv(long, w, pads=[*geo.begin, *geo.end], **options)
