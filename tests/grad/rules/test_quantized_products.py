"""Gradients of products with quantised matrices: right in every form, and no float matrix is formed in full."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxgrad
from onnxgrad import check_gradient, gradient
from onnxgrad.grad.rules._by_blocks import LEAST
from onnxgrad.ir.operator_index import blocks_in
from onnxgrad.ir.types import TensorType
from onnxgrad.verify.running.session import run
from tests.grad.numeric import check_op, normal

INPUTS, OUTPUTS, BLOCK = 320, 288, 32
FOUR_BITS = {"int4": TensorProto.INT4, "uint4": TensorProto.UINT4}
# the axis of the scales (None: one scale), whether in blocks, whether zero points, and the stored type
SCALES: dict[str, tuple[int | None, bool, bool, str]] = {
    "one scale": (None, False, False, "int8"),
    "one scale, zero point": (None, False, True, "uint8"),
    "columns": (1, False, False, "int8"),
    "columns, zero points": (1, False, True, "uint8"),
    "rows": (0, False, True, "int8"),
    "blocks of rows": (0, True, False, "int8"),
    "blocks of columns": (1, True, True, "uint8"),
    "four bits, blocks of rows": (0, True, False, "int4"),
    "four bits, blocks of columns": (1, True, True, "uint4"),
    "four bits, columns": (1, False, True, "int4"),
}
USES = {
    "matmul": "y = MatMul (x, w)",
    "gemm": "y = Gemm <alpha = 0.5> (x, w)",
    "transposed": "t = Transpose <perm = [1, 0]> (w) y = MatMul (x, t)",
    "transB": "y = Gemm <transB = 1> (x, w)",
}
TURNED = ("transposed", "transB")


def stored(name: str, kind: str, q: np.ndarray) -> onnx.TensorProto:
    if kind in FOUR_BITS:
        return helper.make_tensor(name, FOUR_BITS[kind], q.shape, q.ravel())
    return numpy_helper.from_array(q.astype(kind), name)


def dequantised(
    scales: str, use: str, sizes: tuple[int, int] = (INPUTS, OUTPUTS), batch: str = "M"
) -> tuple[onnx.ModelProto, np.ndarray]:
    """A product of x (M, in) with a matrix behind a DequantizeLinear, and the matrix (in, out)."""
    axis, blocked, shifted, kind = SCALES[scales]
    shape = sizes[::-1] if use in TURNED else sizes
    rng = np.random.default_rng(len(scales))
    low, high = {"int8": (-128, 128), "uint8": (0, 256), "int4": (-8, 8), "uint4": (0, 16)}[kind]
    q = rng.integers(low, high, shape)
    if axis is None:
        of_scale: tuple[int, ...] = ()
    elif blocked:
        of_scale = tuple(n // BLOCK if i == axis else n for i, n in enumerate(shape))
    else:
        of_scale = (shape[axis],)
    scale = rng.uniform(0.01, 0.02, of_scale).astype(np.float32)
    zero = rng.integers(low, high, of_scale) if shifted else np.zeros(of_scale, np.int64)
    wide = [
        v.repeat(BLOCK, axis) if blocked else (v if axis != 0 else v[:, None])
        for v in (scale, zero)
    ]
    w = (q - wide[1]) * wide[0].astype(np.float64)
    attributes = (
        "" if axis is None else f"<axis = {axis}" + (f", block_size = {BLOCK}>" if blocked else ">")
    )
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 21]> g (float[{batch},{sizes[0]}] x) => (float[{batch},{sizes[1]}] y) '
        f"{{ w = DequantizeLinear {attributes} (q, s{', z' if shifted else ''}) {USES[use]} }}"
    )
    model.graph.initializer.extend([stored("q", kind, q), numpy_helper.from_array(scale, "s")])
    if shifted:
        model.graph.initializer.append(stored("z", kind, zero))
    return model, w.T if use in TURNED else w


def whole_floats(model: onnx.ModelProto, size: int, folder: Path) -> list[str]:
    """Operators of the graph that onnxruntime runs whose results have at least so many elements, and such weights.

    Unknown sizes of the loaded graph come from the shapes that onnxruntime infers for the blocks: a result whose size
    depends on the step is a part of the matrix.
    """
    path = folder / "optimised.onnx"
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(path)
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    program = onnxgrad.load(path)
    found = []
    for block in blocks_in(program.main):
        for v in block.vars():
            of = v.type
            if isinstance(of, TensorType) and of.dtype in (TensorProto.FLOAT, TensorProto.FLOAT16):
                known = [d for d in of.shape or () if isinstance(d, int)]
                if of.shape is not None and len(known) == len(of.shape) and np.prod(known) >= size:
                    found.append(v.definition.op if v.definition is not None else v.name)
    return found


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("scales", SCALES)
def test_the_gradient_beside_a_dequantised_matrix(scales: str, use: str) -> None:
    model, w = dequantised(scales, use)
    graph = gradient(model, "x", "y", adjoint="input")
    # the forward part keeps other forms than MatMul
    loops = [n.op_type for n in graph.graph.node].count("Loop")
    assert loops == (2 if use == "matmul" else 1)
    rng = np.random.default_rng(0)
    x, g = normal(3, INPUTS), rng.standard_normal((3, OUTPUTS)).astype(np.float32)
    found = run(graph, {"x": x, "y_grad": g})
    alpha = 0.5 if use == "gemm" else 1.0
    expected = alpha * g @ w.T
    np.testing.assert_allclose(
        found["x_grad"], expected, rtol=0, atol=2e-6 * np.abs(expected).max()
    )
    if use == "matmul":  # exact, where onnxruntime's fusion rounds x
        y = x @ w
        np.testing.assert_allclose(found["y"], y, rtol=0, atol=2e-6 * np.abs(y).max())


@pytest.mark.parametrize("scales", ["columns", "blocks of rows", "four bits, blocks of rows"])
def test_no_matrix_is_formed_where_the_forward_part_forms_none(scales: str, tmp_path: Path) -> None:
    """onnxruntime fuses these products with their DequantizeLinear, unless the backward part reads it too."""
    model, _ = dequantised(scales, "matmul")
    size = INPUTS * OUTPUTS
    assert whole_floats(model, size, tmp_path) == []
    graph = gradient(model, "x", "y", adjoint="input")
    assert whole_floats(graph, size, tmp_path) == []


def test_what_finds_whole_matrices_finds_them(tmp_path: Path) -> None:
    model, w = dequantised("columns", "matmul")
    model.graph.output.append(
        helper.make_tensor_value_info("w", TensorProto.FLOAT, (INPUTS, OUTPUTS))
    )
    assert "DequantizeLinear" in whole_floats(model, INPUTS * OUTPUTS, tmp_path)
    del model.graph.node[0], model.graph.initializer[:], model.graph.output[1:]
    model.graph.initializer.append(numpy_helper.from_array(w.astype(np.float32), "w"))
    assert "w" in whole_floats(model, INPUTS * OUTPUTS, tmp_path)


def test_small_matrices_need_no_loop() -> None:
    model, _ = dequantised("columns", "matmul", sizes=(LEAST // 32 - 1, 32))
    graph = gradient(model, "x", "y", adjoint="input")
    assert "Loop" not in [n.op_type for n in graph.graph.node]


def test_more_than_two_blocks_of_which_the_last_is_shorter() -> None:
    model, w = dequantised("columns", "matmul", sizes=(3000, 200))
    g = normal(2, 200)
    graph = gradient(model, "x", "y", adjoint="input")
    got = run(graph, {"x": normal(2, 3000), "y_grad": g})["x_grad"]
    expected = g @ w.T
    np.testing.assert_allclose(got, expected, rtol=0, atol=2e-6 * np.abs(expected).max())


def test_a_second_derivative_goes_through_the_blocks() -> None:
    model, _ = dequantised("columns", "matmul")
    first = gradient(model, "x", "y", adjoint="input")
    assert check_gradient(first, "y_grad", "x_grad").ok


# ---- MatMulNBits ---------------------------------------------------------------------------------


def packed(k: int = INPUTS, n: int = OUTPUTS) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]> g (float[M,{k}] x) => (float[M,{n}] y) '
        f"{{ y = com.microsoft.MatMulNBits <K = {k}, N = {n}, bits = 4, block_size = 32> (x, q, s) }}"
    )
    q = rng.integers(0, 256, (n, -(-k // 32), 16), dtype=np.uint8)
    s = rng.uniform(0.01, 0.02, (n, -(-k // 32))).astype(np.float32)
    model.graph.initializer.extend(
        [numpy_helper.from_array(v, name) for v, name in ((q, "q"), (s, "s"))]
    )
    return model


def test_packed_integers_stay_packed(tmp_path: Path) -> None:
    graph = gradient(packed(), "x", "y", adjoint="input")
    assert whole_floats(graph, INPUTS * OUTPUTS, tmp_path) == []
    assert "MatMulNBits" in [n.op_type for n in gradient(packed(), "x", "y").graph.node]


def test_the_scales_of_packed_integers_form_the_matrix() -> None:
    rng = np.random.default_rng(0)
    feeds: dict[str, Any] = {
        "x": normal(3, 48),
        "q": rng.integers(0, 256, (5, 3, 8), dtype=np.uint8),
        "s": rng.uniform(0.01, 0.02, (5, 3)).astype(np.float32),
        "z": rng.uniform(0, 15, (5, 3)).astype(np.float32),
    }
    text = "y = com.microsoft.MatMulNBits <K = 44, N = 5, bits = 4, block_size = 16> (x, q, s, z)"
    check_op(text, {**feeds, "x": normal(3, 44)}, domains={"com.microsoft": 1})
