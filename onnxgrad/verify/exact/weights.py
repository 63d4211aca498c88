"""Stored weights against their witnesses: each element is its exact value up to rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

from onnxgrad.errors import OnnxgradError
from onnxgrad.ir import domains
from onnxgrad.verify.exact.field import Array, Undecided
from onnxgrad.verify.exact.values import BITS
from onnxgrad.verify.reference.evaluate import Reference

_ONE_ROUNDING = 0.51  # units in the last place; 0.01 is for the float64 that we compare with
_SLACK = 1.01
# operators of a witness that move numbers or change signs: they round nothing
_EXACT = frozenset((
    *domains.MOVES, "Abs", "Concat", "Constant", "ConstantOfShape", "Neg", "Pad", "Shape", "Size",
    "Trilu", "Where",
))  # fmt: skip
# one rounding for each element, and those that add up `terms` numbers
_ELEMENTWISE = frozenset((*domains.ARITHMETIC, "Cast", "Reciprocal", "Sqrt", "Sum"))
_CONTRACTIONS = frozenset({"MatMul", "Gemm", "ReduceSum", "ReduceMean", "Conv", "Einsum"})


def rounding(tensor: TensorProto, witness: ModelProto) -> str:
    """Returns "" if each element of a stored weight is its exact value up to the rounding of the
    operations of its witness, else the first element that is not. Raises Undecided.

    One operation rounds by 0.51 units in the last place. k operations, of which a sum of n terms
    counts n, round by k units of the sum of the absolute values.
    """
    if tensor.data_type not in BITS:
        raise Undecided(f"the weight {tensor.name} is not of floats")
    stored = numpy_helper.to_array(tensor).astype(np.float64)
    (exact, divisors), (size, largest) = _run(witness), _run(_absolute(witness))
    if any(
        not np.allclose(np.abs(d), m, 1e-6, 0.0) for d, m in zip(divisors, largest, strict=True)
    ):
        raise Undecided(f"a divisor or a root in which numbers cancel computes {tensor.name}")
    if exact.shape != stored.shape:
        return f"{tensor.name} has another shape than its witness"
    bits, count = BITS[tensor.data_type], _roundings(witness)
    last = np.spacing(np.maximum(np.abs(exact), 2.0**-1000)) * 2.0 ** (53 - bits)
    last = np.maximum(last, _smallest(tensor.data_type))
    allowed = _ONE_ROUNDING * last
    if count > 1:
        allowed = np.maximum(allowed, _SLACK * count * 2.0**-bits * size)
    noise = count * 2.0**-52 * size  # of the float64 that computed `exact`
    wrong = ~(np.abs(stored - exact) <= allowed + noise)
    if not wrong.any():
        return ""
    place = [int(i) for i in np.argwhere(wrong)[0]]
    return f"{tensor.name}{place} is not the rounding of its exact value"


def _smallest(dtype: int) -> float:
    """Returns the smallest difference of two numbers of a dtype."""
    known = {
        int(TensorProto.DOUBLE): 2.0**-1074, int(TensorProto.FLOAT): 2.0**-149,
        int(TensorProto.FLOAT16): 2.0**-24, int(TensorProto.BFLOAT16): 2.0**-133,
    }  # fmt: skip
    return known.get(dtype, 0.0)


def _run(model: ModelProto) -> tuple[Array, list[Array]]:
    """Returns the weight, and the operands of divisions and roots inside."""
    watched = ModelProto()
    watched.CopyFrom(model)
    names = dict.fromkeys(
        node.input[1 if node.op_type == "Div" else 0]
        for node in model.graph.node
        if node.op_type in ("Div", "Reciprocal", "Sqrt")
    )
    for i, name in enumerate(names):
        watched.graph.node.append(helper.make_node("Identity", [name], [f"watched {i}"]))
        watched.graph.output.add(name=f"watched {i}")
    try:
        found: list[Any] = list(Reference(watched).run({}).values())
    except OnnxgradError as error:
        raise Undecided(f"a witness does not run: {error}") from error
    arrays = [np.asarray(v, np.float64) for v in found]
    return arrays[0], arrays[1:]


def _absolute(model: ModelProto) -> ModelProto:
    """Returns the witness of the absolute values, with sums for differences: a bound on every sum
    of absolute values inside.
    """
    found = ModelProto()
    found.CopyFrom(model)
    for tensor in found.graph.initializer:
        if tensor.data_type in BITS:
            array = numpy_helper.to_array(tensor)
            tensor.CopyFrom(numpy_helper.from_array(np.abs(array), tensor.name))
    for node in found.graph.node:
        node.op_type = {"Sub": "Add", "Neg": "Identity"}.get(node.op_type, node.op_type)
        for a in node.attribute:
            if a.HasField("t") and a.t.data_type in BITS:
                a.t.CopyFrom(numpy_helper.from_array(np.abs(numpy_helper.to_array(a.t)), a.t.name))
    return found


def _roundings(model: ModelProto) -> int:
    """Returns how often an element may have been rounded: once for each operation, and n times for
    a sum of n terms. Raises Undecided for an operator of unknown rounding.
    """
    terms = max((int(np.prod(t.dims)) for t in model.graph.initializer), default=1)
    width = max((d for t in model.graph.initializer for d in t.dims), default=1)
    if any(node.op_type in ("Reshape", "Flatten") for node in model.graph.node):
        width = terms
    count = 0
    for node in model.graph.node:
        if node.op_type in _ELEMENTWISE:
            count += 1
        elif node.op_type in ("MatMul", "Gemm"):
            count += width
        elif node.op_type in _CONTRACTIONS:
            count += terms
        elif node.op_type not in _EXACT:
            raise Undecided(f"{node.op_type} computes a weight")
    return count
