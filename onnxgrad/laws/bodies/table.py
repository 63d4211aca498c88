"""The table of bodies. From one body come the lowering by `inline`, the gradient of an operator
without a formula, and the rows of an operator without a batching rule.

A new body is a function that emits ONNX's operators, and an entry of `BODIES` in the file of its
family. Positional parameters are operands (None if omitted), keyword-only ones attributes, and
`binding` is the call. The body computes what onnxruntime's CPU kernel computes; `calls.decline`
refuses any other call. `tests/laws/bodies/test_lowering.py` wants a call of each operator.
"""

from __future__ import annotations

from onnxgrad.laws.bodies import (
    attention,
    diffusion,
    experts,
    fused,
    grouped_query,
    linear_attention,
    quantized,
    tensor_operators,
)
from onnxgrad.laws.bodies.calls import Builder

# (domain, operator): what emits its body, and a note for the table of gradients
BODIES: dict[tuple[str, str], tuple[Builder, str]] = {
    ("com.microsoft", name): body
    for module in (
        attention,
        diffusion,
        experts,
        fused,
        grouped_query,
        linear_attention,
        quantized,
        tensor_operators,
    )
    for name, body in module.BODIES.items()
}
_ROOT_MEAN_SQUARE = "SimplifiedLayerNormalization"
BODIES["", _ROOT_MEAN_SQUARE] = (
    fused.BODIES[_ROOT_MEAN_SQUARE][0],
    "onnxruntime's, in the default domain",
)
