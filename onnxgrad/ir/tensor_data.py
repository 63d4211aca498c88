"""The elements of a tensor that lies in the file's own bytes."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, numpy_helper

from onnxgrad.errors import InputError
from onnxgrad.ir.attributes import text
from onnxgrad.ir.types import Array


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
