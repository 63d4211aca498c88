"""Types behind operators of the user's own: onnx infers none, but a registered kernel
(`onnxgrad.kernel`) shows them on example operands.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import helper

from onnxgrad.ir.attributes import RefAttr
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.type_inference.per_binding import retype
from onnxgrad.ir.types import FLOAT_DTYPES, Array, Dim, Shape, TensorType, numpy_dtype
from onnxgrad.ir.var import Var
from onnxgrad.verify.reference.user_operators import OWN, call_own

# an operand of more elements is not an example: the kernel may be slow
_MOST = 1 << 20
# open sizes of the two runs of a kernel: such as models rarely fix
_FIRST = ((3, 2), (50, 3))  # where they begin, and their steps


class _Sizes:
    """The numbers that open sizes stand for in one run, one per symbol."""

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
        return next((s for s, n in self.symbols.items() if n == size), None)


def learn_types(block: BindingBlock) -> None:
    """Type the results of operators with a kernel, and what is computed from them."""
    if not OWN:
        return
    block.schedule()
    for b in [b for b in block.walk() if (b.domain, b.op) in OWN]:
        if any(v is not None and v.shape is None for v in b.outputs):
            _learn(b)
            retype(block)


def _learn(b: Binding) -> None:
    sizes = [_Sizes(*first) for first in _FIRST]
    runs = [_run(b, of) for of in sizes]
    dtype = next((v.dtype for v in b.inputs if v is not None and v.dtype in FLOAT_DTYPES), 0)
    for out, one, other in zip(b.outputs, *runs):
        if out is None or not all(isinstance(v, np.ndarray) for v in (one, other)):
            continue
        code = dtype if one.dtype == np.float64 else helper.np_dtype_to_tensor_dtype(one.dtype)
        shape = _shape(one.shape, other.shape, sizes) if one.ndim == other.ndim else None
        out.type = TensorType(out.dtype or code, shape)


def _shape(one: Sequence[int], other: Sequence[int], sizes: Sequence[_Sizes]) -> Shape:
    """A size that is the same in both runs is known; one that is a symbol's in both is that."""
    first, second = sizes
    named = [(first.symbol(a), second.symbol(b)) for a, b in zip(one, other)]
    return tuple(a if a == b else s if s == t else None for a, b, (s, t) in zip(one, other, named))


def _run(b: Binding, sizes: _Sizes) -> list[Any]:
    """The results of the kernel on ones; nothing if an operand's type is not known, or the
    kernel does not take them.
    """
    operands = [None if v is None else _example(v, sizes) for v in b.inputs]
    missing = any(v is not None and x is None for v, x in zip(b.inputs, operands))
    if missing or any(isinstance(value, RefAttr) for value in b.attrs.values()):
        return []
    try:
        with np.errstate(all="ignore"):
            return call_own(OWN[b.domain, b.op], 0, operands, dict(b.attrs))
    except Exception:  # noqa: BLE001  # a kernel may raise anything on what is not a real operand
        return []


def _example(v: Var, sizes: _Sizes) -> Array | None:
    wide = v.dtype in FLOAT_DTYPES
    if v.const is not None:
        return v.const.astype(np.float64) if wide else v.const
    if v.shape is None or not v.dtype:
        return None
    shape = [sizes.of(d) for d in v.shape]
    if math.prod(shape) > _MOST:
        return None
    return np.ones(shape, np.float64 if wide else numpy_dtype(v.dtype))
