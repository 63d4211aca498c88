"""Replaces operators that an opset lacks, or defines differently, by the operators that they stand
for: the function body of their schema at the original opset, or an equation in this file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto

from onnxgrad.errors import InputError
from onnxgrad.ir.binding import Binding, draws
from onnxgrad.ir.emission.emit import constant, emitting
from onnxgrad.ir.function_bodies import (
    body_of,
    conflict,
    has_schema_body,
    open_in_place,
    wrong_shape,
)
from onnxgrad.ir.ops import op
from onnxgrad.ir.type_inference.per_binding import retype
from onnxgrad.ir.types import FLOAT_DTYPES, is_static
from onnxgrad.ir.var import Var
from onnxgrad.laws.constant_values import folded
from onnxgrad.laws.raise_opset import Refused, refuse_if

# returns the results that replace an operator's; None to use the body of its schema
_Equation = Callable[[Binding], Sequence[Var] | None]
MADE_BY = "convert-opset"
_PROVENANCE_SINCE = 10


def open_operator(b: Binding, version: int) -> list[Binding] | None:
    """Replaces an operator of opset `version` by the operators that it stands for, of the same
    opset. Returns these, or None if no body is known.

    The block has another opset already, and has it again afterwards. Raises Refused if the body
    cannot replace the operator.
    """
    opsets: Any = b.block.root.opsets
    now = opsets[""]
    opsets[""] = version
    try:
        equation = _EQUATIONS.get(b.op)
        if equation is None and not has_schema_body(b):
            return None
        refuse_if(b.has_refs, "its attributes are given by calls: inline the function first")
        refuse_if(draws(b), "its body draws other random numbers")
        made = None if equation is None else _from_equation(b, equation)
        return _from_schema(b) if made is None and has_schema_body(b) else made
    finally:
        opsets[""] = now


def _from_schema(b: Binding) -> list[Binding]:
    reason: str | None
    if any(v is not None and v.type is None for v in b.inputs):
        retype(b.block.root)  # a loop in a body that was opened before may have left types unknown
    try:
        body = body_of(b)
        reason = conflict(b, body) or wrong_shape(b, body)
    except InputError as e:
        reason = str(e)
    refuse_if(reason, f"its body cannot replace it: {reason}")
    try:
        with emitting(b.block, share=True):
            copies, _ = open_in_place(b, body, prefix=f"{b.op.lower()}_", fold=_folded)
    except InputError as e:
        raise Refused(str(e)) from e
    if b.block.program.ir_version >= _PROVENANCE_SINCE:
        for copy in copies:
            if all(e.key != "onnxgrad.made_by" for e in copy.node.metadata_props):
                copy.node.metadata_props.add(key="onnxgrad.made_by", value=MADE_BY)
    kept = [copy for copy in copies if not _is_vain(copy)]
    b.block.remove_unused(kept)
    kept = [copy for copy in kept if copy.is_live]
    return [inner for copy in kept for inner in _with_nested(copy)]


def _folded(b: Binding) -> Var | None:
    """Returns the constant that a binding computes, except from a weight: a constant computed from
    a weight would ignore its new values.
    """
    weights = any(
        v is not None and v.initializer is not None and v.dtype in FLOAT_DTYPES and v.shape
        for v in b.inputs
        if v is None or not v.is_literal
    )
    return None if weights else folded(b)


def _is_vain(b: Binding) -> bool:
    """Removes `b` if it is a Cast to the dtype of its operand. Returns whether it was removed."""
    x = b.operand(0)
    if not b.is_op("Cast") or x is None or not x.dtype or x.dtype != b.attr("to") or b.out.returned:
        return False
    b.block.replace(b.out, x)
    b.block.remove(b)
    return True


def _with_nested(b: Binding) -> list[Binding]:
    return [b, *(inner for block in b.blocks.values() for inner in block.walk())]


def _from_equation(b: Binding, equation: _Equation) -> list[Binding] | None:
    block = b.block
    with emitting(block, sources=(b,), made_by=MADE_BY) as at:
        results = equation(b)
    if results is None:
        return None
    for old, new in zip(list(b.outputs), results):
        if old is None:
            continue
        block.replace(old, new)
        if not new.returned:
            old.swap_names(new)
    block.remove(b)
    kept: list[Binding] = []
    for emitted in at.emitted:  # values that depend on known sizes only become constants
        with emitting(block, share=True):
            value = _folded(emitted)
        if value is None:
            kept.append(emitted)
        else:
            block.replace(emitted.out, value)
    block.remove_unused(at.emitted)
    return [b for b in kept if b.is_live]


def layer_normalization(b: Binding) -> tuple[Var, ...] | None:
    """LayerNormalization(x, s, t) = d / sqrt(mean(d d) + epsilon) s + t, where d = x - mean(x)

    The schema's body subtracts mean(x)^2 from mean(x^2), which loses digits, and reshapes, which
    fails at sizes of zero.
    """
    x, scale, bias = (b.operand(i) for i in range(3))
    if x is None or scale is None or not x.rank or not x.dtype:
        return None
    stash, axes = _stash(b), list(range(int(b.attr("axis")) % x.rank, x.rank))
    mean, root, normal = _standardised(_wide(x, stash), axes, float(b.attr("epsilon")))
    y = _narrow(normal, x) * scale
    return (
        y if bias is None else y + bias,
        *(
            op.Cast(v, to=stash) if x.dtype == TensorProto.DOUBLE else v
            for v in (mean, op.Reciprocal(root))
        ),
    )


def group_normalization(b: Binding) -> tuple[Var] | None:
    """GroupNormalization(x, s, t) = n s + t, where n is InstanceNormalization(x) of x in the shape
    (N, groups, elements)

    The schema's body, which onnxruntime runs as well, loses digits as that of LayerNormalization
    does: at a mean of 1e4 deviations of its result is NaN in float32. onnxruntime has no
    InstanceNormalization of float64.
    """
    x, scale, bias = (b.operand(i) for i in range(3))
    if x is None or scale is None or bias is None or x.shape is None or not x.dtype:
        return None
    groups, rest, epsilon = int(b.attr("num_groups")), x.shape[1:], float(b.attr("epsilon"))
    size = math.prod(rest) // groups if is_static(rest) else -1
    rows = op.Reshape(_wide(x, _stash(b)), [0, groups, size])
    if rows.dtype == TensorProto.FLOAT:
        ones, zeros = np.ones(groups, np.float32), np.zeros(groups, np.float32)
        normal = op.InstanceNormalization(rows, ones, zeros, epsilon=epsilon)
    else:
        normal = _standardised(rows, [2], epsilon)[2]
    shape = list(x.shape) if is_static(x.shape) else op.Shape(x)
    if b.version < _SCALES_OF_CHANNELS:  # one scale for each group
        return (op.Reshape(_of_axis_1(_narrow(normal, x), scale, bias, 3), shape),)
    return (_of_axis_1(_narrow(op.Reshape(normal, shape), x), scale, bias, len(x.shape)),)


_SCALES_OF_CHANNELS = 21


def _of_axis_1(x: Var, scale: Var, bias: Var, rank: int) -> Var:
    """x s + t, where s and t have one number for each element of axis 1."""
    axes = list(range(1, rank - 1))
    if axes:
        scale, bias = op.Unsqueeze(scale, axes), op.Unsqueeze(bias, axes)
    return x * scale + bias


def rms_normalization(b: Binding) -> tuple[Var] | None:
    """RMSNormalization(x, s) = x / sqrt(mean(x x) + epsilon) s

    Like the schema's body, but float64 stays float64, as in onnxruntime's kernel.
    """
    x, scale = b.operand(0), b.operand(1)
    if x is None or scale is None or not x.rank or not x.dtype or scale.dtype != x.dtype:
        return None
    wide, axes = _wide(x, _stash(b)), list(range(int(b.attr("axis")) % x.rank, x.rank))
    root = op.Sqrt(op.ReduceMean(wide * wide, axes) + float(b.attr("epsilon")))
    return (_narrow(wide / root, x) * scale,)


def _stash(b: Binding) -> int:
    """The dtype in which narrower floats are normalised."""
    return int(b.attr("stash_type", TensorProto.FLOAT))


def _wide(x: Var, stash: int) -> Var:
    return x if x.dtype in (stash, TensorProto.DOUBLE) else op.Cast(x, to=stash)


def _narrow(v: Var, x: Var) -> Var:
    return v if v.dtype == x.dtype else op.Cast(v, to=x.dtype)


def _standardised(x: Var, axes: list[int], epsilon: float) -> tuple[Var, Var, Var]:
    """The mean, the root of the variance, and (x - mean) / root."""
    mean = op.ReduceMean(x, axes)
    rest = x - mean
    root = op.Sqrt(op.ReduceMean(rest * rest, axes) + epsilon)
    return mean, root, rest / root


def trilu(b: Binding) -> tuple[Var]:
    """Trilu(x, k) = Where(row + k > column, 0, x); lower: Where(column > row + k, 0, x)

    onnxruntime has no Where of booleans: And takes its place.
    """
    x, k = b.operand(0), b.operand(1)
    if x is None or x.rank is None or x.dtype in (0, TensorProto.STRING):
        raise Refused("the rank or the dtype of its operand is not known, or it is a string tensor")
    columns, rows = _positions(x, -1), op.Unsqueeze(_positions(x, -2), [1])
    start = rows if k is None else rows + k
    dropped = op.Greater(start, columns) if b.attr("upper", 1) else op.Greater(columns, start)
    if x.dtype == TensorProto.BOOL:
        return (op.And(op.Not(dropped), x),)
    return (op.Where(dropped, 0, x),)


def _positions(x: Var, axis: int) -> Var:
    """0, 1, ... along an axis."""
    size = op.Gather(op.Shape(x), constant(np.array(axis + (x.rank or 0), np.int64)))
    return op.Range(constant(np.array(0, np.int64)), size, constant(np.array(1, np.int64)))


def is_inf(b: Binding) -> tuple[Var]:
    """IsInf(x) = IsInf(Cast(x)) for a float that is narrower than float32"""
    x = b.operand(0)
    if x is None or x.dtype not in _NARROW:
        raise Refused("its dtype is not known, or not a float that float32 can represent")
    return (op.IsInf(op.Cast(x, to=TensorProto.FLOAT), **b.attrs),)


_NARROW = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16})
_EQUATIONS: dict[str, _Equation] = {
    "GroupNormalization": group_normalization,
    "IsInf": is_inf,
    "LayerNormalization": layer_normalization,
    "RMSNormalization": rms_normalization,
    "Trilu": trilu,
}
