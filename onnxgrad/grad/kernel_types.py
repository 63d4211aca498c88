"""Result types of custom operators and of onnxruntime's operators, for which onnx infers none. A
registered body has types; a registered kernel (`onnxgrad.kernel`, or one of the float64 reference)
runs on example operands.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from onnx import helper

from onnxgrad.errors import OnnxgradError
from onnxgrad.grad.registry import rule_of
from onnxgrad.ir.attributes import RefAttr, schema
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.type_inference.implied_ranks import imply_ranks
from onnxgrad.ir.type_inference.per_binding import retype_bodies, type_again
from onnxgrad.ir.types import FLOAT_DTYPES, Array, Dim, Shape, TensorType, numpy_dtype
from onnxgrad.ir.var import Var
from onnxgrad.laws.bodies.calls import build
from onnxgrad.verify.reference.kernels import KERNELS, Call
from onnxgrad.verify.reference.user_operators import OWN, call_own

# an operand of more elements is not an example: the kernel may be slow
_MOST = 1 << 20
# sizes for the open dimensions in the two runs of a kernel: numbers that are rare in models
_FIRST = ((3, 2), (50, 3))  # the first number and the step
# sizes for a kernel that does not accept these: one number for all, as for a square matrix
_EQUAL = ((5, 0), (7, 0))


class _Sizes:
    """The numbers that replace open sizes in one run, one per symbol."""

    def __init__(self, first: int, step: int) -> None:
        self.next, self.step = first, step
        self.symbols: dict[str, int] = {}

    def of(self, dim: Dim) -> int:
        if isinstance(dim, int):
            return dim
        if dim in self.symbols:
            return self.symbols[dim]
        self.next += self.step
        if dim is not None:
            self.symbols[dim] = self.next
        return self.next

    def symbol(self, size: int) -> str | None:
        if not self.step:  # any of them
            return None
        return next((s for s, n in self.symbols.items() if n == size), None)


def learn_types(block: BindingBlock, *, but: Collection[Binding] = ()) -> None:
    """Types the results of operators that have a body or a kernel but no schema in onnx, and the
    values computed from them. The bindings in `but` are left out.
    """
    learnable = {
        b
        for b in block.walk()
        if any(v is not None and v.shape is None for v in b.outputs)
        if b not in but and ((b.domain, b.op) in OWN or _is_foreign(b))
    }
    if learnable:
        _in_order(block, learnable)


def learn_ranks(block: BindingBlock) -> None:
    """Gives values the rank that their readers require, and types the values computed from them."""
    if imply_ranks(block):
        _in_order(block, ())


def share_dtypes(block: BindingBlock) -> None:
    """Gives an operand of unknown type the dtype of another operand with the same type variable;
    for example, both operands of a MatMul share one.
    """
    found = False
    for b in block.walk():
        formal = schema(b.op, b.version, b.domain)
        if formal is None or all(v is None or v.dtype for v in b.inputs):
            continue
        names = [i.type_str for i in formal.inputs]
        names += names[-1:] * (len(b.inputs) - len(names))
        known = {name: v.dtype for name, v in zip(names, b.inputs) if v is not None and v.dtype}
        for name, v in zip(names, b.inputs):
            if v is not None and v.type is None and name in known:
                v.type, found = TensorType(known[name], None), True
    if found:
        _in_order(block, ())


def _is_foreign(b: Binding) -> bool:
    """Whether onnx has no schema of the operator, but a body or a kernel is registered."""
    if schema(b.op, b.version, b.domain) is not None:
        return False
    rule = rule_of(b)
    return (b.domain, b.op) in KERNELS or (rule is not None and rule.kind == "body")


def _in_order(block: BindingBlock, learnable: Collection[Binding]) -> None:
    """Types all results of unknown type, from the first binding to the last."""
    block.schedule()
    for b in list(block.bindings):
        if b in learnable:
            _learn(b)
        elif b.blocks:
            retype_bodies(b)
            if any(inner in learnable for nested in b.blocks.values() for inner in nested.walk()):
                for nested in b.blocks.values():
                    _in_order(nested, learnable)
                retype_bodies(b)
        elif any(v is not None and v.shape is None for v in b.outputs):
            type_again(b)


def _learn(b: Binding) -> None:
    rule = rule_of(b)
    if rule is None or rule.kind != "body" or (b.domain, b.op) in OWN:
        _from_a_kernel(b)
        return
    before = set(b.block.bindings)
    try:
        with emitting(b.block, sources=(b,), made_by="types"):
            types = [None if v is None else v.type for v in build(rule.formula, b)]
    except OnnxgradError:  # which the walk reports if the gradient needs the operator
        types = []
    b.block.remove_unused([made for made in b.block.bindings if made not in before])
    for out, found in zip(b.outputs, types):
        if out is not None and isinstance(found, TensorType):
            out.type = found


def _from_a_kernel(b: Binding) -> None:
    for choice in (_FIRST, _EQUAL):
        sizes = [_Sizes(*first) for first in choice]
        runs = [_run(b, of) for of in sizes]
        if all(runs):
            break
    dtype = next((v.dtype for v in b.inputs if v is not None and v.dtype in FLOAT_DTYPES), 0)
    for out, one, other in zip(b.outputs, *runs):
        if out is None or not all(isinstance(v, np.ndarray) for v in (one, other)):
            continue
        code = dtype if one.dtype == np.float64 else helper.np_dtype_to_tensor_dtype(one.dtype)
        shape = _shape(one.shape, other.shape, sizes) if one.ndim == other.ndim else None
        out.type = TensorType(out.dtype or code, shape)


def _shape(one: Sequence[int], other: Sequence[int], sizes: Sequence[_Sizes]) -> Shape:
    """Returns the shape: a size that is the same in both runs, or a symbol's in both, is known."""
    first, second = sizes
    named = [(first.symbol(a), second.symbol(b)) for a, b in zip(one, other)]
    return tuple(a if a == b else s if s == t else None for a, b, (s, t) in zip(one, other, named))


def _run(b: Binding, sizes: _Sizes) -> list[Any]:
    """Returns the results of the kernel on example operands; an empty list if an operand's type is
    not known, or if the kernel does not accept the examples.
    """
    operands = [None if v is None else _example(v, sizes) for v in b.inputs]
    missing = any(v is not None and x is None for v, x in zip(b.inputs, operands))
    if missing or any(isinstance(value, RefAttr) for value in b.attrs.values()):
        return []
    try:
        with np.errstate(all="ignore"):
            return _called(b, operands)
    except Exception:  # noqa: BLE001  # a kernel may raise anything on what is not a real operand
        return []


def _called(b: Binding, operands: list[Any]) -> list[Any]:
    key = b.domain, b.op
    if key in OWN:
        return call_own(OWN[key], 0, operands, dict(b.attrs))
    given, made = (
        tuple("" if v is None else v.name for v in side) for side in (b.inputs, b.outputs)
    )
    found = KERNELS[key](Call(b.op, b.domain, b.version, dict(b.attrs), given, made), *operands)
    return list(found) if isinstance(found, tuple) else [found]


def _example(v: Var, sizes: _Sizes) -> Array | None:
    wide = v.dtype in FLOAT_DTYPES
    if v.const is not None:
        return v.const.astype(np.float64) if wide else v.const
    if v.shape is None or not v.dtype:
        return None
    shape = [sizes.of(d) for d in v.shape]
    if math.prod(shape) > _MOST:
        return None
    if wide:  # a matrix that has an inverse
        return np.random.default_rng(0).uniform(0.5, 1.5, shape)
    return np.ones(shape, numpy_dtype(v.dtype))
