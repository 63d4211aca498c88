"""The elements of a tensor that lies in the file's own bytes, and a tensor of elements."""

from __future__ import annotations

import sys

import numpy as np
from onnx import TensorProto, numpy_helper

from onnxgrad.errors import InputError
from onnxgrad.ir.attributes import text
from onnxgrad.ir.types import Array

# what lies in memory as it does in a file; onnx's helpers ask ten times as long for the same
_AS_IT_LIES: dict[np.dtype[np.generic], int] = {
    np.dtype(kind): number
    for kind, number in (
        (np.float32, TensorProto.FLOAT),
        (np.float64, TensorProto.DOUBLE),
        (np.int64, TensorProto.INT64),
        (np.int32, TensorProto.INT32),
        (np.bool_, TensorProto.BOOL),
    )
    if sys.byteorder == "little"
}


def tensor_of(array: Array, name: str) -> TensorProto:
    """The tensor of an array, as `onnx.numpy_helper.from_array` makes it."""
    number = _AS_IT_LIES.get(array.dtype)
    if number is None:
        return numpy_helper.from_array(array, name)
    return TensorProto(name=name, data_type=number, dims=array.shape, raw_data=array.tobytes())


def elements(tensor: TensorProto) -> Array:
    """The tensor as an array; strings, which need not be UTF-8, as objects. Raises InputError
    when it is damaged.
    """
    try:
        if tensor.data_type == TensorProto.STRING:
            return np.array([text(s) for s in tensor.string_data], object).reshape(
                tuple(tensor.dims)
            )
        return numpy_helper.to_array(tensor)
    except (TypeError, ValueError) as e:
        reason = (str(e) or type(e).__name__).splitlines()[0]
        raise InputError(f"the data of tensor '{tensor.name}' is damaged: {reason}") from e
