"""Float copies of a quantised file's integer weights, which train in their place
(quantisation-aware training, Jacob et al., 2018).

A file stores such a weight as integers before a DequantizeLinear. In a training step the weight is
a float of the same name, rounded by the same scale in every run, so that evaluation computes what
the file will. Trained values are written back as integers. The float starts as the dequantised
integers, or as the weight of the file that was quantised.
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
from onnxgrad.ir.types import FLOAT_DTYPES, Array, numpy_dtype
from onnxgrad.ir.var import Var
from onnxgrad.wording import option, shape_text, some_of

_UNTRAINED: Mapping[str, Array] = MappingProxyType({})
_ROUNDING = frozenset({"QuantizeLinear", "DequantizeLinear"})
_SUFFIX = "_quantized"  # of onnxruntime's quantiser
_SHOWN = 4


def open_integers(program: Program, original: Program | None = None) -> list[str]:
    """Puts a float weight and its rounding before each DequantizeLinear of stored integers, and
    returns notes. original: the model that was quantised, whose weights are the values.

    Integers that something else reads too stay, and those with a scale per block. Raises InputError
    if a weight has no counterpart in `original`, or several.
    """
    block = program.main
    values: dict[Binding, Array] = {}
    for back in [b for b in block.bindings if _scaled(b) is not None]:
        stored = back.operand(0)
        if stored is not None and stored.const is not None:
            values[back] = _floats(back, np.asarray(stored.const))
    notes = [] if original is None else _start_from(values, original)
    for back in [*values]:
        stored, scale, zero = (back.operand(i) for i in range(3))
        if stored is None or scale is None:
            continue
        name, dtype, value = stored.name, stored.dtype, values.pop(back)
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
    return notes


def _start_from(values: dict[Binding, Array], original: Program) -> list[str]:
    """Replaces dequantised integers by the weights of the model that was quantised, except for
    elements that round to other integers, and returns a note. Raises InputError.
    """
    given = option("--original", "original=")
    if not values:
        raise InputError(
            f"{given}: the model stores no integers before a DequantizeLinear with one scale per "
            "tensor or axis, so no weight starts from another file"
        )
    constants = (v for v in original.main.vars() if v.is_constant)
    floats = {v.name: v for v in constants if v.dtype in FLOAT_DTYPES}
    differing: list[str] = []
    for back, value in values.items():
        stored: Any = back.operand(0)
        found = _counterpart(back, stored.name, value, floats).astype(value.dtype)
        integers = (a.astype(np.int64) for a in (_rounded(back, found), np.asarray(stored.const)))
        same: Array = np.equal(*integers)
        values[back] = np.where(same, found, value)
        if not same.all():
            differing.append(f"{1 - same.mean():.1%} of '{stored.name}'")
    note = f"{given}: {len(values)} weight{'s' * (len(values) > 1)} start from its floats"
    if differing:
        note += (
            ", except for elements that round to other integers than the file has: "
            f"{some_of(differing, _SHOWN)}"
        )
    return [note]


def _counterpart(back: Binding, name: str, value: Array, floats: Mapping[str, Var]) -> Array:
    """Returns the weight of the float model that was quantised to `value`: by its name, or else the
    one of this shape that differs by half a step at most. Raises InputError.
    """
    alike = {n: v for n, v in floats.items() if v.shape == value.shape}
    named = [n for n in (name.removesuffix(_SUFFIX), name) if n in alike]
    if named:
        return np.asarray(alike[named[0]].const)
    near = {n: a for n, v in alike.items() if _is_near(back, value, a := np.asarray(v.const))}
    given = option("--original", "original=")
    if not near:
        raise InputError(
            f"{given}: no weight of it, of shape {shape_text(value.shape)}, rounds to '{name}': "
            "pass the model that was quantised, as it was after any preparation"
        )
    first = next(iter(near.values()))
    if any(not np.array_equal(first, a) for a in near.values()):
        raise InputError(
            f"{given}: several of its weights round to '{name}': {some_of([*near], _SHOWN)}; "
            f"rename the right one to '{name}' there"
        )
    return first


def _is_near(back: Binding, value: Array, floats: Array) -> bool:
    scale, zero = _by_axis(back, value)
    low, high = (np.multiply(np.subtract(end, zero), scale) for end in BOUNDS[_stored(back)])
    apart = np.abs(np.subtract(np.clip(floats.astype(np.float64), low, high), value))
    return bool((apart <= 0.501 * np.abs(scale)).all())


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
    return _rounded(back, value, values)


def _rounded(back: Binding, value: Array, trained: Mapping[str, Array] = _UNTRAINED) -> Array:
    """Returns the integers of a value, as QuantizeLinear rounds."""
    scale, zero = _by_axis(back, value, trained)
    low, high = BOUNDS[_stored(back)]
    integers: Array = np.clip(np.rint(np.divide(value, scale)) + zero, low, high)
    return integers.astype(numpy_dtype(_stored(back)))


def _stored(back: Binding) -> int:
    """Returns the dtype of the integers that a DequantizeLinear reads."""
    stored = back.operand(0)
    return TensorProto.UNDEFINED if stored is None else stored.dtype


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
