"""onnxgrad/grad/weights/evidence.py: what exporters' names say."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from onnxgrad.grad.weights.evidence import (
    are_cos_and_sin,
    evidence,
    is_formula_number,
    is_hiding,
    is_monotone,
    is_scripted,
    is_sinusoidal,
    pattern,
)  # fmt: skip
from tests.helpers import MODELS_DIR

NAMES = {
    "parameter": [
        "model.layers.0.self_attn.q_proj.weight", "bias", "block.ls1.gamma", "logit_scale", "cls_token", "pos_embed",
        "onnx::MatMul_123", "onnx::Gemm_7", "onnx::LSTM_901", "dense_5/kernel:0", "dense_5/bias:0", "fc_0.w",
        "model_1/conv2d/BiasAdd/ReadVariableOp", "w", "head.temperature",
    ],
    "attribute": ["model.tau", "mobile_one_block_0.w_0", "model.blocks.1.rezero", "batch_norm2d_148.b_0"],
    "buffer": [
        "model.rotary_emb.inv_freq", "stft.forward_basis_buffer", "attn.causal_mask", "conv.weight_u", "conv.0._v",
        "bert.embeddings.position_ids", "rope.cos_cached",
    ],
    "statistic": ["bn1.running_mean", "bn1.running_var", "conv4_linear_bn_variance", "model._aa_means", "image_std"],
    "constant": [
        "val_12", "val", "min_val", "/model/layer.0/Constant_5_output_0", "Constant@3", "p2o.helper.constant.169",
        "onnx::Mul_768", "onnx::Add_3", "const_fold_opt__738", "jax2tf_get_logits_/Const_8:0", "_to_copy", "where",
        "unsqueeze_14", "zeros_3", "scalar_tensor_default", "embedding_1", "mul_7", "lifted_tensor_0", "sqrt",
        "_tensor_constant0", "model_1/cq/Sqrt",
    ],
    "": ["k", "tau", "c", "x1", "strange", "p_re_lu_10_initializer_16", "norm/truediv_recip:0", "a b", "", "é"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "said"), [(n, said) for said, names in NAMES.items() for n in names]
)
def test_evidence(name: str, said: str) -> None:
    assert evidence(name) == said


def test_torchscript_keeps_the_names_of_what_a_module_owns() -> None:
    """Its numbers are Constants, so that an initializer called tau is a module's own."""
    assert evidence("tau", scripted=True) == "attribute"
    assert (
        evidence("onnx::Mul_3", scripted=True) == "constant"
        and evidence("a b", scripted=True) == ""
    )


@pytest.mark.parametrize(
    ("name", "scripted"), [("bert_script", True), ("bert", False), ("vit", False)]
)
def test_who_wrote_it(name: str, scripted: bool) -> None:
    assert is_scripted(onnx.load(MODELS_DIR / f"{name}.onnx")) is scripted


RNG = np.random.default_rng(3)
ANGLES = np.arange(40)[:, None] * 10000.0 ** (-np.arange(8) / 8)


def f32(values: Any) -> Any:
    return np.asarray(values, np.float32)


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ([0.25] * 5, "all 0.25"),
        ([0, 1, 1, 0], "whole numbers"),
        ([0.485, 0.456, 0.406], "numbers of few digits"),
        (np.linspace(0.1, 1.7, 20), "evenly spaced"),
        (np.sort(RNG.standard_normal(9)), "in order"),
        (np.sort(RNG.standard_normal(9))[::-1], "in order"),
        (np.hanning(64)[1:-1], "a smooth curve"),
        ([[0, -np.inf], [0, 0]], "large negative numbers"),
        (np.sin(ANGLES), "sines of the position"),
        (np.cos(ANGLES)[None, None], "sines of the position"),
        (np.concatenate([np.sin(ANGLES), np.cos(ANGLES)], 1), "sines of the position"),
        (-0.31 * np.arange(12)[None] * np.array([[1.7], [0.3]]) + 0.0171234, "evenly spaced"),
        (RNG.standard_normal(9), ""),
        (np.sort(RNG.standard_normal(5)), ""),
        (RNG.standard_normal((40, 16)), ""),
        (RNG.standard_normal((3, 16)), ""),
        (0.001 * RNG.standard_normal((40, 16)) + np.sin(np.tile(ANGLES, 2)), ""),
    ],
)
def test_pattern(values: Any, found: str) -> None:
    assert pattern(f32(values)) == found


def test_a_nearly_dead_table_has_no_pattern() -> None:
    table = np.zeros((16, 8), np.float32)
    table[:, 0] = f32(RNG.standard_normal(16))
    assert not is_sinusoidal(table) and pattern(table) == ""


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_sines_in_each_dtype(dtype: Any) -> None:
    assert is_sinusoidal(np.cos(ANGLES).astype(dtype))
    assert not is_sinusoidal(RNG.standard_normal((40, 8)).astype(dtype))


def test_few_digits_prove_nothing_in_float16() -> None:
    """Every float16 has few."""
    assert pattern(RNG.standard_normal(9).astype(np.float16)) == ""


def test_straight_lines_and_one_number_are_no_sines() -> None:
    assert not is_sinusoidal(np.ones((8, 8), np.float32))
    assert not is_sinusoidal(np.arange(64, dtype=np.float32).reshape(8, 8))


def test_cos_and_sin() -> None:
    a, b = f32(np.cos(ANGLES)), f32(np.sin(ANGLES))
    assert are_cos_and_sin(a, b) and are_cos_and_sin(0.8 * a, 0.8 * b)
    assert not are_cos_and_sin(a, b[:, :4]) and not are_cos_and_sin(a, a)
    assert not are_cos_and_sin(np.ones(4, np.float32), np.ones(4, np.float32))
    assert not are_cos_and_sin(np.ones((0, 4), np.float32), np.ones((0, 4), np.float32))


@pytest.mark.parametrize(
    "value",
    [
        0.5,
        2**-0.5,
        0.17677669,
        1e-12,
        1.702,
        0.044715,
        np.pi,
        0.39269908,
        1 / np.log(10),
        0,
        np.inf,
    ],
)
def test_numbers_of_formulas(value: float) -> None:
    assert is_formula_number(float(np.float32(value)))
    assert is_formula_number(-float(np.float32(value)))


def test_few_random_numbers_are_taken_for_those_of_formulas() -> None:
    drawn = [float(np.float32(v)) for v in RNG.standard_normal(2000)]
    assert sum(map(is_formula_number, drawn)) <= 40


def test_hiding_and_order() -> None:
    assert is_hiding(f32([0, -65504])) and not is_hiding(f32([0, -9])) and not is_hiding(f32([]))
    assert (
        is_monotone(f32([1, 0.1, 0.01]))
        and not is_monotone(f32([1, 3, 2]))
        and not is_monotone(f32([0, 1, 2]))
    )
