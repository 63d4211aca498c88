"""Pad in front of an operator that pads by itself.

MaxPool is not among them: it takes the lowest finite value (onnxruntime) or -inf (ONNX) for what is
not there, and a window of nothing but -inf tells them from each other and from either as the value
of a Pad.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var
from onnxgrad.laws.clipping import axes, b, p, v, w, x
from onnxgrad.rewrite.pattern import P
from onnxgrad.rewrite.trace import Decline, decline
from onnxgrad.rewrite.worklist import count, rewrite

_PAD = P.Pad(x, p.maybe, v.maybe, axes.maybe, mode="constant").only.named("pad")


@rewrite(P.Conv(_PAD, w, b.maybe), shrinks=count("Pad"))
def pad_into_conv(x: Var, w: Var, b: Var | None, pad: Binding, root: Binding) -> Any:
    """Conv(Pad(x, p), w) = Conv(x, w, pads + p), for zeros beside the spatial axes"""
    pads = _together(pad, root)
    return pads if isinstance(pads, Decline) else op.Conv(x, w, b, **{**root.attrs, "pads": pads})


@rewrite(P.AveragePool(_PAD), shrinks=count("Pad"))
def pad_into_average(x: Var, pad: Binding, root: Binding) -> Any:
    """AveragePool(Pad(x, p)) = AveragePool(x, pads + p, count_include_pad=1), for zeros beside
    the spatial axes
    """
    pads = _together(pad, root)
    if isinstance(pads, Decline):
        return pads
    if root.version < 7 or (any(root.attr("pads") or ()) and not root.attr("count_include_pad")):
        return decline("its own padding does not count, and that of the Pad does")
    if root.attr("ceil_mode", 0):
        return decline("a last window that begins in the padding would be left out")
    kernel = root.attr("kernel_shape")
    # onnxruntime refuses windows that lie in the padding
    if any(n >= k for n, k in zip(pads, (*kernel, *kernel), strict=True)):
        return decline("a window would lie in the padding")
    return op.AveragePool(x, **{**root.attrs, "count_include_pad": 1, "pads": pads})


def _together(pad: Binding, root: Binding) -> list[int] | Decline:
    """The pads of both, if `pad` writes zeros (no -0.0) beside spatial axes only."""
    rank = pad.out.rank
    pads = None if rank is None else _pads(pad, rank)
    if rank is None or pads is None or min(pads) < 0 or any(pads[:2]) or any(pads[rank : rank + 2]):
        return decline("it does not pad spatial axes only, or not by known sizes")
    filler = _filler(pad)
    if filler is None or filler != 0 or np.signbit(filler):
        return decline("it pads with another value")
    if root.attr("auto_pad", "NOTSET") not in ("NOTSET", b"NOTSET"):
        return decline("the padding follows from the size")
    own = root.attr("pads") or [0] * (2 * (rank - 2))
    return [m + n for m, n in zip(own, [*pads[2:rank], *pads[rank + 2 :]], strict=True)]


def _pads(pad: Binding, rank: int) -> list[int] | None:
    """Begins of all axes, then ends."""
    if pad.version < 11:
        given = pad.attr("pads") or pad.attr("paddings")
        return None if given is None or len(given) != 2 * rank else list(given)
    sizes, named = pad.operand(1), pad.operand(3)
    ints = None if sizes is None else sizes.ints
    axes = tuple(range(rank)) if named is None else named.ints
    if (
        ints is None
        or axes is None
        or len(ints) != 2 * len(axes)
        or not all(-rank <= k < rank for k in axes)
    ):
        return None
    found = [0] * (2 * rank)
    for i, k in enumerate(axes):
        found[k % rank], found[k % rank + rank] = ints[i], ints[i + len(axes)]
    return found


def _filler(pad: Binding) -> np.float64 | None:
    """The value that it pads with; None when that is not known."""
    if pad.version < 11:
        return np.float64(pad.attr("value", 0.0))
    given = pad.operand(2)
    if given is None:
        return np.float64(0.0)
    array = given.const
    return (
        None
        if array is None or array.size != 1 or array.dtype.kind not in "fiu"
        else np.float64(array.item())
    )
