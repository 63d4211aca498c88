"""Sums, factors, dtypes and sizes that formulas share, without nodes that would change nothing."""

from __future__ import annotations

from functools import reduce
from typing import Any, TypeVar, cast

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var

V = TypeVar("V", bound="Var | None")


def plus(first: V, *others: Var | None) -> V:
    """Returns the sum of the operands that are not None; None if all are."""
    given = [v for v in (first, *others) if v is not None]
    return cast(V, reduce(lambda a, b: a + b, given) if given else None)


def scaled(v: Var, factor: float) -> Var:
    """Returns v times a number, without a Mul if the number is 1."""
    return v if factor == 1.0 else v * factor


def in_dtype_of(v: Var, like: Var) -> Var:
    """Returns `v`, cast to the dtype of `like` if the dtypes differ."""
    return v if v.dtype == like.dtype else op.Cast(v, to=like.dtype)


def rank_of(v: Var, binding: Binding) -> int:
    """Returns the rank of `v`. Raises InputError if the rank is not known."""
    if v.rank is None:
        raise InputError(
            f"the formula of '{binding}' needs the rank of '{v.name}', which shape inference does "
            "not know"
        )
    return v.rank


def size_along(v: Var, axis: int) -> Any:
    """Returns the size of one axis as a vector of length 1, a constant if the size is known."""
    d = None if v.shape is None else v.shape[axis]
    if isinstance(d, int):
        return np.array([d], np.int64)
    return op.Shape(v, start=axis, end=None if axis == -1 else axis + 1)


def from_front(axis: int, rank: int) -> int:
    """Returns the axis as a non-negative number."""
    return axis + rank if axis < 0 else axis
