"""Classical machine learning (ai.onnx.ml): scaling, linear models, support vectors, trees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import TensorProto

from onnxgrad.errors import InputError
from onnxgrad.grad.registry import body, vjp, vjp_all, zero
from onnxgrad.grad.rules._common import in_dtype_of
from onnxgrad.ir.binding import Binding
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
    """(x - offset) * scale, with one scale or one per column."""
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


# ---- classes, rows and columns -------------------------------------------------------------------


def _declined(binding: Binding, what: str) -> InputError:
    return InputError(f"no gradient of '{binding}': {what}")


def _linear_classifier(
    g: Sequence[Var | None],
    y: Sequence[Var],
    x: Var,
    coefficients: tuple[float, ...],
    post_transform: str,
    binding: Binding,
) -> Var | None:
    """Returns the adjoint through the scores of z = x @ coefficients.T + intercepts.

    The labels are piecewise constant. One score for two classes yields 1 - p and p. SOFTMAX_ZERO is
    a softmax, except for scores of 0.
    """
    if g[1] is None:
        return None
    labels = binding.attr("classlabels_ints") or binding.attr("classlabels_strings") or ()
    width = None if x.shape is None or len(x.shape) != 2 else x.shape[1]
    if not isinstance(width, int):
        raise _declined(binding, f"the number of columns of '{x.name}' is not known")
    matrix = np.asarray(coefficients, np.float32).reshape(-1, width)
    single = len(matrix) == 1 and len(labels) == 2
    kinds = ("NONE", "LOGISTIC") if single else ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO")
    if post_transform not in kinds:
        of = "one score for two classes" if single else "scores"
        raise _declined(binding, f"post_transform {post_transform} of {of} has no rule")
    part, p = g[1], y[1]
    if single:
        first, p = op.Slice(part, [0], [1], [1]), op.Slice(p, [1], [2], [1])
        part = op.Slice(part, [1], [2], [1]) - first
    if post_transform == "LOGISTIC":
        part = part * (p * (1.0 - p))
    elif post_transform != "NONE":
        part = (part - op.ReduceSum(part * p, [1], keepdims=1)) * p
    return part @ constant(matrix)


vjp(
    f"{_DOMAIN}::LinearClassifier",
    _linear_classifier,
    notes="scores only; without PROBIT, and without softmax of one score for two classes",
)


def _normalizer(g: Var, y: Var, x: Var, norm: str) -> Var:
    """Rows divided by their largest element, their sum of absolute values, or their length."""
    x = in_dtype_of(x, g)
    if norm == "L2":
        size, way = op.ReduceL2(x, [-1], keepdims=1), y
    elif norm == "L1":
        size, way = op.ReduceL1(x, [-1], keepdims=1), op.Sign(x)
    else:
        size = op.ReduceMax(x, [-1], keepdims=1)
        largest = in_dtype_of(op.Equal(x, size), g)
        way = largest / op.ReduceSum(largest, [-1], keepdims=1)
    is_zero = op.Equal(size, 0.0)
    inner = g - way * op.ReduceSum(g * y, [-1], keepdims=1)
    return op.Where(is_zero, 0.0, inner / op.Where(is_zero, 1.0, size))


vjp(
    f"{_DOMAIN}::Normalizer",
    _normalizer,
    notes="0 where the norm is 0; equal maxima share the adjoint evenly",
)


def _imputer(g: Var, y: Var, x: Var, replaced_value_float: float = 0.0) -> Var:
    """x, or a constant where x equals the value that marks a missing one"""
    if np.isnan(replaced_value_float):
        return op.Where(op.IsNaN(x), 0.0, g)
    return op.Where(op.Equal(x, replaced_value_float), 0.0, g)


vjp(f"{_DOMAIN}::Imputer", _imputer, notes="0 where a value is imputed")


def _feature_vectorizer(
    g: Var, y: Var, xs: Sequence[Var], inputdimensions: tuple[int, ...], binding: Binding
) -> list[Any]:
    """Returns the columns of g for each operand: the forward result joins all columns."""
    widths = [None if x.shape is None or len(x.shape) != 2 else x.shape[1] for x in xs]
    if widths != list(inputdimensions):
        raise _declined(binding, "the widths of its operands differ from inputdimensions")
    return [*op.Split(g, list(inputdimensions), axis=1, outputs=len(xs))]


vjp_all(
    f"{_DOMAIN}::FeatureVectorizer",
    _feature_vectorizer,
    notes="operand widths equal inputdimensions",
)


def _svm_regressor(
    x: Var,
    *,
    coefficients: tuple[float, ...] | None = None,
    support_vectors: tuple[float, ...] | None = None,
    kernel_params: tuple[float, ...] | None = None,
    kernel_type: str = "LINEAR",
    n_supports: int = 0,
    rho: tuple[float, ...] | None = None,
    one_class: int = 0,
    post_transform: str = "NONE",
    binding: Binding,
) -> Var:
    """kernel(x, support vectors) @ coefficients + rho; without support vectors x @ coefficients"""
    if post_transform != "NONE" or one_class or coefficients is None:
        raise _declined(binding, "post_transform, one_class, or no coefficients")
    if x.dtype != TensorProto.FLOAT:
        x = op.Cast(x, to=TensorProto.FLOAT)
    gamma, shift, degree = (*(kernel_params or ()), 0.0, 0.0, 0.0)[:3]
    if n_supports:
        vectors = np.asarray(support_vectors, np.float32).reshape(n_supports, -1)
        if kernel_type == "RBF":
            apart = op.Unsqueeze(x, [1]) - constant(vectors)
            x = op.Exp(op.ReduceSumSquare(apart, [2], keepdims=0) * -gamma)
        else:
            x = x @ constant(vectors.T.copy())
            bent = x * gamma + shift
            if kernel_type != "LINEAR":
                x = op.Tanh(bent) if kernel_type == "SIGMOID" else op.Pow(bent, float(degree))
    column = constant(np.asarray(coefficients, np.float32).reshape(-1, 1))
    return x @ column + float(rho[0] if rho else 0.0)


body(f"{_DOMAIN}::SVMRegressor", _svm_regressor, notes="without post_transform and one_class")
