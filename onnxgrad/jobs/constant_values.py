"""The values that `edit` makes constant: numbers, lists, arrays and files, checked against the type
and shape of what they are for.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, TensorProto, ValueInfoProto

from onnxgrad.errors import InputError
from onnxgrad.ir.types import Array, dtype_name, numpy_dtype
from onnxgrad.jobs.kinds import of_known
from onnxgrad.verify import load_inputs
from onnxgrad.verify.feeds.dims import shape_of
from onnxgrad.wording import option, perhaps

_FILES = (".npy", ".npz", ".pb")
_SHOWN = 80  # characters of a value in a message


def values_of(model: ModelProto, given: Mapping[str, Any]) -> dict[str, Array]:
    """Returns the arrays for inputs of a model. Raises InputError for an input that does not exist
    or is not a tensor, and for a value of another type or shape.
    """
    inputs = {v.name: v for v in model.graph.input}
    found = {}
    for name, value in of_known(given, inputs).items():
        where = option(f"--bind {name}", f"bind={{{name!r}: ...}}")
        if name not in inputs:
            raise InputError(
                f"{where}: the model has no input of this name{perhaps(name, inputs, 3)}"
            )
        if not inputs[name].type.HasField("tensor_type"):
            raise InputError(f"{where}: it is not a tensor, and only tensors can be constant")
        found[name] = _array(where, inputs[name], value)
    return found


def _array(where: str, declared: ValueInfoProto, value: Any) -> Array:
    kind = declared.type.tensor_type
    dtype = numpy_dtype(kind.elem_type)
    if isinstance(value, (str, os.PathLike)):
        value = _read(where, declared, os.fspath(value))
    shape = shape_of(declared.name, kind)
    if not isinstance(value, (np.ndarray, np.generic)):
        value = _converted(where, value, kind.elem_type, dtype)
        if value.ndim == 0 and shape and all(isinstance(d, int) for d in shape):
            value = np.full(shape, value)  # a number fills a tensor of fixed shape
    array = np.asarray(value)
    texts = kind.elem_type == TensorProto.STRING and array.dtype.kind in "OUS"
    if array.dtype != dtype and not texts:
        wanted = dtype_name(kind.elem_type)
        raise InputError(
            f"{where}: the model requires {wanted}, but the value is {array.dtype.name}"
        )
    if shape is not None and (
        len(shape) != array.ndim
        or any(isinstance(d, int) and d != s for d, s in zip(shape, array.shape, strict=True))
    ):
        raise InputError(
            f"{where}: the model requires shape [{', '.join(map(str, shape))}], but the value has "
            f"{list(array.shape)}"
        )
    return array.astype(object) if texts else array


def is_file(value: Any) -> bool:
    """Whether the value of an input is the name of a file."""
    return isinstance(value, str) and Path(value).suffix in _FILES


def _read(where: str, declared: ValueInfoProto, text: str) -> Any:
    """Returns the value in a file, or the value of a JSON text; any other word is itself."""
    if is_file(text):
        found = load_inputs(text, ModelProto(graph=GraphProto(input=[declared])))
        if declared.name not in found and len(found) > 1:
            raise InputError(f"{where}: {text} has {', '.join(found)}, but not {declared.name}")
        return found.get(declared.name, next(iter(found.values())))
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        if declared.type.tensor_type.elem_type == TensorProto.STRING:
            return text
    raise InputError(
        f"{where}: {text[:_SHOWN]!r} is neither a number, a list such as [1,2], true or false, nor "
        "a file (.npy, .npz, .pb)"
    )


def _converted(where: str, value: Any, code: int, dtype: np.dtype[Any]) -> Array:
    """Returns Python numbers as an array with the input's type. Raises InputError if it cannot
    represent them.
    """
    try:
        plain = np.asarray(value)
    except ValueError as error:
        raise InputError(f"{where}: {str(value)[:_SHOWN]} is not an array: {error}") from None
    kinds = "US" if code == TensorProto.STRING else "b" if dtype == np.bool_ else "iuf"
    empty = plain.size == 0
    made: Array | None = None
    if empty or plain.dtype.kind in kinds:
        with np.errstate(all="ignore"):
            made = plain.astype(object if kinds == "US" else dtype)
        if kinds == "iuf" and not empty and not _holds(plain, made):
            made = None
    if made is None:
        raise InputError(
            f"{where}: {str(value)[:_SHOWN]} is not a value of {dtype_name(code)}, the input's type"
        )
    return made


def _holds(plain: Array, made: Array) -> bool:
    """Whether whole numbers are unchanged and floats finite."""
    if made.dtype.kind in "iu" or plain.dtype.kind in "iu":
        return all(
            a == b for a, b in zip(made.ravel().tolist(), plain.ravel().tolist(), strict=True)
        )
    finite = zip(plain.ravel().tolist(), made.astype(np.float64).ravel().tolist(), strict=True)
    return all(math.isfinite(a) == math.isfinite(b) for a, b in finite)
