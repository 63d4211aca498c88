"""What normalizations share: statistics of another dtype, per channel, spread over the elements."""

from __future__ import annotations

from collections.abc import Sequence

from onnxgrad.errors import InputError
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var


def as_dtype_of(v: Var, like: Var) -> Var:
    """Statistics may be float32 where the data are float16: calculate there, the engine casts
    back.
    """
    return v if v.dtype == like.dtype else op.Cast(v, to=like.dtype)


def _plus(a: Var | None, b: Var) -> Var:
    return b if a is None else a + b


def spread(part: Var, like: Var, axes: Sequence[int]) -> Var:
    """`part` divided evenly over the elements along `axes`."""
    ones = op.Sign(op.Abs(like) + 1.0)
    return part * (ones / op.ReduceSum(ones, list(axes), keepdims=1))


def per_channel(v: Var, rank: int) -> Var:
    """(C,) as (C, 1, ...), to broadcast against (N, C, ...)."""
    return op.Unsqueeze(v, list(range(1, rank - 1))) if rank > 2 else v


def _rank_of(x: Var, binding: Binding) -> int:
    if x.rank is None:
        raise InputError(
            f"the gradient of '{binding}' needs the rank of its input, which shape inference does "
            "not know"
        )
    return x.rank
