"""LpNormalization, and Dropout with the mask that the forward run drew."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnxgrad.grad.registry import vjp, zero
from onnxgrad.ir.block import Var
from onnxgrad.ir.emission.constant import constant
from onnxgrad.ir.like import reshape_like
from onnxgrad.ir.ops import op

Adjoints = Sequence["Var | None"]


def _lp_normalization(g: Var, y: Var, x: Var, axis: int, p: int) -> Var:
    """y = x / |x|: what points along y goes, measured by the norm's own gradient (y for 2, sign(x) for 1)."""
    norm = (op.ReduceL1 if p == 1 else op.ReduceL2)(x, [axis], keepdims=1)
    along = op.ReduceSum(g * y, [axis], keepdims=1)
    across = (g - (op.Sign(x) if p == 1 else y) * along) / norm
    result: Var = op.Where(op.Equal(norm, 0.0), 0.0, across)
    return result


vjp("LpNormalization", _lp_normalization, notes="0 where the norm is 0; sign(0) = 0 in the 1-norm")


def _kept_scale(x: Var, ratio: Var | None, training_mode: Var | None) -> Var | None:
    """What a kept element is multiplied by in training, 1 / (1 - ratio); None where nothing is ever dropped."""
    if training_mode is None or (training_mode.const is not None and not training_mode.const.any()):
        return None
    if ratio is None or ratio.const is not None:
        rate = 0.5 if ratio is None or ratio.const is None else float(np.asarray(ratio.const, np.float64).reshape(()))
        scale = constant(1.0 / (1.0 - rate) if rate < 1.0 else 0.0, x.dtype)
    else:
        share = op.Cast(ratio, to=x.dtype)
        # everything dropped: the output is 0 whatever the input
        scale = op.Where(op.Less(share, 1.0), 1.0 / (1.0 - share), 0.0)
    return scale if training_mode.const is not None else op.Where(training_mode, scale, 1.0)


def _dropout(g: Adjoints, y: Sequence[Var], x: Var, ratio: Var | None, training_mode: Var | None) -> Var | None:
    if g[0] is None:
        return None
    scale = _kept_scale(x, ratio, training_mode)
    result: Var = g[0] if scale is None else op.Where(y[1], g[0] * scale, 0.0)
    return result


def _dropout_ratio(g: Adjoints, y: Sequence[Var], x: Var, ratio: Var, training_mode: Var | None) -> Var | None:
    """The scale's derivative, 1 / (1 - ratio)^2, with the mask as drawn."""
    scale = _kept_scale(x, ratio, training_mode)
    if g[0] is None or scale is None or training_mode is None:
        return None
    total = reshape_like(op.ReduceSum(g[0] * y[0], keepdims=0) * scale, ratio)
    return total if training_mode.const is not None else op.Where(training_mode, total, 0.0)


vjp("Dropout", _dropout, _dropout_ratio, notes="training: with the mask that the forward run drew")
zero("Hardmax", notes="one-hot: constant almost everywhere")
