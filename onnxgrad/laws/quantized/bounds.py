"""How large the integers get that a quantized product accumulates, and so whether float32 holds
them exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from onnxgrad.ir.types import Array
from onnxgrad.ir.var import Var
from onnxgrad.laws.quantized.forms import LIMITS

# float32 holds every integer up to this
EXACT = 1 << 24
_UNIT = 2.0**-24


def reach(x: Var, zero: Var | None) -> int:
    """The largest |x - zero|: by the constant values when both are, else by the dtype."""
    low, high = LIMITS[x.dtype]
    if zero is None:
        at = np.zeros(1, np.int64)
    elif zero.const is not None:
        at = np.asarray(zero.const, np.int64).reshape(-1)
    else:
        return high - low
    return int(max(high - at.min(), at.max() - low))


def accumulated(
    x: Var,
    x_zero: Var | None,
    w: Var,
    w_zero: Var | None,
    summed: tuple[int, ...],
    bias: Var | None,
) -> tuple[int, int] | None:
    """(terms, largest |sum|) of the products of `x` with `w`, summed over the axes `summed` of
    `w`; None if unknown.
    """
    if w.shape is None:
        return None
    sizes = [w.shape[a] for a in summed]
    known = [d for d in sizes if isinstance(d, int)]
    if len(known) < len(sizes):
        return None
    terms = prod(known)
    weights = _centred(w, w_zero, summed)
    total = (
        terms * reach(w, w_zero)
        if weights is None
        else int(weights.sum(axis=summed).max(initial=0))
    )
    largest = total * reach(x, x_zero)
    if bias is not None:
        largest += (
            (1 << 31)
            if bias.const is None
            else int(np.abs(np.asarray(bias.const, np.int64)).max(initial=0))
        )
    return terms, largest


def _centred(w: Var, zero: Var | None, summed: tuple[int, ...]) -> Array | None:
    """|w - zero| when both are constants and the zero point is one for all or one per slice that
    is summed.
    """
    array = w.const
    if array is None or (zero is not None and zero.const is None):
        return None
    wide = np.asarray(array, np.int64)
    if zero is None or zero.const is None:
        return np.abs(wide)
    at = np.asarray(zero.const, np.int64)
    if at.size != 1:
        kept = [a for a in range(wide.ndim) if a not in [s % wide.ndim for s in summed]]
        if at.ndim != 1 or not kept or wide.shape[kept[-1]] != at.size:
            return None
        shape = [1] * wide.ndim
        shape[kept[-1]] = at.size
        at = at.reshape(shape)
    else:
        at = at.reshape(())
    apart: Array = np.abs(wide - at)
    return apart


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Sums that float32 may not hold exactly: how far one may be off (None: no bound is known),
    in words as well.
    """

    error: float | None
    words: str


def shortfall(found: tuple[int, int] | None) -> Shortfall | None:
    """What to report when float32 cannot hold the sums exactly; None when it can."""
    if found is None:
        return Shortfall(
            None, "the length of the sum is unknown: exact only while the sums stay below 2^24"
        )
    terms, largest = found
    if largest <= EXACT:
        return None
    # the error of a sum of n terms is at most n u / (1 - n u) times the sum of their magnitudes
    # (Higham, section 3.1)
    error = terms * _UNIT / (1 - terms * _UNIT) * largest if terms * _UNIT < 1 else float(largest)
    return Shortfall(
        error,
        f"sums may reach {largest}, above 2^24: an accumulator may be off by up to {error:.3g}",
    )
