"""Moves int8 before it is dequantised: f(D(q)) = D(f(q)), where onnxruntime does not open f(D(q)).

From opset 21 on, onnxruntime (1.31, 1.32; its issue 27845) moves a DequantizeLinear by one constant
scale and zero point behind f itself. The QuantizeLinear that it writes has a type of integers that
contradicts the zero point as soon as int8 becomes uint8, so that a session with default options
refuses the model. It leaves stored integers as they are, and so does this function.
"""

from __future__ import annotations

from collections.abc import Callable

from onnx import TensorProto

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.operator_index import blocks_in
from onnxgrad.ir.program import Program
from onnxgrad.laws.fold_scale_axis.scale import again

_FIRST_OPSET = 21
_MOVES = ("Identity", "MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")


def move_integers(program: Program, where: Callable[[Binding], bool] = lambda b: True) -> None:
    """Replaces f(D(q)) by D(f(q)) where D has one scale, for each f in `where` that onnxruntime
    moves before D.
    """
    if program.opset < _FIRST_OPSET:
        return
    for block in blocks_in(program.main):
        block.schedule()  # f of f: the first one comes first
        for b in [b for b in block.bindings if b.domain == "" and b.op in _MOVES and where(b)]:
            given = _moved(b)
            if given is None:
                continue
            with emitting(block, share=True, sources=(b,), made_by="integer_moves"):
                integers = again(b, [given.inputs[0], *b.inputs[1:]], outputs=len(b.outputs))
                first, *others = integers if isinstance(integers, tuple) else (integers,)
                floats = again(given, [first, *given.inputs[1:]])
            for old, new in zip(b.outputs, (floats, *others), strict=True):
                if old is not None:
                    block.replace(old, new)
            block.remove_unused([b, given])


def _moved(b: Binding) -> Binding | None:
    """Returns the DequantizeLinear that onnxruntime moves behind `b`."""
    given = None if b.inputs[0] is None else b.inputs[0].definition
    if given is None or not given.is_op("DequantizeLinear") or given.block is not b.block:
        return None
    q, scale, zero = (given.operand(i) for i in range(3))
    if q is None or q.dtype != TensorProto.INT8 or q.is_constant or given.attr("block_size"):
        return None
    numbers = [None if v is None or v.const is None else v.const for v in (scale, zero)]
    if any(a is None or a.size != 1 for a in numbers):
        return None
    return given if numbers[0] is not None and numbers[0].item() > 0 else None
