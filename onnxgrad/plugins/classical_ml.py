"""Classical machine learning (ai.onnx.ml): scaling, linear models, support vectors, trees."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
from onnx import TensorProto

from onnxgrad.errors import InputError
from onnxgrad.grad.registry import gradient_body, vjp, vjp_all, zero
from onnxgrad.grad.rules._common import pad
from onnxgrad.grad.rules.gather import gather
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.arithmetic import in_dtype_of
from onnxgrad.ir.emission.emit import constant, emit, emit_with_blocks, nested
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import Array, TensorType
from onnxgrad.ir.var import Var
from onnxgrad.wording import counted

_DOMAIN = "ai.onnx.ml"


def _scaler(g: Var, y: Var, x: Var, scale: tuple[float, ...] | None = None) -> Var:
    """(x - offset) * scale, with one scale or one per column."""
    each = g if scale is None else g * constant(np.asarray(scale, np.float32))
    return each if x.dtype == each.dtype else op.CastLike(each, x)


def _array_feature_extractor(g: Var, y: Var, data: Var, at: Var) -> Var:
    """Elements along the last axis, for places of any number and shape; a vector is one row."""
    g = op.Reshape(g, [-1]) if data.rank == 1 else g
    return gather(g, y, data, op.Reshape(at, [-1]), -1)


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
            f"{counted(len(coefficients or ()), 'coefficient')} has no gradient"
        )
    matrix = np.asarray(coefficients, np.float32).reshape(targets, -1).T
    if x.dtype != 1:
        x = op.Cast(x, to=1)
    product = x @ constant(matrix)
    return product if intercepts is None else product + constant(np.asarray(intercepts, np.float32))


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

    The labels are piecewise constant. One score for two classes yields 1 - p and p, without a
    softmax. SOFTMAX_ZERO is a softmax, except for scores of 0.
    """
    if g[1] is None:
        return None
    labels = binding.attr("classlabels_ints") or binding.attr("classlabels_strings") or ()
    width = x.shape[1] if x.shape is not None and len(x.shape) == 2 else None
    count = len(binding.attr("intercepts") or ())
    if not count and not isinstance(width, int):
        raise _declined(binding, f"the number of columns of '{x.name}' is not known")
    columns = width if isinstance(width, int) else -1
    matrix = np.asarray(coefficients, np.float32).reshape(count or -1, -1 if count else columns)
    single = len(matrix) == 1 and len(labels) == 2
    if post_transform == "PROBIT":
        raise _declined(binding, "post_transform PROBIT of scores has no rule")
    part, p = g[1], y[1]
    if single:
        first, p = op.Slice(part, [0], [1], [1]), op.Slice(p, [1], [2], [1])
        part = op.Slice(part, [1], [2], [1]) - first
    if post_transform == "LOGISTIC":
        part = part * (p * (1.0 - p))
    elif post_transform != "NONE" and not single:
        part = (part - op.ReduceSum(part * p, [1], keepdims=1)) * p
    return part @ constant(matrix)


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


def _imputer(g: Var, y: Var, x: Var, replaced_value_float: float = 0.0) -> Var:
    """x, or a constant where x equals the value that marks a missing one"""
    if np.isnan(replaced_value_float):
        return op.Where(op.IsNaN(x), 0.0, g)
    return op.Where(op.Equal(x, replaced_value_float), 0.0, g)


def _feature_vectorizer(
    g: Var, y: Var, xs: Sequence[Var], inputdimensions: tuple[int, ...], binding: Binding
) -> list[Any]:
    """Returns the columns of g for each operand: the forward result joins all columns."""
    widths = [None if x.shape is None or len(x.shape) != 2 else x.shape[1] for x in xs]
    if any(isinstance(w, int) and w != d for w, d in zip(widths, inputdimensions, strict=True)):
        raise _declined(binding, "the widths of its operands differ from inputdimensions")
    parts = op.Split(g, list(inputdimensions), axis=1, outputs=len(xs))
    return [
        part if isinstance(w, int) else _fitted(part, x, d)
        for part, x, w, d in zip(parts, xs, widths, inputdimensions)
    ]


