"""Float copies of a quantised file's integer weights, which train in their place
(quantisation-aware training, Jacob et al., 2018).

A file stores such a weight as integers before a DequantizeLinear. In a training step the weight is
a float of the same name, rounded by the same scale in every run, so that evaluation computes what
the file will. Trained values are written back as integers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import product
from types import MappingProxyType
from typing import Any

import numpy as np
from onnx import TensorProto

from onnxgrad.errors import InputError
from onnxgrad.grad.straight_through import BOUNDS, along
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.ops import op
from onnxgrad.ir.program import Program
from onnxgrad.ir.protobufs import tensor_of
from onnxgrad.ir.types import Array, numpy_dtype
from onnxgrad.ir.var import Var

_UNTRAINED: Mapping[str, Array] = MappingProxyType({})
_ROUNDING = frozenset({"QuantizeLinear", "DequantizeLinear"})


def open_integers(program: Program) -> None:
    """Puts a float weight and its rounding before each DequantizeLinear of stored integers.

    Integers that something else reads too stay, and those with a scale per block.
    """
    block = program.main
    for back in [b for b in block.bindings if _scaled(b) is not None]:
        stored, scale, zero = (back.operand(i) for i in range(3))
        if stored is None or scale is None or stored.const is None:
            continue
        name, dtype = stored.name, stored.dtype
        value = _floats(back, np.asarray(stored.const))
        stored.rename(program.names.fresh(f"{name}_integers"))
        weight = block.add_initializer(tensor_of(value, name))
        with emitting(block, sources=(back,), made_by="straight_through"):
            if dtype == TensorProto.INT32:  # a bias: QuantizeLinear makes no integers of 32 bits
                steps = op.Div(weight, along(scale, weight, back.attr("axis") or 0))
                rounded = op.Cast(op.Round(steps), to=dtype)
            else:
                if zero is None:  # it also says the type of the integers
                    zeros = tensor_of(np.zeros((), numpy_dtype(dtype)), program.names.fresh("zero"))
                    zero = block.add_initializer(zeros)
                    block.set_operands(back, [stored, scale, zero])
                rounded = op.QuantizeLinear(weight, scale, zero, axis=back.attr("axis"))
        block.set_operand(back, 0, rounded)
        if stored.initializer is not None:
            block.remove_initializer(stored)


def rounding_scales(program: Program) -> set[str]:
    """Returns the names of the scales of QuantizeLinear and DequantizeLinear, which have to stay
    positive.
    """
    rounding = (b for b in program.main.walk() if b.op in _ROUNDING)
    return {v.name for b in rounding if (v := b.operand(1)) is not None}


def least_scale(start: Array) -> Array:
    """Returns the least values of a trained scale, like its first values: a thousandth of them,
    and never 0.
    """
    dtype: Any = start.dtype
    least: Array = np.maximum(np.divide(start, 1024), np.finfo(dtype).tiny)
    return least.astype(dtype)


def check_scales(program: Program, trained: Collection[str]) -> None:
    """Raises InputError if a scale trains whose product with another one is the scale of a bias of
    32 bits: the bias keeps its scale, and the written file does not compute what was evaluated.
    """
    operands = [(b, b.operand(0), b.operand(1)) for b in program.main.walk() if b.op in _ROUNDING]
    held = {
        v.name: np.ravel(v.const) for *_, v in operands if v is not None and v.const is not None
    }
    of_biases = {
        v.name: b
        for b, q, v in operands
        if q is not None and q.dtype == TensorProto.INT32 and v is not None and v.name in held
    }
    for (bias, back), learnt, other in product(of_biases.items(), held, held):
        if learnt not in trained:
            continue
        both = np.multiply(held[learnt], held[other])
        if both.size == held[bias].size and np.allclose(both, held[bias], rtol=1e-5, atol=0):
            raise InputError(
                f"'{learnt}' cannot train: the scale of the bias '{back}' is its product with "
                f"'{other}', and stays; leave '{learnt}' out of wrt"
            )


def as_integers(stored: Mapping[str, Var], name: str, values: Mapping[str, Array]) -> Array:
    """Returns the trained value of a weight as the file stores it: if it stores integers, rounded
    as QuantizeLinear does by their scale, which may be among the trained values.
    """
    weight, value = stored.get(name), values[name]
    back = None if weight is None else next(iter(weight.users), None)
    if weight is None or back is None or back.operand(0) is not weight or _scaled(back) is None:
        return value
    scale, zero = _by_axis(back, value, values)
    low, high = BOUNDS[weight.dtype]
    integers: Array = np.clip(np.rint(np.divide(value, scale)) + zero, low, high)
    return integers.astype(numpy_dtype(weight.dtype))


def _scaled(b: Binding) -> tuple[Array, Array | None] | None:
    """Returns scale and zero point of a DequantizeLinear that alone reads stored integers."""
    stored, scale, zero = (b.operand(i) for i in range(3))
    if not b.is_op("DequantizeLinear") or b.attr("block_size"):
        return None
    if stored is None or not stored.is_constant or stored.use_count > 1 or stored.returned:
        return None
    if stored.dtype not in BOUNDS or scale is None or scale.const is None:
        return None
    if zero is not None and zero.const is None:
        return None
    shift = None if zero is None else np.asarray(zero.const)
    if stored.dtype == TensorProto.INT32 and shift is not None and shift.any():
        return None
    return np.asarray(scale.const), shift


def _by_axis(
    back: Binding, value: Array, trained: Mapping[str, Array] = _UNTRAINED
) -> tuple[Array, Array]:
    """Returns scale and zero point so that they broadcast against a value."""
    found, by = _scaled(back), back.operand(1)
    scale, shift = (np.ones(()), None) if found is None else found
    scale = scale if by is None else trained.get(by.name, scale)
    shape = [1] * value.ndim
    if scale.ndim == 1 and scale.size > 1:
        shape[(1 if back.attr("axis") is None else back.attr("axis")) % value.ndim] = scale.size
    zero = np.zeros(()) if shift is None else shift
    return scale.reshape(shape), zero.astype(np.int64).reshape(shape if zero.size > 1 else ())


def _floats(back: Binding, integers: Array) -> Array:
    scale, zero = _by_axis(back, integers)
    steps: Array = np.subtract(integers.astype(np.int64), zero)
    return np.multiply(steps, scale).astype(scale.dtype)
