"""Classical machine learning (ai.onnx.ml): scaling, linear models, trees."""

from __future__ import annotations

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.grad.registry import body, vjp, zero
from onnxgrad.ir.emission.emit import constant
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var

_DOMAIN = "ai.onnx.ml"

zero(
    *(
        f"{_DOMAIN}::{name}"
        for name in ("TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor", "Binarizer")
    ),
    notes="steps",
)


def _scaler(g: Var, y: Var, x: Var, scale: tuple[float, ...] | None = None) -> Var:
    """(x - offset) * scale, one scale or one for each column."""
    each = g if scale is None else g * constant(np.asarray(scale, np.float32))
    return each if x.dtype == each.dtype else op.CastLike(each, x)


vjp(f"{_DOMAIN}::Scaler", _scaler)


def _linear_regressor(
    x: Var,
    *,
    coefficients: tuple[float, ...] | None = None,
    intercepts: tuple[float, ...] | None = None,
    targets: int = 1,
    post_transform: str = "NONE",
) -> Var:
    """x @ coefficients.T + intercepts"""
    if post_transform != "NONE" or coefficients is None:
        raise InputError(
            f"LinearRegressor with post_transform={post_transform} and "
            f"{len(coefficients or ())} coefficients has no gradient"
        )
    matrix = np.asarray(coefficients, np.float32).reshape(targets, -1).T
    if x.dtype != 1:
        x = op.Cast(x, to=1)
    product = x @ constant(matrix)
    return product if intercepts is None else product + constant(np.asarray(intercepts, np.float32))


body(f"{_DOMAIN}::LinearRegressor", _linear_regressor, notes="without post_transform")