def _fitted(part: Var, x: Var, width: int) -> Var:
    """Returns `part` in the width of x: the operator crops an operand, or adds zeros."""
    missing = op.Shape(x, start=1, end=2) - np.array([width], np.int64)
    return pad(part, op.Concat([0, 0, 0], missing, axis=0))


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
    vectors = None if not n_supports else _rows(support_vectors, n_supports)
    x = _samples(x, len(coefficients) if vectors is None else vectors.shape[1])
    x = _similar(x, vectors, kernel_type, kernel_params)
    column = constant(np.asarray(coefficients, np.float32).reshape(-1, 1))
    return x @ column + float(rho[0] if rho else 0.0)


def _rows(numbers: Sequence[float] | None, count: int) -> Array:
    return np.asarray(numbers, np.float32).reshape(count, -1)


def _samples(x: Var, width: int) -> Var:
    """Returns x as float32 rows (B, width); a vector is one row."""
    if x.dtype != TensorProto.FLOAT:
        x = op.Cast(x, to=TensorProto.FLOAT)
    return x if x.rank == 2 else op.Reshape(x, [-1, width])


def _similar(
    x: Var, vectors: Array | None, kernel_type: str, kernel_params: tuple[float, ...] | None
) -> Var:
    """Returns the kernel of each row of x and each support vector; x itself without vectors."""
    if vectors is None:
        return x
    gamma, shift, degree = (*(kernel_params or ()), 0.0, 0.0, 0.0)[:3]
    if kernel_type == "RBF":
        apart = op.Unsqueeze(x, [1]) - constant(vectors)
        return op.Exp(op.ReduceSumSquare(apart, [2], keepdims=0) * -gamma)
    product = x @ constant(vectors.T.copy())
    if kernel_type == "LINEAR":
        return product
    bent = product * gamma + shift
    return op.Tanh(bent) if kernel_type == "SIGMOID" else op.Pow(bent, float(degree))


