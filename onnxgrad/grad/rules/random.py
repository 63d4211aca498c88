"""Dropout, with the mask that the forward run drew, and random draws."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnxgrad.grad.registry import vjp, zero
from onnxgrad.ir.emission.emit import constant
from onnxgrad.ir.emission.fill_and_reshape import reshape_like
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var


def _kept_scale(x: Var, ratio: Var | None, training_mode: Var | None) -> Var | None:
    """Returns the factor of kept elements in training, 1 / (1 - ratio), or None without dropout."""
    if training_mode is None or (training_mode.const is not None and not training_mode.const.any()):
        return None
    if ratio is None or ratio.const is not None:
        given = None if ratio is None else ratio.const
        rate = 0.5 if given is None else float(np.asarray(given, np.float64).reshape(()))
        scale = constant(1.0 / (1.0 - rate) if rate < 1.0 else 0.0, x.dtype)
    else:
        share = op.Cast(ratio, to=x.dtype)
        # with ratio 1 every element is dropped, so the output is 0 for any input
        scale = op.Where(op.Less(share, 1.0), 1.0 / (1.0 - share), 0.0)
    return scale if training_mode.const is not None else op.Where(training_mode, scale, 1.0)


def _dropout(
    g: Sequence[Var | None], y: Sequence[Var], x: Var, ratio: Var | None, training_mode: Var | None
) -> Var | None:
    if g[0] is None:
        return None
    scale = _kept_scale(x, ratio, training_mode)
    return g[0] if scale is None else op.Where(y[1], g[0] * scale, 0.0)


def _dropout_ratio(
    g: Sequence[Var | None], y: Sequence[Var], x: Var, ratio: Var, training_mode: Var | None
) -> Var | None:
    """Returns the derivative of the scale, 1 / (1 - ratio)^2, with the mask of the forward run."""
    scale = _kept_scale(x, ratio, training_mode)
    if g[0] is None or scale is None or training_mode is None:
        return None
    total = reshape_like(op.ReduceSum(g[0] * y[0], keepdims=0) * scale, ratio)
    return total if training_mode.const is not None else op.Where(training_mode, total, 0.0)


vjp("Dropout", _dropout, _dropout_ratio, notes="training: with the mask of the forward run")


zero(
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
    notes="a random draw has no operands",
)
zero(
    "Bernoulli",
    "Multinomial",
    notes="a discrete draw: zero almost everywhere; no score-function estimate",
)
