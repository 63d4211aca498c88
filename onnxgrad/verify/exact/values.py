"""Values of exact evaluation: algebraic tensors, and integers and booleans that are known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
from onnx import TensorProto, helper

from onnxgrad.frozen import frozen
from onnxgrad.verify.exact.field import Array, Parts, Undecided

BOOL = TensorProto.BOOL
# dtypes by the significant bits of their numbers: a cast to more bits is the identity
BITS: dict[int, int] = {
    TensorProto.DOUBLE: 53, TensorProto.FLOAT: 24, TensorProto.FLOAT16: 11, TensorProto.BFLOAT16: 8,
    TensorProto.FLOAT8E4M3FN: 4, TensorProto.FLOAT8E4M3FNUZ: 4, TensorProto.FLOAT8E5M2: 3,
    TensorProto.FLOAT8E5M2FNUZ: 3, TensorProto.FLOAT4E2M1: 2, TensorProto.FLOAT8E8M0: 1,
}  # fmt: skip


# integer dtypes by the bits of their largest magnitudes: -128 is a power of two
_INTEGER_BITS: dict[int, int] = {
    TensorProto.INT8: 7, TensorProto.UINT8: 8, TensorProto.INT16: 15, TensorProto.UINT16: 16,
    TensorProto.INT32: 31, TensorProto.UINT32: 32,
}  # fmt: skip


def widens(source: int, target: int) -> bool:
    """Whether each number of a dtype, a float or small integers, is a number of a float dtype."""
    if source in _INTEGER_BITS:
        wide = target in (TensorProto.DOUBLE, TensorProto.FLOAT, TensorProto.FLOAT16)
        return wide and _INTEGER_BITS[source] <= BITS[target]
    if source == target or target == TensorProto.DOUBLE:
        return True
    return target == TensorProto.FLOAT and source != TensorProto.DOUBLE


@frozen
class Num:
    """A tensor of exact numbers. `parts`: its residues, or its rationals. `dtype`: of the ONNX
    value; bools are the numbers 0 and 1. `degree`: of its elements as rational functions of the
    inputs, where each quotient counts as a variable; `atoms`: the numbers of these quotients.
    `image`: a dtype whose numbers its elements are known to be. `raw`: the constant in its dtype.
    `infinite`: elements may be symbols for inf or NaN.
    """

    parts: Parts
    dtype: int
    degree: int = 1
    image: int = 0
    raw: Array | None = None
    infinite: bool = False
    atoms: frozenset[int] = frozenset()

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.parts[0].shape)

    @property
    def ndim(self) -> int:
        return int(self.parts[0].ndim)

    @property
    def is_float(self) -> bool:
        return self.dtype in BITS

    def map(self, move: Callable[[Array], Any]) -> Num:
        """Returns the tensor with its elements moved."""
        return replace(
            self,
            parts=tuple(np.asarray(move(part)) for part in self.parts),
            raw=None if self.raw is None else np.asarray(move(self.raw)),
        )


@frozen
class Known:
    """Integers, booleans or strings that are known. `free`: they depend on integers that the caller
    chooses.
    """

    array: Array
    dtype: int
    free: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    @property
    def ndim(self) -> int:
        return int(self.array.ndim)

    @property
    def is_float(self) -> bool:
        return False

    def map(self, move: Callable[[Array], Any]) -> Known:
        """Returns the tensor with its elements moved."""
        return replace(self, array=np.asarray(move(self.array)))


Value: TypeAlias = "Num | Known"


def known(array: Any, dtype: int | None = None, free: bool = False) -> Known:
    """Returns a known tensor in the numpy type of its dtype."""
    a = np.asarray(array)
    code = helper.np_dtype_to_tensor_dtype(a.dtype) if dtype is None else dtype
    return Known(a, int(code), free)


def integers(value: Value | None, what: str) -> list[int]:
    """Returns the elements of a small integer tensor. Raises Undecided if they are not known, or if
    the caller chooses them: a few draws would not show what other sizes and axes do.
    """
    if isinstance(value, Known) and value.free:
        raise Undecided(f"{what} that the caller chooses")
    return [int(i) for i in array_of(value, what).reshape(-1)]


def array_of(value: Value | None, what: str) -> Array:
    """Returns the elements of a known tensor. Raises Undecided if they are not known."""
    if isinstance(value, Known):
        return value.array
    raise Undecided(f"{what} depends on values")


def number(value: Value | None, what: str) -> float:
    """Returns a constant number. Raises Undecided if the value is none."""
    array = value.raw if isinstance(value, Num) else None if value is None else value.array
    if array is None or array.size != 1:
        raise Undecided(f"{what} is not a constant")
    return float(array.reshape(-1)[0])
