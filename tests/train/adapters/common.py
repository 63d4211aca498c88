"""Small models that read a matrix W in each way that adapters know, and adapters with numbers in them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from onnxgrad.train.adapters import adapters_of
from onnxgrad.train.export import export
from tests.helpers import parse

# name: (graph, shape of W, whether its rows are what inputs come in by)
FORMS: dict[str, tuple[str, tuple[int, ...], bool]] = {
    "matmul": ("(float[N,5,7] x) => (float[N,5,6] y) { y = MatMul (x, W) }", (7, 6), True),
    "vector": ("(float[7] x) => (float[6] y) { y = MatMul (x, W) }", (7, 6), True),
    "transposed": (
        "(float[N,5,7] x) => (float[N,5,6] y) { t = Transpose (W) y = MatMul (x, t) }", (6, 7), False),
    "twice_transposed": (
        "(float[N,7] x) => (float[N,6] y) "
        "{ t = Transpose (W) u = Transpose <perm = [1, 0]> (t) y = MatMul (x, u) }", (7, 6), True),
    "left": ("(float[N,7,5] x) => (float[N,6,5] y) { y = MatMul (W, x) }", (6, 7), False),
    "left_transposed": (
        "(float[N,7,5] x) => (float[N,6,5] y) { t = Transpose (W) y = MatMul (t, x) }", (7, 6), True),
    "left_of_vector": ("(float[7] x) => (float[6] y) { y = MatMul (W, x) }", (6, 7), False),
    "gemm": (
        "(float[5,7] x) => (float[5,6] y) <float[6] c = {1,2,3,4,5,6}> { y = Gemm (x, W, c) }", (7, 6), True),
    "gemm_transposed": (
        "(float[7,5] x) => (float[5,6] y) <float[6] c = {1,2,3,4,5,6}> "
        "{ y = Gemm <transA = 1, transB = 1, alpha = 0.5, beta = 2.0> (x, W, c) }", (6, 7), False),
    "gemm_left": (
        "(float[5,7] x) => (float[6,5] y) { y = Gemm <transB = 1, alpha = -0.5> (W, x) }", (6, 7), False),
    "gemm_left_transposed": (
        "(float[7,5] x) => (float[6,5] y) { y = Gemm <transA = 1> (W, x) }", (7, 6), True),
    "conv": (
        "(float[N,7,4,4] x) => (float[N,6,3,2] y) <float[6] c = {1,2,3,4,5,6}> "
        "{ y = Conv <strides = [2, 3], pads = [1, 0, 0, 1]> (x, W, c) }", (6, 7, 1, 1), False),
    "conv_of_line": ("(float[N,7,4] x) => (float[N,6,4] y) { y = Conv (x, W) }", (6, 7, 1), False),
    "gather": ("(int64[N,5] i) => (float[N,5,6] y) { y = Gather (W, i) }", (7, 6), True),
    "tied": (
        "(int64[N,5] i) => (float[N,5,7] y) "
        "{ h = Gather (W, i) r = Tanh (h) t = Transpose (W) y = MatMul (r, t) }", (7, 6), True),
    "shared": (
        "(float[N,7] x, float[N,7] z) => (float[N,6] y) "
        "{ a = MatMul (x, W) b = Tanh (a) c = Gemm <alpha = 2.0> (z, W) y = Mul (b, c) }", (7, 6), True),
    "inside": (
        "(float[N,7] x, bool f) => (float[N,6] y) { y = If (f) <"
        "then_branch = g () => (float[N,6] p) { p = MatMul (x, W) }, "
        "else_branch = h () => (float[N,6] q) { r = MatMul (x, W) q = Neg (r) }> }", (7, 6), True),
    "wide": ("(double[N,7] x) => (double[N,6] y) { y = MatMul (x, W) }", (7, 6), True),
}  # fmt: skip


def with_weights(text: str, **weights: np.ndarray[Any, Any]) -> onnx.ModelProto:
    model = parse("g " + text)
    for name, array in weights.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def form(name: str) -> onnx.ModelProto:
    text, shape, _ = FORMS[name]
    dtype = np.float64 if "double" in text else np.float32
    return with_weights(text, W=np.random.default_rng(0).standard_normal(shape).astype(dtype))


def feeds_of(model: onnx.ModelProto) -> dict[str, np.ndarray[Any, Any]]:
    """Numbers for x and z, rows for i."""
    rng = np.random.default_rng(1)
    found: dict[str, np.ndarray[Any, Any]] = {}
    for v in model.graph.input:
        kind = onnx.helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type)
        shape = [d.dim_value or 3 for d in v.type.tensor_type.shape.dim]
        if v.name == "i":
            found[v.name] = rng.integers(-7, 7, shape)
        elif v.name == "f":
            found[v.name] = np.array(False)
        else:
            found[v.name] = rng.standard_normal(shape).astype(kind)
    return found


def moved(model: Any, seed: int = 2) -> onnx.ModelProto:
    """A model whose adapters were trained, as it were."""
    rng = np.random.default_rng(seed)
    values = adapters_of(model).values
    new = {k: (0.5 * rng.standard_normal(v.shape)).astype(v.dtype) for k, v in values.items()}
    return export(model, new)
