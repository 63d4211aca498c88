"""Float copies of a quantised file's integer weights, which train in their place
(quantisation-aware training, Jacob et al., 2018).

A file stores such a weight as integers before a DequantizeLinear. In a training step the weight is
a float of the same name, rounded by the same scale in every run, so that evaluation computes what
the file will. Trained values are written back as integers.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from onnx import TensorProto

from onnxgrad.grad.straight_through import BOUNDS, along
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.ops import op
from onnxgrad.ir.program import Program
from onnxgrad.ir.protobufs import tensor_of
from onnxgrad.ir.types import Array, numpy_dtype
from onnxgrad.ir.var import Var


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


def as_integers(stored: Mapping[str, Var], name: str, value: Array) -> Array:
    """Returns the trained value of a weight as the file stores it: rounded as QuantizeLinear does,
    if it stores integers.
    """
    weight = stored.get(name)
    back = None if weight is None else next(iter(weight.users), None)
    if weight is None or back is None or back.operand(0) is not weight or _scaled(back) is None:
        return value
    scale, zero = _by_axis(back, value)
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


def _by_axis(back: Binding, value: Array) -> tuple[Array, Array]:
    """Returns scale and zero point so that they broadcast against a value."""
    found = _scaled(back)
    scale, shift = (np.ones(()), None) if found is None else found
    shape = [1] * value.ndim
    if scale.ndim == 1 and scale.size > 1:
        shape[(1 if back.attr("axis") is None else back.attr("axis")) % value.ndim] = scale.size
    zero = np.zeros(()) if shift is None else shift
    return scale.reshape(shape), zero.astype(np.int64).reshape(shape if zero.size > 1 else ())


def _floats(back: Binding, integers: Array) -> Array:
    scale, zero = _by_axis(back, integers)
    steps: Array = np.subtract(integers.astype(np.int64), zero)
    return np.multiply(steps, scale).astype(scale.dtype)
