"""Hides the sizes of recomputed values from onnxruntime, so that it keeps no idle buffers for them.

onnxruntime gives values of equal shape one buffer, and keeps that buffer while it is idle between
them. In a network whose values have many shapes, such as a U-Net, the idle buffers hold more than
the values do. It plans so only for shapes that it knows when it loads the model.

A barrier `Where(c, x, x)` therefore passes through `Reshape(barrier, Where(c, s, s))`, where s is
the shape of x: a view, whose shape is computed in the run. Bindings behind a view read other values
through views too, and their constant shapes through such a Where. So the sizes of all values that
depend on a barrier are unknown in advance, and each buffer ends with its value.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

import numpy as np

from onnxgrad.ir.binding import Binding, draws
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import is_static
from onnxgrad.ir.var import Var
from onnxgrad.laws.remove_noops import is_barrier

# operators whose result has the shape that this operand names
_SHAPED = {"Reshape": 1, "Expand": 1, "Resize": 3}
_SMALL = 1 << 10  # elements: views of smaller values save nothing


def hide_sizes(block: BindingBlock, forward: Collection[Binding]) -> None:
    """Puts views behind the barriers of recomputed segments, and in front of all bindings that
    depend on one. The file does not declare the types of these values.
    """
    if not any(is_barrier(b) for b in block.bindings if b not in forward):
        return
    block.schedule()
    hidden, fixed = _Hidden(), set[Var]()
    with emitting(block, share=True, made_by="gradient"):
        for b in list(block.bindings):
            # onnxruntime folds what depends on weights only, and its kernels prefer constants
            if not draws(b) and all(v.is_constant or v in fixed for v in b.reads()):
                fixed.update(v for v in b.outputs if v is not None)
            elif b not in forward:
                hidden.add(b, fixed)
    for v in hidden.waits:
        block.declared[v] = None


def hidden_in(bindings: Iterable[Binding], constants: Collection[Var] = ()) -> set[Var]:
    """Returns the values whose size is hidden, among the results of bindings in order. A shape in
    `constants` hides nothing.
    """
    found: set[Var] = set()
    for b in bindings:
        shape = b.operand(_SHAPED.get(b.op, len(b.inputs)))
        waits = shape is not None and shape not in constants and is_barrier(shape.definition)
        if waits or not found.isdisjoint(b.reads()):
            found.update(v for v in b.outputs if v is not None)
    return found


class _Hidden:
    """Values of hidden size, with the conditions for which they wait, and views."""

    def __init__(self) -> None:
        self.waits: dict[Var, Var] = {}
        self._views: dict[tuple[Var, Var], Var] = {}

    def add(self, b: Binding, fixed: Collection[Var]) -> None:
        """Hides the size of the results if the binding is a barrier, or depends on one. Constants,
        and values in `fixed`, stay.
        """
        condition = b.inputs[0] if is_barrier(b) else None
        if condition is not None and _is_large(b.out):
            view = self._view(b.out, condition)
            for reader in [u for u in b.out.users if u is not view.definition]:
                for place in reader.places(b.out):
                    reader.block.set_operand(reader, place, view)
            return
        condition = next((self.waits[v] for v in b.reads() if v in self.waits), None)
        if condition is None:
            return
        for place, v in enumerate(b.inputs):
            if v is not None and v not in self.waits and v not in fixed and _is_large(v):
                b.block.set_operand(b, place, self._view(v, condition))
        shape = None if b.domain else b.operand(_SHAPED.get(b.op, len(b.inputs)))
        if shape is not None and shape.is_constant and 0 not in (shape.shape or ()):
            b.block.set_operand(b, _SHAPED[b.op], op.Where(condition, shape, shape))
        self.waits.update((v, condition) for v in b.outputs if v is not None)

    def _view(self, v: Var, condition: Var) -> Var:
        if (v, condition) not in self._views:
            shape = np.array(v.shape, np.int64)
            self._views[v, condition] = view = op.Reshape(v, op.Where(condition, shape, shape))
            self.waits[view] = condition
        return self._views[v, condition]


def _is_large(v: Var) -> bool:
    return not v.is_constant and is_static(v.shape) and math.prod(v.shape) >= _SMALL
