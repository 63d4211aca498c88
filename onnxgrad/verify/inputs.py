"""Feeds that make sense: token ids below the vocabulary, masks of 0 and 1, lengths within their sequence, images in [0,
1].
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnx

from onnxgrad.errors import InputError
from onnxgrad.verify.dims import dim_plans, evaluate, required_inputs, shape_of, symbols_in
from onnxgrad.verify.run import Value
from onnxgrad.verify.trace import Tracer, Uses

_MAX_ELEMENTS = 2**28  # a generated input of over a gigabyte helps nobody
_WORDS = ("alpha", "beta", "gamma", "delta", "one two", "", "Zürich", "42")


def feeds_for(
    model: onnx.ModelProto,
    *,
    seed: int,
    dims: Mapping[str, int] | None = None,
    given: Mapping[str, Value] | None = None,
) -> dict[str, Value]:
    """A value for every input that has no default: the same for the same seed, sizes and model.

    `dims`: symbol -> size (see `dims.dim_plans`, whose first plan fills in what is missing); `given`: values that win,
    and whose shapes fix their symbols. Raises InputError naming the input, or the option to pass, where no value can be
    made.
    """
    given = dict(given or {})
    inputs = {value.name: value for value in model.graph.input}
    for name, value in given.items():
        if name not in inputs:
            raise InputError(f"--input {name}: the model has no such input (inputs: {', '.join(inputs)})")
        _check_given(inputs[name], value)
    sizes = dim_plans(model)[0] | dict(dims or {}) | bound_by(model, given)
    tracer: Tracer | None = None
    feeds = given
    for value in required_inputs(model.graph):
        if value.name not in feeds:
            tracer = tracer or Tracer(model, sizes)
            generator = np.random.default_rng([seed, zlib.crc32(value.name.encode())])
            feeds[value.name] = _make(value.name, value.type, tracer, sizes, generator)
    return {name: feeds[name] for name in inputs if name in feeds}


def bound_by(model: onnx.ModelProto, given: Mapping[str, Value]) -> dict[str, int]:
    """The symbols whose size the given arrays fix."""
    found: dict[str, int] = {}
    for value in model.graph.input:
        array = given.get(value.name)
        if not isinstance(array, np.ndarray) or not value.type.HasField("tensor_type"):
            continue
        for dim, size in zip(shape_of(value.name, value.type.tensor_type) or (), array.shape, strict=False):
            if isinstance(dim, str) and symbols_in(dim) == {dim}:
                found[dim] = size
    return found


def _check_given(value: onnx.ValueInfoProto, array: Value) -> None:
    """A given tensor must have the declared dtype, rank and fixed sizes: onnxruntime's own words are hard to read."""
    if not value.type.HasField("tensor_type") or not isinstance(array, np.ndarray):
        return
    kind = value.type.tensor_type
    if kind.elem_type == onnx.TensorProto.STRING:
        fits = array.dtype.kind in "OUS"
    else:
        fits = array.dtype == onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
    if not fits:
        wanted = onnx.TensorProto.DataType.Name(kind.elem_type).lower()
        raise InputError(f"--input {value.name}: the model wants {wanted}, the file holds {array.dtype.name}")
    shape = shape_of(value.name, kind)
    if shape is None:
        return
    if len(shape) != array.ndim or any(isinstance(d, int) and d != s for d, s in zip(shape, array.shape, strict=True)):
        raise InputError(f"--input {value.name}: the model wants shape {shape}, the file holds {list(array.shape)}")


def _make(name: str, kind: onnx.TypeProto, tracer: Tracer, sizes: Mapping[str, int], rng: np.random.Generator) -> Value:
    which = kind.WhichOneof("value")
    if which == "tensor_type":
        return _tensor(name, kind.tensor_type, tracer, sizes, rng)
    if which == "sequence_type":
        return [_make(name, kind.sequence_type.elem_type, tracer, sizes, rng) for _ in range(3)]
    if which == "optional_type":
        return _make(name, kind.optional_type.elem_type, tracer, sizes, rng)
    raise InputError(
        f"no value can be made for the input {name!r} (a {which or 'value without a type'}); "
        f"give one with --input {name}=FILE"
    )


