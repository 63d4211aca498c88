"""Operands of unknown rank: what their readers require, and rules that need no rank."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import onnxgrad
from onnxgrad.ir.type_inference.implied_ranks import imply_ranks
from onnxgrad.verify import run
from onnxgrad.verify.reference.evaluate import reference
from tests.grad.numeric import check_model, normal, op_model, positive

_ZEROS = np.zeros(3, np.float32)
# node: feeds; the shapes of float operands are not declared
CASES: dict[str, dict[str, np.ndarray]] = {
    "y = MatMul (a, b)": {"a": normal(2, 1, 3, 4), "b": normal(5, 4, 2)},
    "y = MatMul  (a, b)": {"a": normal(4), "b": normal(4)},
    "y = MatMul   (a, b)": {"a": normal(4), "b": normal(2, 4, 3)},
    "y = MatMul    (a, b)": {"a": normal(2, 3, 4), "b": normal(4)},
    "y = MatMul     (a, b)": {"a": normal(3, 4), "b": normal(2, 4, 2)},
    "y = LayerNormalization <axis = 1> (x, s, c)": {"x": normal(2, 3, 4), "s": normal(3, 4), "c": normal(4)},
    "y = LayerNormalization (x, s, c)": {"x": normal(2, 3, 4), "s": normal(4), "c": normal(4)},
    "y = BatchNormalization (x, s, c, m, v)": {
        "x": normal(2, 3, 4, 2), "s": normal(3), "c": normal(3), "m": normal(3), "v": positive(3),
    },
    "y, m2, v2 = BatchNormalization <training_mode = 1> (x, s, c, m, v)": {
        "x": normal(4, 3), "s": normal(3), "c": normal(3), "m": _ZEROS, "v": positive(3),
    },
    "y = InstanceNormalization (x, s, c)": {"x": normal(2, 3, 5, 2), "s": normal(3), "c": normal(3)},
    "y = LRN <size = 3> (x)": {"x": normal(2, 4, 3, 2)},
    "y = Det (x)": {"x": normal(2, 3, 3)},
    "y = Gather <axis = 1> (x, i)": {"x": normal(2, 4, 3), "i": np.array([[1, 1], [3, -1]])},
    "y = Gather <axis = -1> (x, i)": {"x": normal(2, 4, 3), "i": np.array(2)},
    "y = Compress <axis = 1> (x, k)": {"x": normal(2, 3, 2), "k": np.array([True, False, True])},
    "y = DequantizeLinear <axis = 1> (q, s, z)": {
        "q": np.arange(12, dtype=np.uint8).reshape(2, 3, 2), "s": positive(3), "z": np.array([1, 2, 3], np.uint8),
    },
    "y = DequantizeLinear (q, s)": {"q": np.arange(6, dtype=np.uint8).reshape(2, 3), "s": np.array(0.5, np.float32)},
    "y = RoiAlign <output_height = 2, output_width = 2, sampling_ratio = 2> (x, r, i)": {
        "x": normal(1, 2, 5, 5), "r": np.array([[0.3, 0.4, 3.2, 3.3]], np.float32), "i": np.array([0]),
    },
    "y = DeformConv <kernel_shape = [2, 2]> (x, w, o)": {
        "x": normal(1, 2, 4, 4), "w": normal(2, 2, 2, 2), "o": normal(1, 8, 3, 3) * np.float32(0.3),
    },
    "y = DepthToSpace <blocksize = 2> (x)": {"x": normal(1, 4, 2, 3)},
    "y = DequantizeLinear <axis = 1, block_size = 2> (q, s, z)": {
        "q": np.arange(8, dtype=np.uint8).reshape(2, 4, 1), "s": positive(2, 2, 1), "z": np.zeros((2, 2, 1), np.uint8),
    },
    "y = STFT (x, i, , n)": {"x": normal(2, 9, 1), "i": np.array(2), "n": np.array(4)},
    "y = STFT (x, i, w)": {"x": normal(2, 9, 1), "i": np.array(2), "w": normal(4)},
    "y = ConvTranspose <kernel_shape = [2, 2]> (x, w)": {"x": normal(1, 2, 3, 3), "w": normal(2, 2, 2, 2)},
}  # fmt: skip
_ATTENTION = {n: normal(1, 2, 3, 4, seed=i) for i, n in enumerate("qkv")}
NEWER = {
    "y = Attention (q, k, v)": _ATTENTION,
    "y = Attention <q_num_heads = 2, kv_num_heads = 2> (q, k, v)": {
        n: normal(1, 3, 8, seed=i) for i, n in enumerate("qkv")
    },
}


def without_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model, which declares no shapes of float values."""
    for v in [*model.graph.input, *model.graph.output]:
        kind = v.type.tensor_type
        if kind.elem_type == TensorProto.FLOAT or v in model.graph.output:
            kind.ClearField("shape")
    return model


