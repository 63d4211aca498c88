"""MaxUnpool."""

from __future__ import annotations

from onnxgrad.grad.registry import vjp
from onnxgrad.ir.ops import op

vjp(
    "MaxUnpool",
    # each value's adjoint is read where the value was put
    lambda g, y, x, places: op.Gather(op.Reshape(g, [-1]), places, axis=0),
    notes="indices count in the output, as in onnxruntime, also where output_shape makes it larger",
)
