"""Operators of QOperator files, against onnxruntime's kernels, and what the proof sees of a factor that is wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import onnxgrad
from onnxgrad.verify import verify
from onnxgrad.verify.compare import Difference
from onnxgrad.verify.reference.evaluate import reference
from onnxgrad.verify.running.session import run
from onnxgrad.verify.trials import Found
from tests.helpers import parse

RNG = np.random.default_rng(0)
U8, I8 = np.uint8, np.int8
X = RNG.integers(0, 256, (2, 4, 6, 6)).astype(U8)
A, B = RNG.integers(0, 256, (3, 7)).astype(U8), RNG.integers(-128, 128, (7, 5)).astype(I8)
SCALES = np.linspace(0.01, 0.02, 5).astype(np.float32)
ZEROS, BIAS = np.zeros(5, I8), RNG.integers(-500, 500, 5).astype(np.int32)
# of 7 bits: processors without VNNI saturate sums of two products of 8 bits
KERNELS = RNG.integers(-64, 64, (5, 4, 3, 3)).astype(I8)
FLOATS = RNG.standard_normal((3, 7)).astype(np.float32)


def quant(scale: float, zero: int, dtype: Any = U8) -> list[Any]:
    return [np.float32(scale), dtype(zero)]


# operator, operands (the first is fed), attributes, the largest difference: a quantum where onnxruntime reads tables
CASES: list[tuple[str, list[Any], str, float]] = [
    ("QLinearSigmoid", [X, *quant(0.05, 120), *quant(0.004, 3)], "", 1),
    ("QLinearLeakyRelu", [X, *quant(0.05, 120), *quant(0.013, 3)], "alpha = 0.2", 1),
    ("QLinearSoftmax", [X, *quant(0.05, 120), *quant(0.004, 0)], "axis = 1, opset = 11", 1),
    ("QLinearSoftmax", [X, *quant(0.05, 120), *quant(0.004, 0)], "axis = -1, opset = 13", 1),
    ("QLinearAveragePool", [X, *quant(0.05, 120), *quant(0.043, 30)], "kernel_shape = [3, 3], pads = [1, 1, 1, 1]", 1),
    ("QLinearAveragePool", [X, *quant(0.05, 120), *quant(0.043, 30)], "kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1", 1),
    ("QLinearGlobalAveragePool", [X, *quant(0.05, 120), *quant(0.04, 30)], "channels_last = 0", 0),
    ("QLinearGlobalAveragePool", [X, *quant(0.05, 120), *quant(0.04, 30)], "channels_last = 1", 0),
    ("QLinearAdd", [X, *quant(0.05, 120), X[:1, :, :1], *quant(0.01, 3), *quant(0.11, 100)], "", 1),
    ("QLinearMul", [X, *quant(0.05, 120), X[:1, :, :1], *quant(0.01, 3), *quant(0.11, 100)], "", 1),
    ("QLinearWhere", [X > 99, X, *quant(0.05, 120), X[::-1].copy(), *quant(0.02, 30), *quant(0.05, 100)], "", 1),
    ("QLinearConv", [X, *quant(0.05, 120), KERNELS, SCALES, ZEROS, *quant(3.1, 100), BIAS], "pads = [1, 1, 1, 1], strides = [2, 2]", 0),
    ("QLinearMatMul", [A, *quant(0.05, 120), B, SCALES, ZEROS, *quant(0.11, 100)], "", 0),
    ("QGemm", [A, *quant(0.05, 120), B, SCALES, ZEROS, BIAS, *quant(0.11, 100)], "", 0),
    ("QGemm", [A.T.copy(), *quant(0.05, 120), B.T.copy(), *quant(0.01, 3, I8), BIAS], "transA = 1, transB = 1, alpha = 0.5", 2e-6),
    ("DynamicQuantizeMatMul", [FLOATS, B, SCALES, ZEROS, SCALES], "", 2e-6),
    ("MatMulIntegerToFloat", [A, B, np.float32(0.05), SCALES, U8(120), ZEROS, SCALES], "", 2e-6),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]} {c[2]}")
def test_onnxruntime_computes_the_same(case: tuple[str, list[Any], str, float]) -> None:
    op, operands, attributes, most = case
    domain = "" if op in ("QLinearConv", "QLinearMatMul") else "com.microsoft"
    node = onnx.parser.parse_node(
        f"y = {op} <{attributes}> ({', '.join(f'i{k}' for k in range(len(operands)))})"
        if attributes
        else f"y = {op} ({', '.join(f'i{k}' for k in range(len(operands)))})"
    )
    node.domain = domain
    first = np.asarray(operands[0])
    code = onnx.helper.np_dtype_to_tensor_dtype(first.dtype)
    made = onnx.TensorProto.FLOAT if 0 < most < 1 else onnx.TensorProto.UINT8
    graph = onnx.helper.make_graph(
        [node], "g", [onnx.helper.make_tensor_value_info("i0", code, first.shape)],
        [onnx.helper.make_tensor_value_info("y", made, None)],
        [numpy_helper.from_array(np.asarray(v), f"i{k + 1}") for k, v in enumerate(operands[1:])],
    )  # fmt: skip
    opsets = [onnx.helper.make_opsetid("", 18), onnx.helper.make_opsetid("com.microsoft", 1)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9)
    expected = np.asarray(run(model, {"i0": first}, optimize=False)["y"]).astype(np.float64)
    found = np.asarray(reference(model, {"i0": first})["y"]).astype(np.float64)
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= most and found.any()


def file() -> onnx.ModelProto:
    """A sum and a product on integers; the steps of the result are so wide that little moves it."""
    return parse("""<ir_version: 8, opset_import: ["": 18, "com.microsoft": 1]>
      g (float[1,4] x) => (float[1,2] y) <float s = {0.02}, uint8 z = {128}, int8[4,2] w = {1,-2,3,-4,5,-6,7,8}, float t = {0.03}, int8 o = {0},
        float u = {0.5}, uint8 v = {128}> {
        a = QuantizeLinear (x, s, z)  b = com.microsoft.QLinearAdd (a, s, z, a, s, z, s, z)  c = QLinearMatMul (b, s, z, w, t, o, u, v)
        y = DequantizeLinear (c, u, v) }""")


def test_a_factor_that_moves_no_step_is_seen() -> None:
    """Weights times 1.01 in the legalized file: every integer is the same on these inputs."""
    made = onnxgrad.optimize(file(), passes="legalize", verify=False)
    right = verify(file(), made)
    assert right.verdict == "equal" and right.checks["without rounding"].ran
    (scale,) = (
        t for t in made.graph.initializer if np.all(numpy_helper.to_array(t) == np.float32(0.03))
    )
    scale.CopyFrom(numpy_helper.from_array(np.float32(0.0303), scale.name))
    x = {"x": np.float32([[0.6, -0.3, 0.5, 0.1]])}
    assert np.array_equal(np.asarray(run(file(), x)["y"]), np.asarray(run(made, x)["y"]))
    report = verify(file(), made, inputs=x)
    assert report.verdict == "different" and report.checks["without rounding"].worst is not None


def test_rounding_is_accepted_where_float64_finds_the_same_bits() -> None:
    """A difference in onnxruntime that the original has from itself, above the cap."""
    far = Difference("y", (0,), 1.0, 1.02, 0.02, 0.01, compared=4, allowed=0.1, noise=0.02)
    same = Difference("y", (0,), 1.0, 1.0, 0.0, 1e-6, compared=4)
    for exact, verdict in (
        (same, True),
        (replace(same, rel=1e-9), False),
        (replace(same, excused=1), False),
        (None, False),
    ):
        found = Found()
        found.add("onnxruntime", [far])
        found.add("float64", [] if exact is None else [exact])
        found.accept_rounding()
        assert found.differences["onnxruntime", "y"].ok is verdict
        assert any("same bits" in note for note in found.notes) is verdict


def test_elements_at_ties_are_proved_where_float64_finds_them_equal() -> None:
    """The original's Conv of 8 bits and float64 end on both sides of halves."""
    tied = Difference("y", None, None, None, 0.0, 0.0, compared=10, excused=4)
    same = Difference("y", None, None, None, 0.0, 0.0, compared=10)
    for exact, proved in ((same, True), (replace(same, excused=1), False)):
        found = Found()
        found.add("onnxruntime", [tied], {"y": np.zeros(10, np.uint8)})
        found.add("float64", [exact], {"y": np.zeros(10, np.uint8)})
        found.accept_rounding()
        words = "4 of 10 elements of y differ at ties"
        assert (words in found.remarks(), words in found.reasons()) == (proved, not proved)
