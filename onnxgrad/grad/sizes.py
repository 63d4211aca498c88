"""Sizes of values as operands: numbers where the types know them, else what computes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from onnxgrad.ir.emission.constant import constant
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var


def sizes_of(v: Var, start: int, end: int | None) -> Any:
    """Some of a value's sizes, as a vector."""
    if v.shape is not None and all(isinstance(d, int) for d in v.shape[start:end]):
        return np.array(v.shape[start:end], np.int64)
    return op.Shape(v, start=start, end=end)


def count_of(v: Var, start: int) -> Any:
    """The number of elements along the axes from `start` on, as a vector of length 1."""
    sizes = sizes_of(v, start, None)
    if isinstance(sizes, np.ndarray):
        return np.array([sizes.prod()], np.int64)
    return op.ReduceProd(sizes, keepdims=1)


def joined(vectors: Sequence[Any]) -> Any:
    """Sizes one after the other, as an operand."""
    if all(isinstance(v, np.ndarray) for v in vectors):
        return constant(np.concatenate(vectors))
    made = [constant(v) if isinstance(v, np.ndarray) else v for v in vectors]
    return made[0] if len(made) == 1 else op.Concat(*made, axis=0)
