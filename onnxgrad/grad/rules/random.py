"""Random draws: their shape or parameters come from an operand, their values do not."""

from __future__ import annotations

from onnxgrad.grad.registry import zero

zero(
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
    notes="a draw has no operand",
)
zero(
    "Bernoulli",
    "Multinomial",
    notes="a discrete draw: zero almost everywhere; no score-function estimate",
)
