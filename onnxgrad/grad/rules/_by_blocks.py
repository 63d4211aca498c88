"""Products with a quantised matrix, a block of it at a time, for the adjoint of the other factor.

A float matrix of the size of the quantised one is never formed: neither at run time, nor by a
runtime that folds what it can compute from constants, because the blocks depend on the step of
a Loop.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import TensorProto

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.arithmetic import from_front, in_dtype_of
from onnxgrad.ir.emission.emit import constant, emit_with_blocks, nested
from onnxgrad.ir.emission.fill_and_reshape import fill
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import TensorType, is_static
from onnxgrad.ir.var import Var

# from this number of elements on a matrix is taken by blocks; smaller ones cost little memory
LEAST = 1 << 16
# the elements of a block: 1 MB of float32, of which onnxruntime multiplies as fast as of the matrix
_BLOCK = 1 << 18
_FOUR_BITS: dict[int, int] = {
    TensorProto.INT4: TensorProto.INT8,
    TensorProto.UINT4: TensorProto.UINT8,
}
_INTEGERS = (*_FOUR_BITS, *_FOUR_BITS.values())

# the rows from one number to before another, each a vector of one element
Rows = Callable[[Var, Var], Var]


def product(g: Var, rows: Rows, shape: tuple[int, int], multiple: int = 1) -> Var:
    """Returns g W (..., K) for g (..., N) and W (N, K), of which `rows` emits some rows.

    The blocks begin at multiples of `multiple`; there are at least two if W has more rows.
    """
    count, width = shape
    many = max(1, min(_BLOCK // width, -(-count // 2)) // multiple) * multiple
    lead = op.Shape(g, end=-1) if g.rank is None or g.rank > 1 else np.zeros(0, np.int64)
    zeros = fill(op.Concat(lead, np.array([width], np.int64), axis=0), 0.0, g.dtype)
    if g.shape is not None:
        zeros.type = TensorType(g.dtype, (*g.shape[:-1], width))
    with nested("blocks") as block:
        names = block.program.names
        step = block.add_input(names.fresh("step"), TensorType(TensorProto.INT64, ()))
        block.add_input(names.fresh("going_on"), TensorType(TensorProto.BOOL, ()))
        total = block.add_input(names.fresh("total"), zeros.type)
        start = op.Reshape(step * many, [1])
        end = op.Min(start + many, np.array([count], np.int64))
        block.add_output(constant(np.array(True)))
        block.add_output(total + op.Slice(g, start, end, [-1]) @ rows(start, end))
    trips = constant(np.int64(-(-count // many)))
    [summed] = emit_with_blocks("Loop", [trips, None, zeros], {"body": block}, [zeros.type])
    return summed


def beside_dequantised(g: Var, matrix: Var, transposed: bool = False) -> Var | None:
    """Returns g M', or g M if `transposed`, for a large constant M behind a DequantizeLinear and
    possibly a Transpose; None for another M.
    """
    made, axis = matrix.definition, 0 if transposed else 1
    if made is not None and made.is_op("Transpose") and made.inputs[0] is not None:
        made, axis = made.inputs[0].definition, 1 - axis
    if made is None or not made.is_op("DequantizeLinear"):
        return None
    q = made.inputs[0]
    if q is None or not _is_stored(q) or q.dtype not in _INTEGERS or not is_static(q.shape):
        return None
    if len(q.shape) != 2 or q.shape[0] * q.shape[1] < LEAST:
        return None
    found = _rows_of(made, q, q.shape, axis)
    return found and product(g, *found)


def _is_stored(v: Var) -> bool:
    return v.definition is None or v.definition.is_op("Constant")


def _rows_of(
    made: Binding, q: Var, sizes: tuple[int, ...], axis: int
) -> tuple[Rows, tuple[int, int], int] | None:
    """Returns what forms rows of the result of a DequantizeLinear, or if `axis` is 1 of its
    transpose, with that matrix's sizes, and the number of which each first row is a multiple.
    None if blocks of one scale do not fill their axis.

    The operands are read by a Reshape or Cast, which a runtime folds, because onnxruntime fuses the
    forward DequantizeLinear with its product only if nothing else reads them. Without the fusion
    it forms the matrix.
    """
    scale, zero, size = made.operand(1), made.operand(2), made.attr("block_size") or 0
    quantized = from_front(made.attr("axis", 1), 2)
    # a scale for each column is one for a block of all its rows
    along = quantized if size else 1 - quantized
    block = size or sizes[along]
    if scale is None or scale.shape is None or sizes[along] % block:
        return None
    split = [*sizes[:along], sizes[along] // block, block, *sizes[along + 1 :]]
    of_scale = [1, 1, 1] if scale.shape in ((), (1,)) else [*split]
    of_scale[along + 1] = 1
    by_block = bool(size) and along == axis
    place = 2 * axis if along != axis else along + (not size)
    numbers, shift = (None if v is None else _in_bytes(v) for v in (q, zero))
    operands = [
        None if v is None else op.Reshape(v, dims)
        for v, dims in ((numbers, split), (shift, of_scale), (scale, of_scale))
    ]

    def rows(start: Var, end: Var) -> Var:
        ends = (start / block, end / block) if by_block else (start, end)
        numbers, shift, factor = (
            v
            if v is None or v.shape is None or v.shape[place] == 1
            else op.Slice(v, *ends, [place])
            for v in operands
        )
        w = op.Cast(numbers, to=scale.dtype)
        if shift is not None:
            w = w - op.Cast(shift, to=scale.dtype)
        part = in_dtype_of(
            op.Reshape(w * factor, [sizes[0], -1] if axis else [-1, sizes[1]]), made.out
        )
        return part.mT if axis else part

    return rows, (sizes[axis], sizes[1 - axis]), block if by_block else 1


def _in_bytes(v: Var) -> Var:
    """Widens integers of four bits, which no runtime cuts."""
    return op.Cast(v, to=_FOUR_BITS[v.dtype]) if v.dtype in _FOUR_BITS else v
