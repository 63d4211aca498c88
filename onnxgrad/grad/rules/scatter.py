"""ScatterElements, ScatterND and TensorScatter, and helpers that emit them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import TensorProto, numpy_helper

from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.grad.registry import vjp
from onnxgrad.grad.rules._common import ZEROS, as_number, beside_zeros, counting
from onnxgrad.ir.emission.arithmetic import from_front, in_dtype_of, size_along
from onnxgrad.ir.emission.fill_and_reshape import fill, reshape_like, zeros_like
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import TensorType, element_count
from onnxgrad.ir.var import Var

_HALF = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16})


def zeros(shape: Var, like: Var) -> Var:
    """Returns zeros of the given shape in the dtype of `like`, to scatter into."""
    return fill(shape, 0.0, like.dtype)


def scatter_elements(data: Var, indices: Var, updates: Var, *, axis: int, reduction: str) -> Var:
    """Emits ScatterElements; the result has the dtype of `data`."""
    if data.dtype not in _HALF or reduction == "none":
        return op.ScatterElements(data, indices, updates, axis=axis, reduction=reduction)
    wide = op.ScatterElements(_wide(data), indices, _wide(updates), axis=axis, reduction=reduction)
    return in_dtype_of(wide, data)


def scatter_nd(data: Var, indices: Var, updates: Var, *, reduction: str) -> Var:
    """Emits ScatterND; the result has the dtype of `data`."""
    if data.dtype not in _HALF or reduction == "none":
        return op.ScatterND(data, indices, updates, reduction=reduction)
    return in_dtype_of(
        op.ScatterND(_wide(data), indices, _wide(updates), reduction=reduction), data
    )


def add_at_numbers(g: Var, x: Var, numbers: Var) -> Var:
    """Returns zeros like `x`, with each element of `g` added to one element.

    numbers: the row-major number of that element, for each element of `g`.
    """
    count = element_count(x.shape)
    flat = op.Reshape(zeros_like(x), [-1]) if count is None else fill([count], 0.0, x.dtype)
    places, values = op.Reshape(numbers, [-1]), op.Reshape(g, [-1])
    return reshape_like(scatter_elements(flat, places, values, axis=0, reduction="add"), x)


def _wide(v: Var) -> Var:
    """Returns `v` in float32; a constant fill, reshaped or not, is filled in float32 directly."""
    made = v.definition
    source = None if made is None or not made.inputs else made.inputs[0]
    result: Var
    if v.dtype == TensorProto.FLOAT:
        return v
    if made is not None and made.is_op("ConstantOfShape"):
        value = made.attrs.get("value")
        number = (
            0.0 if value is None else float(numpy_helper.to_array(value).astype(np.float32).item())
        )
        result = fill(source, number, TensorProto.FLOAT)
    elif made is not None and made.is_op("Reshape") and source is not None and _is_fill(source):
        result = op.Reshape(_wide(source), made.inputs[1], allowzero=made.attrs.get("allowzero"))
    elif made is not None and made.is_op("Cast") and source is not None and _is_fill(source):
        return _wide(source)
    else:
        result = op.Cast(v, to=TensorProto.FLOAT)
    if isinstance(v.type, TensorType):
        result.type = TensorType(TensorProto.FLOAT, v.shape)
    return result


def _is_fill(v: Var) -> bool:
    made = v.definition
    if made is not None and made.is_op("Cast") and made.inputs[0] is not None:
        made = made.inputs[0].definition
    return made is not None and made.is_op("ConstantOfShape")


@frozen
class _Places:
    """The places that a scatter writes: functions that write there (with a reduction) and read
    there.
    """

    write: Callable[[Var, Var, str], Var]
    read: Callable[[Var], Var]


def _nd(indices: Var) -> _Places:
    return _Places(
        lambda data, updates, reduction: scatter_nd(data, indices, updates, reduction=reduction),
        lambda data: op.GatherND(data, indices),
    )


def _elements(indices: Var, axis: int) -> _Places:
    return _Places(
        lambda data, updates, reduction: scatter_elements(
            data, indices, updates, axis=axis, reduction=reduction
        ),
        lambda data: op.GatherElements(data, indices, axis=axis),
    )


def _d_data(g: Var, y: Var, data: Var, updates: Var, at: _Places, reduction: str) -> Var:
    """Returns the partial of the data.

    none: g, zero where written; add: g; mul: g times the factors of the updates; max, min: an even
    share among equal values.
    """
    if reduction == "none":
        return at.write(g, zeros_like(updates), "none")
    if reduction == "add":
        return g
    if reduction == "mul":
        return at.write(g, updates, "mul")
    return op.Where(op.Equal(data, y), g / _winners(y, data, updates, at), 0.0)


def _d_updates(g: Var, y: Var, data: Var, updates: Var, at: _Places, reduction: str) -> Var:
    """Returns the partial of the updates.

    none, add: g at the places written; mul: g times the product of the others; max, min: an even
    share among equal values.
    """
    if reduction in ("none", "add"):
        return at.read(g)
    if reduction == "mul":
        is_zero = op.Equal(updates, 0.0)
        nonzero = op.Where(is_zero, 1.0, updates)
        product, none = g * at.write(data, nonzero, "mul"), counting(zeros_like(data))
        *read, d = beside_zeros(product, updates, lambda v: at.write(none, v, "add"))
        p, w, h = map(at.read, read)
        others = in_dtype_of(p * (d * (d + w) + h), updates)
        return op.Where(is_zero, others, at.read(g * y) / nonzero)
    wins = op.Equal(updates, at.read(y))
    return op.Where(wins, at.read(g / _winners(y, data, updates, at)), 0.0)


def _winners(y: Var, data: Var, updates: Var, at: _Places) -> Var:
    """Returns how many of the datum and its updates equal the result."""
    own = as_number(op.Equal(data, y), y)
    return at.write(own, as_number(op.Equal(updates, at.read(y)), y), "add")


_NOTES = f"max, min: ties share evenly; none: several writers are undefined; mul, {ZEROS}"

vjp(
    "ScatterND",
    lambda g, y, data, indices, updates, reduction: _d_data(
        g, y, data, updates, _nd(indices), reduction
    ),
    None,
    lambda g, y, data, indices, updates, reduction: _d_updates(
        g, y, data, updates, _nd(indices), reduction
    ),
    notes=_NOTES,
    compares=True,
)
vjp(
    "ScatterElements",
    lambda g, y, data, indices, updates, axis, reduction: _d_data(
        g, y, data, updates, _elements(indices, axis), reduction
    ),
    None,
    lambda g, y, data, indices, updates, axis, reduction: _d_updates(
        g, y, data, updates, _elements(indices, axis), reduction
    ),
    notes=_NOTES,
    compares=True,
)


def _written(past: Var, update: Var, start: Var | None, axis: int, mode: str) -> Var:
    """Returns the place along `axis` where each element of `update` was written."""
    rank = update.rank
    if rank is None:
        raise InputError(
            f"TensorScatter needs an update of known rank, '{update.name}' is {update.type}"
        )
    axis = from_front(axis, rank)
    along = np.ones(rank, np.int64)
    along[axis] = -1
    count = op.Range(np.int64(0), op.Squeeze(size_along(update, axis)), np.int64(1))
    places = op.Reshape(count, along)
    if start is not None:
        batch = np.ones(rank, np.int64)
        batch[0] = -1
        places = op.Add(places, op.Reshape(start, batch))
    if mode == "circular":
        places = op.Mod(places, size_along(past, axis))
    return op.Expand(places, op.Shape(update))


vjp(
    "TensorScatter",
    lambda g, y, past, update, start=None, *, axis, mode: op.TensorScatter(
        g, zeros_like(update), start, axis=axis, mode=mode
    ),
    lambda g, y, past, update, start=None, *, axis, mode: op.GatherElements(
        g, _written(past, update, start, axis, mode), axis=axis
    ),
)
