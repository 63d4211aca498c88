"""Whether constants computed anew keep the digits of their dtype: what is scaled may overflow,
or vanish near 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto

from onnxgrad.folding.evaluate import evaluate
from onnxgrad.ir.types import Array, numpy_dtype
from onnxgrad.ir.var import Var

# the distance from 1 to the next number
EPSILON: dict[int, float] = {
    TensorProto.BFLOAT16: 2.0**-7,
    TensorProto.FLOAT16: 2.0**-10,
    TensorProto.FLOAT: 2.0**-23,
    TensorProto.DOUBLE: 2.0**-52,
}
# the smallest number with all its digits
NORMAL: dict[int, float] = {
    TensorProto.BFLOAT16: 2.0**-126,
    TensorProto.FLOAT16: 2.0**-14,
    TensorProto.FLOAT: 2.0**-126,
    TensorProto.DOUBLE: 2.0**-1022,
}
# how many bindings over constants one value may be computed from
_REACH = 100


def reason_of_rounding(exact: Any, dtype: int, name: str) -> str | None:
    """Why rounding `exact` to the float `dtype` loses more than its last digit, None when it does
    not.

    The error is held against each slice along each axis, so that no channel pays for a larger one
    beside it. Only dead channels may vanish, those below the last digit of the last digit of the
    whole: trained networks have many.
    """
    exact = np.asarray(exact)
    with np.errstate(all="ignore"):
        narrow = exact.astype(numpy_dtype(dtype))
        if not np.isfinite(narrow).all():
            return f"{name} is not finite"
        if not ((np.abs(narrow) < NORMAL[dtype]) & (exact != 0)).any():
            return None  # each element is right to half of its last digit, and so is every slice
        wide, rounded = exact.astype(np.longdouble), narrow.astype(np.longdouble)
        error = np.square(rounded - wide)
        size = np.square(wide)
        epsilon = EPSILON[dtype]
        least = epsilon**4 * size.sum()
        for axis in range(wide.ndim) if wide.ndim else [None]:
            others = tuple(i for i in range(wide.ndim) if i != axis)
            if (error.sum(others) > epsilon**2 * np.maximum(size.sum(others), least)).any():
                return f"{name} nears the smallest number of its dtype and would lose digits"
    return None


def fixed_value(v: Var, reach: int = _REACH) -> Array | None:
    """The value of a constant or of unfolded bindings over constants, None where numpy may give
    other bits.
    """
    if v.is_constant:
        return v.const
    b = v.definition
    if b is None or b.domain != "" or b.blocks or b.has_refs or reach <= 0 or len(b.outputs) != 1:
        return None
    operands = [None if u is None else fixed_value(u, reach - 1) for u in b.inputs]
    if any(u is not None and a is None for u, a in zip(b.inputs, operands, strict=True)):
        return None
    return evaluate(b, operands)
