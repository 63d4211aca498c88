"""Checks of the tensors and types in a file: known dtypes, possible sizes, and as many bytes as the
sizes require.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from onnx import SparseTensorProto, TensorProto, TypeProto, ValueInfoProto

from onnxgrad.errors import InputError

# numpy's limit in every supported version; onnxruntime's kernels support far fewer
MOST_AXES = 64
# an entry of external data that no file has: the dtype of data that is converted when it is read
KEPT_AS = "onnxgrad.kept_as"
_DIGITS = 19  # of an offset or a length: as many as int64 has
_KNOWN = frozenset(TensorProto.DataType.values()) - {TensorProto.UNDEFINED}
# bits of one element in raw_data; other dtypes have no raw data, or none that is known
_BITS: dict[int, int] = {
    **dict.fromkeys([TensorProto.UINT8, TensorProto.INT8, TensorProto.BOOL], 8),
    **dict.fromkeys(
        [TensorProto.UINT16, TensorProto.INT16, TensorProto.FLOAT16, TensorProto.BFLOAT16], 16
    ),
    **dict.fromkeys([TensorProto.INT32, TensorProto.UINT32, TensorProto.FLOAT], 32),
    **dict.fromkeys(
        [TensorProto.INT64, TensorProto.UINT64, TensorProto.DOUBLE, TensorProto.COMPLEX64], 64
    ),
    TensorProto.COMPLEX128: 128,
    **dict.fromkeys(range(17, 21), 8),  # the float8 types
    **dict.fromkeys(range(21, 24), 4),  # uint4, int4, float4
    24: 8,  # float8e8m0
    **dict.fromkeys(range(25, 27), 2),  # uint2, int2
}
# the field of the elements if there is no raw_data; int32_data holds all other dtypes
_FIELDS: dict[int, str] = {
    TensorProto.FLOAT: "float_data",
    TensorProto.COMPLEX64: "float_data",
    TensorProto.DOUBLE: "double_data",
    TensorProto.COMPLEX128: "double_data",
    TensorProto.INT64: "int64_data",
    TensorProto.UINT32: "uint64_data",
    TensorProto.UINT64: "uint64_data",
    TensorProto.STRING: "string_data",
}
_PARTS: dict[int, int] = {TensorProto.COMPLEX64: 2, TensorProto.COMPLEX128: 2}


def check_tensor(tensor: TensorProto, where: str) -> None:
    """Raises InputError for an unknown dtype, impossible sizes, or data of another length than the
    sizes require.
    """
    dtype = tensor.data_type
    if dtype not in _KNOWN:
        raise InputError(f"{_named(tensor, where)} has the dtype {dtype}, which does not exist")
    if tensor.HasField("segment"):
        raise InputError(
            f"{_named(tensor, where)} is a segment of a larger tensor: segments are not supported"
        )
    dims = tensor.dims
    if len(dims) > MOST_AXES:
        raise InputError(
            f"{_named(tensor, where)} has {len(dims)} axes; at most {MOST_AXES} can "
            "be computed with"
        )
    negative = [size for size in dims if size < 0]
    if negative:
        raise InputError(f"{_named(tensor, where)} has the size {negative[0]}")
    if tensor.data_location == TensorProto.EXTERNAL:
        _check_place(tensor, _named(tensor, where))
        return
    if dtype == TensorProto.STRING and tensor.HasField("raw_data"):
        raise InputError(f"{_named(tensor, where)} holds strings as raw data, which ONNX forbids")
    held, needed, unit = _length(tensor)
    if needed is not None and held != needed:
        raise InputError(
            f"{_named(tensor, where)} is damaged: it holds {held} {unit}, its sizes {_sizes(dims)} "
            f"require {needed}"
        )


def _length(tensor: TensorProto) -> tuple[int, int | None, str]:
    """The length of the data, the length that it must have (None: any), and their unit."""
    if tensor.HasField("raw_data"):
        return len(tensor.raw_data), raw_bytes(tensor), "bytes"
    dtype, count = tensor.data_type, math.prod(tensor.dims)
    bits = _BITS.get(dtype) or 8
    # below 8 bits several share one entry
    needed = -(-count * bits // 8) if bits < 8 else count * _PARTS.get(dtype, 1)
    return len(getattr(tensor, _FIELDS.get(dtype, "int32_data"))), needed, "values"


def raw_bytes(tensor: TensorProto) -> int | None:
    """The bytes of raw data that the sizes require; None for dtypes without raw data."""
    bits = _BITS.get(tensor.data_type)
    return None if bits is None else -(-math.prod(tensor.dims) * bits // 8)


def _named(tensor: TensorProto, where: str) -> str:
    return f"{where}: tensor '{tensor.name}'"


def _sizes(dims: Iterable[int]) -> str:
    return f"({', '.join(map(str, dims))})"[:80]


def _check_place(tensor: TensorProto, what: str) -> None:
    place = {entry.key: entry.value for entry in tensor.external_data}
    if not place.get("location"):
        raise InputError(f"{what} lies in an external file that is not named")
    if KEPT_AS in place:
        raise InputError(f"{what}: remove the entry '{KEPT_AS}' of its external data")
    for key in ("offset", "length"):
        text = place.get(key, "0")
        if (
            not (isinstance(text, str) and text.isascii() and text.isdecimal())
            or len(text) > _DIGITS
        ):
            raise InputError(
                f"{what}: the {key} of its external data is {str(text)[:40]!r}, not a "
                "number of bytes"
            )


def check_sparse(sparse: SparseTensorProto, where: str) -> None:
    """Raises InputError for sizes, indices or values that do not fit together."""
    what = f"{where}: sparse tensor '{sparse.values.name}'"
    check_tensor(sparse.values, where)
    check_tensor(sparse.indices, where)
    if any(size < 1 for size in sparse.dims) or not 1 <= len(sparse.dims) <= MOST_AXES:
        raise InputError(f"{what} has the sizes {_sizes(sparse.dims)}")
    count, axes = math.prod(sparse.values.dims), list(sparse.indices.dims)
    if len(sparse.values.dims) != 1 or axes not in ([count], [count, len(sparse.dims)]):
        raise InputError(f"{what}: the shapes of its values and indices do not match")
    if sparse.indices.data_type != TensorProto.INT64:
        raise InputError(f"{what}: its indices are not int64")


def check_declared(value: ValueInfoProto, where: str, *, given: bool) -> None:
    """Raises InputError for a declared type that does not exist; `given`: the type of an input must
    be known.
    """
    code = _element(value.type)
    if code is not None and code not in _KNOWN and (given or code != TensorProto.UNDEFINED):
        raise InputError(
            f"{where}: '{value.name}' has the declared dtype {code}, which does not exist"
        )
    if given and code is None and value.type.WhichOneof("value") is None:
        raise InputError(f"{where}: the input '{value.name}' has no type")
    if given and len(value.type.tensor_type.shape.dim) > MOST_AXES:
        axes = len(value.type.tensor_type.shape.dim)
        raise InputError(
            f"{where}: '{value.name}' has {axes} axes; at most {MOST_AXES} can be computed with"
        )


def _element(kind: TypeProto) -> int | None:
    """The element type of a tensor, or of the tensors in a sequence or optional; None for maps and
    missing types.
    """
    while True:
        which = kind.WhichOneof("value")
        if which in ("tensor_type", "sparse_tensor_type"):
            return int(getattr(kind, which).elem_type)
        if which not in ("sequence_type", "optional_type"):
            return None
        kind = getattr(kind, which).elem_type
