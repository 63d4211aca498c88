"""Types of values: element type and symbolic shape, and comparisons of shapes.

A dimension is an int (known), a str (a symbol or an expression of symbols, see `ir.sizes`; equal
texts mean equal sizes) or None (unknown). A shape is a tuple of dimensions, or None if the rank is
unknown.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, TypeAlias, TypeGuard

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, TensorShapeProto, TypeProto

from onnxgrad.ir.sizes import Dim as Dim
from onnxgrad.ir.sizes import dim_of, together

Shape: TypeAlias = tuple[Dim, ...]
Array: TypeAlias = npt.NDArray[np.generic]

FLOAT_DTYPES = frozenset(
    {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE}
)
INT_DTYPES = frozenset(
    {
        TensorProto.INT8,
        TensorProto.INT16,
        TensorProto.INT32,
        TensorProto.INT64,
        TensorProto.UINT8,
        TensorProto.UINT16,
        TensorProto.UINT32,
        TensorProto.UINT64,
    }
)

_SHORT = {
    "FLOAT": "f32",
    "DOUBLE": "f64",
    "FLOAT16": "f16",
    "BFLOAT16": "bf16",
    "BOOL": "bool",
    "STRING": "str",
    "UNDEFINED": "?",
    "COMPLEX64": "c64",
    "COMPLEX128": "c128",
}


@lru_cache(maxsize=64)
def dtype_name(dtype: int) -> str:
    """Returns the short name of an ONNX element type: f32, i64, bool, f8e4m3fn, ..."""
    if dtype not in TensorProto.DataType.values():
        return f"dtype{dtype}"
    name = str(TensorProto.DataType.Name(dtype))
    if name in _SHORT:
        return _SHORT[name]
    for long, short in (("UINT", "u"), ("INT", "i"), ("FLOAT", "f")):
        if name.startswith(long):
            return short + name[len(long) :].lower()
    return name.lower()


@lru_cache(maxsize=64)
def numpy_dtype(dtype: int) -> np.dtype[np.generic]:
    """The numpy dtype that holds elements of an ONNX element type."""
    return onnx.helper.tensor_dtype_to_np_dtype(dtype)


class TypeMismatch(Exception):
    """The operands or attributes do not fit the operator."""


@lru_cache(maxsize=4096)
def _tensor_text(dtype: int, shape: Shape | None) -> str:
    sizes = ["..."] if shape is None else ["?" if d is None else str(d) for d in shape]
    return f"{dtype_name(dtype)}[{','.join(sizes)}]"


class TensorType(NamedTuple):
    """A dense tensor: ONNX element type (TensorProto.DataType) and shape."""

    dtype: int
    shape: Shape | None

    def __str__(self) -> str:
        return _tensor_text(self.dtype, self.shape)


@dataclass(frozen=True, slots=True)
class SequenceType:
    """A sequence of values of one type."""

    elem: Type | None

    def __str__(self) -> str:
        return f"seq({self.elem or '?'})"


@dataclass(frozen=True, slots=True)
class OptionalType:
    """A value of one type, or nothing."""

    elem: Type | None

    def __str__(self) -> str:
        return f"optional({self.elem or '?'})"


@dataclass(frozen=True, slots=True)
class OpaqueType:
    """A type that is carried without being read (maps, sparse tensors, vendor types): its
    serialized TypeProto.
    """

    proto: bytes

    def __str__(self) -> str:
        return str(TypeProto.FromString(self.proto).WhichOneof("value") or "?")


Type: TypeAlias = TensorType | SequenceType | OptionalType | OpaqueType


def type_from_proto(proto: TypeProto) -> Type | None:
    """Returns the type of a TypeProto, None if it is empty."""
    # a model has many values and few types
    data = proto.SerializeToString()
    return _known_type(data) if len(data) <= _MEMORABLE else _type_from_proto(proto)


# types of up to this many bytes are cached
_MEMORABLE = 1 << 10


@lru_cache(maxsize=4096)
def _known_type(data: bytes) -> Type | None:
    return _type_from_proto(TypeProto.FromString(data))


def _type_from_proto(proto: TypeProto) -> Type | None:
    kind = proto.WhichOneof("value")
    if kind == "tensor_type":
        tensor = proto.tensor_type
        if not tensor.HasField("shape"):
            return TensorType(tensor.elem_type, None)
        return TensorType(tensor.elem_type, tuple([_dim(d) for d in tensor.shape.dim]))
    if kind == "sequence_type":
        return SequenceType(type_from_proto(proto.sequence_type.elem_type))
    if kind == "optional_type":
        return OptionalType(type_from_proto(proto.optional_type.elem_type))
    return None if kind is None else OpaqueType(proto.SerializeToString(deterministic=True))


def _dim(dim: onnx.TensorShapeProto.Dimension) -> Dim:
    if dim.HasField("dim_value"):
        return dim.dim_value if dim.dim_value >= 0 else None  # producers write -1 for unknown
    # "?" is written for different sizes in one model, so it names nothing
    return dim_of(dim.dim_param) if dim.dim_param not in ("", "?") else None


@lru_cache(maxsize=4096)
def type_bytes(type_: Type) -> bytes:
    """The serialized TypeProto of a type."""
    return bytes(type_to_proto(type_).SerializeToString())


def type_to_proto(type_: Type | None) -> TypeProto:
    """Returns the TypeProto of a type, an empty one for None."""
    proto = TypeProto()
    if isinstance(type_, TensorType):
        proto.tensor_type.elem_type = type_.dtype
        if type_.shape is not None:
            _write_shape(proto.tensor_type.shape, type_.shape)
    elif isinstance(type_, SequenceType):
        proto.sequence_type.elem_type.CopyFrom(type_to_proto(type_.elem))
    elif isinstance(type_, OptionalType):
        proto.optional_type.elem_type.CopyFrom(type_to_proto(type_.elem))
    elif isinstance(type_, OpaqueType):
        proto.ParseFromString(type_.proto)
    return proto


def _write_shape(proto: TensorShapeProto, shape: Shape) -> None:
    proto.SetInParent()
    for d in shape:
        dim = proto.dim.add()
        if isinstance(d, str):
            dim.dim_param = d
        elif d is not None and d < 1 << 63:  # a sum of sizes may be more than the field holds
            dim.dim_value = d


def without_symbols(type_: Type | None) -> Type | None:
    """The type of a tensor without its named sizes."""
    if not isinstance(type_, TensorType) or type_.shape is None:
        return type_
    return TensorType(type_.dtype, tuple(d if isinstance(d, int) else None for d in type_.shape))


def same_dim(a: Dim, b: Dim) -> bool:
    """Whether two sizes are provably equal: equal ints or equal symbols, never an unknown size."""
    return a is not None and a == b


def same_shape(a: Shape | None, b: Shape | None) -> bool:
    """Whether two shapes are provably equal."""
    return a is not None and b is not None and len(a) == len(b) and all(map(same_dim, a, b))


def contradicts(inferred: Shape, said: Shape) -> bool:
    """Whether two shapes cannot both be right."""
    if len(inferred) != len(said):
        return True
    for a, b in zip(inferred, said):  # no `any`: runs for every value of a model
        if a == b:
            continue
        if isinstance(a, int) and isinstance(b, int):
            return True
    return False


def are_two_numbers(a: Dim, b: Dim) -> bool:
    """Whether two sizes are known and differ."""
    return a != b and isinstance(a, int) and isinstance(b, int)


def is_static(shape: Shape | None) -> TypeGuard[tuple[int, ...]]:
    """Whether every dimension is a known int."""
    return shape is not None and all(isinstance(d, int) for d in shape)


def element_count(shape: Shape | None) -> int | None:
    """The number of elements, None unless every dimension is known."""
    return math.prod(shape) if is_static(shape) else None


def byte_count(type_: Type | None) -> int | None:
    """The size of a tensor of the type as an array, None unless dtype and every dimension are
    known.
    """
    if not isinstance(type_, TensorType) or not type_.dtype:
        return None
    count = element_count(type_.shape)
    return None if count is None else count * numpy_dtype(type_.dtype).itemsize


def broadcast_dim(a: Dim, b: Dim) -> Dim:
    """Returns the size of two dimensions broadcast together, None if it is undecided."""
    if a == 1:
        return b
    if b == 1 or a == b:
        return a
    # a known size other than 1 wins over a symbol: the symbol is either equal to it or 1
    known = [size for size in (a, b) if isinstance(size, int)]
    if known:
        return known[0] if len(known) == 1 else None
    return together(a, b) if isinstance(a, str) and isinstance(b, str) else None


def broadcast_shapes(shapes: Iterable[Shape | None]) -> Shape | None:
    """Returns the shape of symbolic shapes broadcast together as in numpy; None if a rank is
    unknown.
    """
    result: Shape = ()
    for shape in shapes:
        if shape is None:
            return None
        if not result or shape == result:
            result = shape
            continue
        rank = max(len(result), len(shape))
        a = (1,) * (rank - len(result)) + result
        b = (1,) * (rank - len(shape)) + shape
        result = tuple(broadcast_dim(x, y) for x, y in zip(a, b, strict=True))
    return result
