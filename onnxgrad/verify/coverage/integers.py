"""Bounds of operators that round, wrap and saturate: casts, quantisation, periods, bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from onnx import TensorProto
from onnx.helper import tensor_dtype_to_np_dtype

from onnxgrad.verify.coverage.bounds import (
    ABOVE,
    ALL,
    AT,
    BELOW,
    BOTH,
    MOST_CENTERS,
    SAMPLE,
    Side,
    Sides,
    around,
    centers_of,
    number,
    side_of,
    sides_of,
)
from onnxgrad.verify.coverage.counters import Array, Attributes


def modulus(attributes: Attributes, operands: Sequence[Any], results: Sequence[Any]) -> list[Side]:
    """Returns the sides of 0 and of the period, for each sign of the dividend."""
    x, y = map(np.asarray, operands)
    if y.dtype.kind == "f" and not attributes.get("fmod"):
        return []  # an ordinary quotient
    period = np.abs(y.astype(np.float64))
    centers = [float(v) for v in np.unique(period)[:MOST_CENTERS]]
    at = f"{centers[0]:g}" if len(centers) == 1 else "its period"
    words = f"below {at}", f"at {at}", f"above {at}"
    found = [Side(around(x, period, ALL), ALL, words, tuple(centers))]
    if x.dtype.kind != "u":
        low = Side(around(x, -period), BOTH, (f"below -{at}", "", f"above -{at}"),
                   tuple(-v for v in centers))  # fmt: skip
        found += [side_of(x, 0), low]
    return found


def cast(attributes: Attributes, operands: Sequence[Any], results: Sequence[Any]) -> list[Side]:
    """Returns the sides of the ends of a narrow type, and of fractions that a cast cuts off."""
    to = attributes.get("to")
    return (
        []
        if to in WIDE and np.asarray(operands[0]).dtype.kind != "f"
        else cast_back(attributes, operands, results)
    )


def cast_back(
    attributes: Attributes, operands: Sequence[Any], results: Sequence[Any]
) -> list[Side]:
    """Returns the sides of `cast` also for wide types and truth values, which decide nothing
    unless they become other numbers again.
    """
    x, to = np.asarray(operands[0]), attributes.get("to")
    if x.dtype.kind not in "iuf" or to is None:
        return []
    if to == TensorProto.BOOL:
        zero = x == 0
        seen = AT * bool(zero.any()) | ABOVE * bool((~zero & (x != 1)).any())
        return [Side(seen, AT | ABOVE, ("", "0", "other than 0 and 1"), (0, 1, 2, -1))]
    if to in _FLOAT_ENDS:
        ends = _FLOAT_ENDS[to] if x.dtype.kind == "f" else None
        if ends is None:
            return []
        zero = [_vanishing(x)] if to == TensorProto.FLOAT16 else []
        return [side_of(x, -ends), side_of(x, ends), *zero]
    target = tensor_dtype_to_np_dtype(to)
    limits = limits_of(target)
    if limits is None:
        return []
    low, high = limits
    if x.dtype.kind == "f":
        found = [_fractions(x)]
        return [*found, side_of(x, low), side_of(x, high)] if high < 2**17 else found
    own = np.iinfo(x.dtype)
    return [
        side_of(x, bound) for bound in (low, high) if own.min < bound < own.max
    ]  # fmt: skip


WIDE = {TensorProto.BOOL, TensorProto.INT32, TensorProto.UINT32, TensorProto.INT64,
        TensorProto.UINT64}  # fmt: skip
CAST_BACK = "Cast, and back"
# the largest finite value of a narrow float
_FLOAT_ENDS = {
    TensorProto.FLOAT16: 65504.0,
    TensorProto.FLOAT8E4M3FN: 448.0,
    TensorProto.FLOAT8E4M3FNUZ: 240.0,
    TensorProto.FLOAT8E5M2: 57344.0,
    TensorProto.FLOAT8E5M2FNUZ: 57344.0,
}


def _vanishing(x: Array) -> Side:
    """Returns whether numbers that float16 rounds to 0 are the largest of a run: beside others
    nothing shows.
    """
    least = 2.0**-25
    largest = np.max(np.abs(x), initial=0.0)
    words = f"at most {least:.2g} in size throughout", "", ""
    return Side(BELOW * bool(0 < largest <= least), BELOW, words, (least / 2,), 0, False)


def limits_of(dtype: np.dtype[Any]) -> tuple[int, int] | None:
    """Returns the least and the largest value of a type of integers, else None."""
    if dtype.kind in "iu":
        known: Any = np.iinfo(dtype)
    elif "int" in dtype.name:
        known = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]
    else:
        return None
    return int(known.min), int(known.max)


def _fractions(x: Array) -> Side:
    """Returns whether a float with a fraction is cut, of each sign."""
    few = x.reshape(-1)[:SAMPLE]
    cut = few != np.trunc(few)
    seen = sides_of((cut & (few < 0)).any(), (cut & (few > 0)).any())
    return Side(seen, BOTH, ("a fraction below 0", "", "a fraction above 0"), (-1.5, 1.5), 0, False)


def steps(attributes: Attributes, operands: Sequence[Any], results: Sequence[Any]) -> list[Side]:
    """Returns whether Floor and Ceil meet whole numbers, and fractions of each sign."""
    x = operands[0]
    fractions = _fractions(x)
    whole = AT * bool((x == np.trunc(x)).any())
    words = fractions.words[0], "a whole number", fractions.words[2]
    return [Side(fractions.seen | whole, ALL, words, (-1.5, -1.0, 0.5, 1.0), 0, False)]


def halves(attributes: Attributes, operands: Sequence[Any], results: Sequence[Any]) -> list[Side]:
    """Returns whether Round meets halves above even and odd numbers, and fractions beside them."""
    x = np.asarray(operands[0])
    below = np.floor(x)
    seen = around(x - below, 0.5, ALL)
    odd = (below[x - below == 0.5] % 2 != 0) if seen & AT else np.zeros(0, bool)
    words = "a fraction below a half", "", "a fraction above a half"
    parities = sides_of((~odd).any(), odd.any())
    return [
        Side(seen, BOTH, words, (0.25, 0.75), 0, False),
        Side(parities, BOTH, ("a half above an even number", "", "a half above an odd number"),
             (0.5, 1.5, 2.5, -0.5, -1.5), 0, False),
    ]  # fmt: skip


def quantized(
    attributes: Attributes, operands: Sequence[Any], results: Sequence[Any]
) -> list[Side]:
    """Returns whether QuantizeLinear saturates at each end of its type."""
    limits = limits_of(np.asarray(results[0]).dtype)
    x, scale = operands[0], np.asarray(operands[1])
    if limits is None:
        return []
    zero: Any = 0.0
    if len(operands) > 2 and operands[2] is not None:
        zero = np.asarray(operands[2]).astype(np.float64)
    if scale.ndim == 1 and scale.size > 1:
        axis = attributes.get("axis", 1) % x.ndim
        shape = [-1 if i == axis else 1 for i in range(x.ndim)]
        scale, zero = scale.reshape(shape), np.reshape(zero, shape) if np.size(zero) > 1 else zero
    elif scale.size > 1:  # in blocks
        return saturated(attributes, operands, results)
    low, high = ((end + half - zero) * scale for end, half in zip(limits, (-0.5, 0.5)))
    seen = [number(b) if np.size(b) == 1 else np.asarray(b) for b in (low, high)]
    beside = [centers_of(b, 1.001) for b in seen]
    return [
        Side(around(x, seen[0]), BOTH, (f"saturated at {limits[0]}", "", f"above {limits[0]}"),
             beside[0]),
        Side(around(x, seen[1]), BOTH, (f"below {limits[1]}", "", f"saturated at {limits[1]}"),
             beside[1]),
    ]  # fmt: skip


def saturated(
    attributes: Attributes, operands: Sequence[Any], results: Sequence[Any]
) -> list[Side]:
    """Returns whether a quantised result lies at the ends of its type."""
    x = np.asarray(results[0])
    limits = limits_of(x.dtype)
    if limits is None:
        return []
    seen = x.astype(np.int64)
    inner = limits_of(np.asarray(operands[0]).dtype) or ()
    return [
        Side(around(seen, end, AT) & AT, AT, ("", f"at {end}", ""), tuple(inner), 0, False)
        for end in limits
    ]


def wrapped(operation: Callable[..., Any]) -> Sides:
    """Returns the sides of a sum or product of narrow integers: whether it left their range."""

    def sides(
        attributes: Attributes, operands: Sequence[Any], results: Sequence[Any]
    ) -> list[Side]:
        x, limits = np.asarray(operands[0]), limits_of(np.asarray(operands[0]).dtype)
        if limits is None or x.dtype.itemsize > 2:
            return []
        exact = operation(*(np.asarray(v).astype(np.int64) for v in operands))
        seen = ABOVE * bool((exact != np.asarray(results[0])).any())
        return [Side(seen, ABOVE, ("", "", f"outside of {x.dtype.name}"), limits, 0, False)]

    return sides


def bits(attributes: Attributes, operands: Sequence[Any], results: Sequence[Any]) -> list[Side]:
    """Returns the sides of 0 and of a mask that is one number."""
    (x, mask), operand = map(np.asarray, operands), 0
    if x.size == 1 and mask.size != 1:
        x, mask, operand = mask, x, 1
    bounds = [mask.reshape(-1)[0]] if mask.size == 1 else []
    bounds += [0] if x.dtype.kind == "i" else []
    return [side_of(x, int(bound), BOTH, operand) for bound in dict.fromkeys(bounds)]


def shifted(attributes: Attributes, operands: Sequence[Any], results: Sequence[Any]) -> list[Side]:
    """Returns the sides of the number from which bits are lost."""
    x, by = map(np.asarray, operands)
    if by.size != 1:
        return []
    shift = int(by.reshape(-1)[0])
    left = attributes.get("direction") == "LEFT"
    return [side_of(x, 2 ** max(8 * x.dtype.itemsize - shift, 0) if left else 2**shift)]
