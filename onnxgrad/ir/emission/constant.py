"""Constants of the block emitted into."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, numpy_helper

from onnxgrad.errors import InternalError
from onnxgrad.ir import attributes
from onnxgrad.ir.emission.append import append
from onnxgrad.ir.emission.emitter import Emitter, emitter
from onnxgrad.ir.tensor_data import tensor_of
from onnxgrad.ir.types import INT_DTYPES, Array, TensorType, dtype_name, numpy_dtype
from onnxgrad.ir.var import Var


def constant(value: Any, dtype: int | None = None, name: str = "const") -> Var:
    """A constant of the block emitted into: an initializer, or a Constant binding inside a function
    body.

    Without `dtype` numpy values keep their own and Python's become bool, int64 or float32. Raises
    InternalError when `dtype` cannot hold the value (0.5 as an integer, 1e9 as float16).
    """
    at = emitter()
    # the numbers in formulas are asked for again and again: their text tells them apart soonest
    if at.known is None:  # nothing is shared
        return _new(at, _array(value, dtype), name)
    number = (repr(value), dtype) if type(value) in (int, float) else None
    var = _known(at, number)
    if var is not None:
        return var
    array = _array(value, dtype)
    key = None
    if array.dtype != object:
        key = ("constant", str(array.dtype), array.shape, array.tobytes())
    var = _known(at, key) or _new(at, array, name)
    at.known.update({k: var for k in (number, key) if k is not None})
    return var


def _known(at: Emitter, key: object) -> Var | None:
    """The constant emitted under this key before, where equal ones are shared."""
    found: Var | None = None if at.known is None or key is None else at.known.get(key)
    if found is None:
        return None
    there = (
        found.block.initializers.get(found.name) is found
        if found.definition is None
        else found.definition.is_live
    )
    return found if there else None


def _new(at: Emitter, array: Array, name: str) -> Var:
    program = at.block.program
    # below IR 4 an initializer would have to be a graph input
    if at.block.is_function or program.ir_version < 4:
        tensor = numpy_helper.from_array(array)
        schema = attributes.schema("Constant", at.block.opsets.get("", 0), "")
        # the schema before version 9 knows floats only; runtimes take every dtype
        floats = array.dtype.kind == "f" or (schema is not None and schema.since_version >= 9)
        var = append(
            at, "Constant", "", schema if floats else None, [], [("value", tensor)], [True]
        ).out
        var.type = TensorType(tensor.data_type, tuple(tensor.dims))
        return var
    tensor = tensor_of(array, program.names.fresh(name))
    var = at.block.add_initializer(tensor)
    at.constants.append(var)
    return var


def _array(value: Any, dtype: int | None) -> Array:
    source = np.asarray(value)
    if source.dtype.kind == "U":
        return source.astype(object)
    if dtype is None:
        is_python_float = source.dtype == np.float64 and not isinstance(
            value, (np.ndarray, np.generic)
        )
        return source.astype(np.float32) if is_python_float else source
    with np.errstate(all="ignore"):
        array = source.astype(numpy_dtype(dtype))
    if source.dtype.kind in "biuf" and not _holds(array, source, dtype):
        raise InternalError(f"{dtype_name(dtype)} cannot hold the constant {value!r}")
    return array


def _holds(array: Array, source: Array, dtype: int) -> bool:
    if dtype in INT_DTYPES or dtype == TensorProto.BOOL:
        return bool(np.array_equal(array, source))
    lost = ~np.isfinite(array.astype(np.float64)) & np.isfinite(source)
    return not bool(lost.any())