@pytest.mark.covering
@pytest.mark.parametrize("node", [*CASES, *NEWER])
def test_the_gradient_is_that_of_known_ranks(node: str) -> None:
    opset, feeds = (23, NEWER[node]) if node in NEWER else (21, CASES[node])
    model = op_model(node, feeds, outputs=["y"], opset=opset)
    known = onnxgrad.gradient(model, target="y", adjoint="input")
    unknown = onnxgrad.gradient(without_shapes(model), target="y", adjoint="input")
    feeds = {**feeds, "y_grad": normal(*reference(model, feeds)["y"].shape, seed=9)}
    wanted, found = run(known, feeds), run(unknown, feeds)
    assert found.keys() == wanted.keys() and len(wanted) > 1
    for name, array in wanted.items():
        scale = max(float(np.abs(array).max()), 1.0)
        assert found[name].shape == array.shape, name
        np.testing.assert_allclose(found[name], array, atol=1e-5 * scale, err_msg=name)


@pytest.mark.parametrize("node", [*CASES][:4])
def test_products_of_any_ranks_numerically(node: str) -> None:
    model = without_shapes(op_model(node, CASES[node], outputs=["y"]))
    check_model(model, CASES[node], wrt=["a", "b"], seeds=(0,))


def test_a_branch_implies_nothing_outside_of_it() -> None:
    text = """<ir_version: 8, opset_import: ["": 18]> g (bool c, float x) => (float y) {
        s = Identity (x)
        y = If (c) <then_branch = t () => (float a) { a = DepthToSpace <blocksize = 2> (s) },
                    else_branch = e () => (float b) { b = Identity (s) }>
    }"""
    model = onnx.parser.parse_model(text)
    model.graph.input[1].type.tensor_type.ClearField("shape")
    assert imply_ranks(onnxgrad.load(model).main) == []


def test_windows_and_grids() -> None:
    text = """<ir_version: 8, opset_import: ["": 18]> g (float x, float grid, float z) => (float y) {
        a = AveragePool <kernel_shape = [2, 2, 2]> (x)
        b = GridSample (z, grid)
        y = Concat <axis = 0> (a, b)
    }"""
    model = without_shapes(onnx.parser.parse_model(text))
    ranks = {v.name: v.rank for v in imply_ranks(onnxgrad.load(model).main)}
    assert ranks == {"x": 5, "z": 4, "grid": 4}


def test_operands_have_the_declared_rank_of_the_result() -> None:
    text = """<ir_version: 9, opset_import: ["": 21]> g (float x, float w, float grid, float s) => (float[N,C,D,H,W] y) {
        c = ConvTranspose (x, w)
        r = Resize (c, , s)
        y = GridSample (r, grid)
    }"""
    model = onnx.parser.parse_model(text)
    for v in model.graph.input:
        v.type.tensor_type.ClearField("shape")
    ranks = {v.name: v.rank for v in imply_ranks(onnxgrad.load(model).main)}
    assert {n: ranks[n] for n in ("r", "grid", "c", "x", "w")} == dict.fromkeys(
        ("r", "grid", "c", "x", "w"), 5
    )


def test_an_array_leaves_arithmetic_to_a_value() -> None:
    block = onnxgrad.load(op_model("y = Relu (x)", {"x": normal(2, 3)})).main
    with onnxgrad.emitting(block):
        total = np.ones((2, 3), np.float32) + block.inputs[0]
    assert total.type == block.inputs[0].type
