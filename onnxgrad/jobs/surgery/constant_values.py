"""The values that `edit` makes constant: numbers, lists, arrays and files, checked against the type
and shape of what they are for.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, TensorProto, ValueInfoProto
from onnx.helper import make_tensor_value_info

from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.ir.program import Program
from onnxgrad.ir.types import Array, dtype_name, numpy_dtype
from onnxgrad.jobs.kinds import of_known
from onnxgrad.verify import load_inputs
from onnxgrad.verify.feeds.dims import required_inputs, shape_of, tensor_types
from onnxgrad.wording import known_names, option, shape_text

_FILES = (".npy", ".npz", ".pb")
_FILLS = {"ones": 1, "zeros": 0}
_SHOWN = 80  # characters of a value in a message


@frozen
class Fill:
    """A value for all elements of an input with open sizes, `shape`. `like`: another input of the
    same shape; None if there is none. `sources`: for each symbol, an input and its axis with this
    size.
    """

    value: int
    dtype: int
    shape: tuple[int | str, ...]
    like: str | None
    sources: Mapping[str, tuple[str, int]]

    def at(self, feeds: Mapping[str, Any]) -> Array:
        """Returns the array in a run on these inputs."""
        places = {symbol: (feeds[name], axis) for symbol, (name, axis) in self.sources.items()}
        sizes = {symbol: array.shape[axis] for symbol, (array, axis) in places.items()}
        shape = [d if isinstance(d, int) else sizes[d] for d in self.shape]
        return np.full(shape, self.value, numpy_dtype(self.dtype))


def values_of(model: ModelProto, given: Mapping[str, Any]) -> dict[str, Array | Fill]:
    """Returns the arrays for inputs of a model, or for ones and zeros of open sizes what fills
    them. Raises InputError for an input that does not exist or is not a tensor, for a value of
    another type or shape, and for an open size that no other input has.
    """
    inputs = {v.name: v for v in model.graph.input}
    found: dict[str, Array | Fill] = {}
    words = of_known(given, inputs)
    others = [v for v in required_inputs(model.graph) if not _names_fill(words.get(v.name))]
    for name, value in words.items():
        where = option(f"--bind {name}", f"bind={{{name!r}: ...}}")
        if name not in inputs:
            weights = {t.name for t in model.graph.initializer}
            other = option(f"--set {name}=VALUE", f"set={{{name!r}: ...}}")
            hint = f": {other} replaces that of a weight" if name in weights else ""
            hint = hint or known_names(name, inputs)
            raise InputError(f"{where}: the model has no input of this name{hint}")
        if not inputs[name].type.HasField("tensor_type"):
            raise InputError(f"{where}: it is not a tensor, and only tensors can be constant")
        fill = _fill(where, inputs[name], value, others)
        found[name] = _array(where, inputs[name], value) if fill is None else fill
    return found


def weights_of(program: Program, given: Mapping[str, Any]) -> dict[str, Array]:
    """Returns new arrays for initializers. Raises InputError for an initializer that does not
    exist, and for a value of another type or shape.
    """
    known, found = program.main.initializers, dict[str, Array]()
    inputs = {v.name for v in program.main.inputs}
    for name, value in of_known(given, known).items():
        where = option(f"--set {name}", f"set={{{name!r}: ...}}")
        if name not in known:
            other = option(f"--bind {name}=VALUE", f"bind={{{name!r}: ...}}")
            hint = f": {other} makes an input constant" if name in inputs else ""
            hint = hint or known_names(name, known)
            raise InputError(f"{where}: the model has no initializer of this name{hint}")
        v = known[name]
        found[name] = _array(where, make_tensor_value_info(name, v.dtype, v.shape), value, "weight")
    return found


def _fill(
    where: str, declared: ValueInfoProto, value: Any, others: Sequence[ValueInfoProto]
) -> Fill | None:
    """Returns how ones or zeros fill an input of open sizes; None for other values and inputs.
    Raises InputError if no other input has one of the sizes.
    """
    name, kind = declared.name, declared.type.tensor_type
    shape = shape_of(name, kind)
    fixed = shape is not None and all(isinstance(d, int) for d in shape)
    if fixed or not _is_fill(value, kind.elem_type):
        return None
    if shape is None:
        raise InputError(f"{where}: the number of axes of '{name}' is not declared")
    shapes = {v.name: shape_of(v.name, k) or [] for v in others for k in tensor_types(v.type)}
    places = {d: (n, i) for n, dims in shapes.items() for i, d in enumerate(dims) if d in shape}
    for d in shape:
        if isinstance(d, str) and d not in places:
            whole = option(f"--bind {name}={value}", f"bind={{{name!r}: {value!r}}}")
            raise InputError(
                f"{whole}: no other input has the size '{d}': fix it with "
                f"{option(f'optimize --fix-dim {d}=SIZE', f'fix_dims(model, {{{d!r}: size}})')}, "
                "or pass an array"
            )
    like = next((n for n, dims in shapes.items() if dims == shape), None)
    sources = {d: places[d] for d in shape if isinstance(d, str)}
    return Fill(_FILLS[value], kind.elem_type, tuple(shape), like, sources)


def _is_fill(value: Any, elem_type: int) -> bool:
    return _names_fill(value) and elem_type != TensorProto.STRING


def _names_fill(value: Any) -> bool:
    return isinstance(value, str) and value in _FILLS


def _array(where: str, declared: ValueInfoProto, value: Any, owner: str = "model") -> Array:
    kind = declared.type.tensor_type
    dtype = numpy_dtype(kind.elem_type)
    if _is_fill(value, kind.elem_type):
        value = np.array(_FILLS[value]).astype(dtype)
        value = np.full(shape_of(declared.name, kind) or (), value)
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
            f"{where}: the {owner} requires {wanted}, but the value is {array.dtype.name}: convert "
            f"it, such as with .astype({dtype.name!r})"
        )
    if shape is not None and (
        len(shape) != array.ndim
        or any(isinstance(d, int) and d != s for d, s in zip(shape, array.shape, strict=True))
    ):
        number = array.ndim == 0 and owner == "model"
        open_shape = ": ones and zeros fill open sizes, other numbers do not" if number else ""
        raise InputError(
            f"{where}: the {owner} requires shape {shape_text(shape)}, but the value "
            f"has {shape_text(array.shape)}{open_shape}"
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
        "ones or zeros, nor a file (.npy, .npz, .pb)"
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