def _tensor(
    name: str, kind: onnx.TypeProto.Tensor, tracer: Tracer, sizes: Mapping[str, int], rng: np.random.Generator
) -> Value:
    dims = shape_of(name, kind)
    shape = [] if dims is None else [evaluate(dim, sizes) for dim in dims]
    if math.prod(shape) > _MAX_ELEMENTS:
        raise InputError(
            f"input {name!r} would have shape {shape}; choose smaller sizes with --dim, "
            f"or give a value with --input {name}=FILE"
        )
    if kind.elem_type == onnx.TensorProto.STRING:
        return np.asarray(rng.choice(_WORDS, shape), object)
    uses = tracer.uses(name)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
    if dtype.kind == "b":
        return _mask(name, shape, rng).astype(bool)
    if dtype.kind == "c":
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)
    if dtype.kind in "iu" or "int" in dtype.name:
        return np.asarray(_integers(name, shape, dtype, uses, rng))
    return np.asarray(_floats(name, shape, uses, rng)).astype(dtype)


def _mask(name: str, shape: list[int], rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """1 for a prefix of each row (never empty), 0 after it, as padding makes them; a scalar flag (`training_mode`,
    `use_cache`) is 0.
    """
    if math.prod(shape) <= 1:
        return np.full(shape, "mask" in name.lower() and bool(shape))
    lengths = (
        rng.integers(shape[-1] // 2 + 1, shape[-1] + 1, [*shape[:-1], 1]) if shape[-1] else np.zeros([*shape[:-1], 1])
    )
    return np.asarray(np.arange(shape[-1]) < lengths)


def _integers(
    name: str, shape: list[int], dtype: np.dtype[Any], uses: Uses, rng: np.random.Generator
) -> np.ndarray[Any, Any]:
    text = name.lower()
    low, high = _whole_bounds(uses, dtype)
    if uses.equal_to and math.prod(shape) == 1:
        return np.full(shape, uses.equal_to[0]).astype(
            dtype
        )  # a switch such as a sampling rate: a value that the model knows
    if "mask" in text or (uses.boolean and not uses.bounded):
        return _mask(name, shape, rng).astype(dtype)
    if "position" in text and shape:
        return np.broadcast_to(np.minimum(np.arange(shape[-1]), high), shape).astype(dtype)
    if uses.count:
        return np.full(shape, 1 if not uses.bounded else max(low, min(1, high))).astype(dtype)
    if "timestep" in text and not uses.bounded:
        low, high = 0, 999
    if not uses.bounded and dtype == np.uint8 and len(shape) in (3, 4):
        low, high = 0, 255
    if "len" in text and uses.bounded:
        return np.full(shape, high).astype(dtype)
    return rng.integers(low, high, shape, dtype=np.int64, endpoint=True).astype(dtype)


def _whole_bounds(uses: Uses, dtype: np.dtype[Any]) -> tuple[int, int]:
    """The closed interval to draw from. Unlimited values stay small: they may be an index, a class or a count that
    could not be traced.
    """
    limits: Any = np.iinfo(dtype) if dtype.kind in "iu" else ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]
    low = 0 if uses.low == -math.inf else math.ceil(uses.low)
    high = low + 1 if uses.high == math.inf else math.floor(uses.high)
    low, high = max(low, int(limits.min)), min(high, int(limits.max))
    return low, max(low, high)


def _floats(name: str, shape: list[int], uses: Uses, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    text = name.lower()
    if uses.boolean or "mask" in text:
        return _mask(name, shape, rng).astype(np.float64)
    if uses.low > -math.inf and uses.high < math.inf:
        return rng.uniform(uses.low, max(uses.low, uses.high), shape)
    if "timestep" in text:
        return np.floor(rng.uniform(0, 1000, shape))
    if uses.count:
        return np.ones(shape)
    if len(shape) == 4 and (shape[1] in (1, 3, 4) or shape[3] in (1, 3, 4)):
        return rng.uniform(0.0, 1.0, shape)
    return rng.standard_normal(shape)