def _svm_classifier(
    x: Var,
    *,
    coefficients: tuple[float, ...],
    support_vectors: tuple[float, ...] | None = None,
    vectors_per_class: tuple[int, ...] = (),
    rho: tuple[float, ...],
    prob_a: tuple[float, ...] | None = None,
    prob_b: tuple[float, ...] | None = None,
    kernel_type: str = "LINEAR",
    kernel_params: tuple[float, ...] | None = None,
    post_transform: str = "NONE",
    binding: Binding,
) -> tuple[Var, Var]:
    """Returns labels and scores: one score per class, or without probabilities one per pair of
    classes. The score d of two classes stands for both, as -d and d, or as 1 - d and d.
    """
    classes = len(binding.attr("classlabels_ints") or binding.attr("classlabels_strings") or ())
    if classes < 2 or post_transform == "PROBIT":
        raise _declined(binding, f"post_transform {post_transform} of {classes} classes")
    labels, _ = emit("SVMClassifier", [x], {**binding.attrs, "outputs": 2}, domain=_DOMAIN)
    if not sum(vectors_per_class):
        matrix = _rows(coefficients, classes)
        z = _samples(x, matrix.shape[1]) @ constant(matrix.T.copy()) + float(rho[0])
        return labels, _transformed(z, post_transform)
    pairs = np.asarray(rho[: classes * (classes - 1) // 2], np.float32)
    vectors = _rows(support_vectors, sum(vectors_per_class))
    weights = _pair_weights(_rows(coefficients, classes - 1), vectors_per_class)
    x = _samples(x, vectors.shape[1])
    z = _similar(x, vectors, kernel_type, kernel_params) @ constant(weights) + constant(pairs)
    if prob_a and prob_b:
        a, b = (constant(np.asarray(v[: len(pairs)], np.float32)) for v in (prob_a, prob_b))
        z = _of_classes(op.Clip(op.Sigmoid(-(z * a + b)), 1e-7, 1.0 - 1e-7), classes)
    elif classes == 2:
        z = op.Sigmoid(z) if post_transform == "LOGISTIC" else z
        other = -z if post_transform == "NONE" else 1.0 - z
        return labels, op.Concat(other, z, axis=1)
    return labels, _transformed(z, post_transform)


def _transformed(z: Var, post_transform: str) -> Var:
    if post_transform == "LOGISTIC":
        return op.Sigmoid(z)
    # the softmax of SOFTMAX_ZERO differs for scores of 0 alone
    return z if post_transform == "NONE" else op.Softmax(z, axis=-1)


def _pair_weights(coefficients: Array, vectors_per_class: Sequence[int]) -> Array:
    """Returns the weights (vectors, pairs): the pair (i, j) reads the vectors of both classes, by
    the rows j - 1 and i of the coefficients (classes - 1, vectors).
    """
    of = np.repeat(np.arange(len(vectors_per_class)), vectors_per_class)
    pairs = combinations(range(len(vectors_per_class)), 2)
    columns = [
        np.where(of == i, coefficients[j - 1], np.where(of == j, coefficients[i], 0.0))
        for i, j in pairs
    ]
    return np.stack(columns, axis=1).astype(np.float32)


def _of_classes(r: Var, classes: int) -> Var:
    """Returns the probabilities p of the classes from those of pairs (B, pairs), as onnxruntime
    does: at most 100 sweeps over the classes lessen sum (r_ji p_i - r_ij p_j)^2, until a row's
    slopes differ by less than 0.005 / classes. Source: Wu, Lin and Weng, 2004.
    """
    at = np.zeros((classes, classes), np.int64)
    above = np.triu_indices(classes, 1)
    at[above], count = np.arange(len(above[0])), len(above[0])
    at.T[above] = at[above] + count
    np.fill_diagonal(at, 2 * count)
    both = op.Concat(r, 1.0 - r, op.Slice(r, [0], [1], [1]) * 0.0, axis=1)
    given = op.Gather(both, at, axis=1)  # (B, classes, classes)
    own = op.ReduceSum(given * given, [1], keepdims=0)
    eye = np.eye(classes, dtype=np.float32)
    q = op.Unsqueeze(own, [2]) * eye - given * given.mT
    start = own * 0.0 + 1.0 / classes
    with nested("sweeps") as block:
        names = block.program.names
        block.add_input(names.fresh("sweep"), TensorType(TensorProto.INT64, ()))
        block.add_input(names.fresh("more"), TensorType(TensorProto.BOOL, ()))
        p = before = block.add_input(names.fresh("p"), start.type)
        apart = _slopes(q, p)
        unsettled = op.GreaterOrEqual(op.ReduceMax(op.Abs(apart), [1], keepdims=1), 0.005 / classes)
        for i in range(classes):
            here = np.array([i], np.int64)
            step = -op.Gather(_slopes(q, p), here, axis=1) / op.Gather(own, here, axis=1)
            p = (p + step * eye[i]) / (1.0 + step)
        left = op.ReduceSum(op.Cast(unsettled, to=TensorProto.INT64), keepdims=0)
        block.add_output(op.Greater(left, 0))
        block.add_output(op.Where(unsettled, p, before))
    sweeps = constant(np.int64(100))
    (found,) = emit_with_blocks("Loop", [sweeps, None, start], {"body": block}, [start.type])
    return found


def _slopes(q: Var, p: Var) -> Var:
    """Returns q p - p' q p."""
    along = op.ReduceSum(q * op.Unsqueeze(p, [1]), [2], keepdims=0)
    return along - op.ReduceSum(p * along, [1], keepdims=1)


def register() -> None:
    """Registers the rules of the domain."""
    zero(
        *(
            f"{_DOMAIN}::{name}"
            for name in (
                "TreeEnsemble",
                "TreeEnsembleClassifier",
                "TreeEnsembleRegressor",
                "Binarizer",
            )
        ),
        notes="steps",
    )
    vjp(f"{_DOMAIN}::Scaler", _scaler)
    vjp(f"{_DOMAIN}::ArrayFeatureExtractor", _array_feature_extractor)
    gradient_body(f"{_DOMAIN}::LinearRegressor", _linear_regressor, notes="without post_transform")
    vjp(
        f"{_DOMAIN}::LinearClassifier",
        _linear_classifier,
        notes="scores only; without PROBIT",
    )
    vjp(
        f"{_DOMAIN}::Normalizer",
        _normalizer,
        notes="0 where the norm is 0; equal maxima share the adjoint evenly",
    )
    vjp(f"{_DOMAIN}::Imputer", _imputer, notes="0 where a value is imputed")
    vjp_all(
        f"{_DOMAIN}::FeatureVectorizer",
        _feature_vectorizer,
        notes="operand widths equal inputdimensions",
    )
    gradient_body(
        f"{_DOMAIN}::SVMRegressor", _svm_regressor, notes="without post_transform and one_class"
    )
    gradient_body(
        f"{_DOMAIN}::SVMClassifier",
        _svm_classifier,
        notes="scores only; without PROBIT, and of two classes or more",
    )
