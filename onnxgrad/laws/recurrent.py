"""RNN, GRU and LSTM: operands that say what the operator does without them."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import numpy_helper

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.types import Shape, same_shape
from onnxgrad.ir.var import Var
from onnxgrad.laws.noops import b, c, h, lens, p, r, w, x
from onnxgrad.laws.scales.scale import again
from onnxgrad.rewrite.pattern import P
from onnxgrad.rewrite.trace import decline
from onnxgrad.rewrite.worklist import Measure, rewrite

_LAYERS = ("RNN", "GRU", "LSTM")
_INITIAL_H, _INITIAL_C = 5, 6
# of zeros these make zeros, whatever their other operands say
_MOVES = frozenset(
    {"Expand", "Identity", "Reshape", "Slice", "Squeeze", "Tile", "Transpose", "Unsqueeze"}
)


def _states(block: BindingBlock) -> int:
    layers = (b for b in block.walk() if b.op in _LAYERS and not b.domain)
    return sum(v is not None for b in layers for v in b.inputs[_INITIAL_H : _INITIAL_C + 1])


INITIAL_STATES = Measure("initial states", _states)


_LAYER = P.any_of(*_LAYERS)(x, w, r, b.maybe, lens.maybe, h.maybe, c.maybe, p.maybe)


@rewrite(_LAYER, shrinks=INITIAL_STATES)
def initial_state_of_zeros(x: Var, r: Var, root: Binding) -> Any:
    """LSTM(x, W, R, B, lens, 0, 0, P) = LSTM(x, W, R, B, lens, , , P), and so for RNN and GRU: a
    state that is left out is of zeros

    PyTorch's older exporter writes a chain of shapes for the zeros of every layer.
    """
    shape = _of_state(x, r, root)
    given = dict(enumerate(root.inputs[_INITIAL_H : _INITIAL_C + 1], _INITIAL_H))
    zeros = {i for i, v in given.items() if v is not None and _is_zeros(v)}
    if not zeros:
        return None
    if not all(v is None or same_shape(v.shape, shape) for v in map(given.get, zeros)):
        return decline("the initial state is not known to have the layer's shape")
    kept = [None if i in zeros else v for i, v in enumerate(root.inputs)]
    while kept[-1] is None:
        del kept[-1]
    return again(root, kept, outputs=len(root.outputs))


def _of_state(x: Var, r: Var, root: Binding) -> Shape | None:
    """(directions, batch, hidden), or with `layout` 1 (batch, directions, hidden)."""
    if x.shape is None or r.shape is None or len(x.shape) != 3 or len(r.shape) != 3:
        return None
    directions, _, hidden = r.shape
    if root.attr("layout"):
        return (x.shape[0], directions, hidden)
    return (directions, x.shape[1], hidden)


def _is_zeros(v: Var) -> bool:
    """Positive zeros, as a constant or as ConstantOfShape makes them, moved or not."""
    made = v.definition
    while made is not None and not made.domain and made.op in _MOVES:
        source = made.inputs[0]
        assert source is not None  # the first operand of these is required
        v, made = source, source.definition
    array = v.const
    if made is not None and made.is_op("ConstantOfShape"):
        value = made.attr("value")
        array = np.zeros(1, np.float32) if value is None else numpy_helper.to_array(value)
    if array is None or array.dtype == object:
        return False
    return not array.any() and not np.signbit(array).any()
