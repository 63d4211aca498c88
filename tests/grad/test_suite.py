"""Every single-node case of ONNX's backend suite that is float in, float out and moves with its input.

The gradient graph in stock onnxruntime against central differences of the forward in float64 (1e-4), and the gradient
graph itself in float64 (1e-6); three seeds. Cases that onnxruntime cannot run go through the float64 check alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import onnx
import pytest

from tests.backend_suite import case, clamp_ir
from tests.grad.numeric import check_model
from tests.suite_table import any_opset, table

RUNS = table()["single_node_moving"]
REFERENCE_ONLY = table()["single_node_moving_reference_only"]

# name of the case -> the convention it rests on: its inputs lie on a kink or a jump, where no difference says what is right
KINKS: dict[str, str] = {
    **dict.fromkeys(
        ["test_elu_example", "test_selu_example", "test_leakyrelu_example", "test_thresholdedrelu_example"],
        "an input is exactly 0 (or the threshold): PyTorch's one-sided choice",
    ),
    "test_softsign_example": "an input is exactly 0: sign(0) = 0",
    "test_acosh_example": "an input is exactly 1, where the derivative is infinite",
    "test_operator_sqrt": "an input is exactly 0, where the derivative is infinite",
    "test_reduce_min_default_axes_keepdims_example": "ties: shared evenly, as torch.amin",
    **dict.fromkeys(
        ["test_l1normalization_axis_last", "test_l2normalization_axis_0"], "a norm is exactly 0, or an element is: 0"
    ),
    **dict.fromkeys(
        [f"test_mod_float_edge_cases_fmod_0_float{bits}" for bits in (16, 32, 64)], "operands are NaN, Inf or multiples"
    ),
    **dict.fromkeys(
        ["test_maxpool_3d_dilations", "test_maxpool_3d_dilations_use_ref_impl"], "equal maxima: the first, as forward"
    ),
    **dict.fromkeys(
        [f"test_range_{t}_type_positive_delta" for t in ("float", "float16", "bfloat16")],
        "the length of the result jumps with the limit",
    ),
    **dict.fromkeys(
        [
            "test_unique_sorted_with_axis", "test_unique_sorted_with_axis_3d", "test_unique_sorted_without_axis",
            "test_unique_sorted_with_negative_axis", "test_unique_not_sorted_without_axis",
            "test_unique_bfloat16_sorted_without_axis",
        ],
        "equal elements: the length of the result jumps",
    ),
    **dict.fromkeys(
        [
            "test_gridsample_aligncorners_true", "test_gridsample_bilinear",
            "test_gridsample_bilinear_align_corners_1_additional_1", "test_gridsample_nearest",
            "test_gridsample_nearest_align_corners_0_additional_1", "test_gridsample_nearest_align_corners_1_additional_1",
            "test_gridsample_volumetric_bilinear_align_corners_0", "test_gridsample_volumetric_bilinear_align_corners_1",
            "test_gridsample_volumetric_nearest_align_corners_0", "test_gridsample_volumetric_nearest_align_corners_1",
            "test_basic_deform_conv_with_padding", "test_basic_deform_conv_without_padding",
            "test_deform_conv_with_mask_bias", "test_deform_conv_with_multiple_offset_groups",
        ],
        "positions lie exactly on pixels, or half-way between two: the cell to the right",
    ),
}  # fmt: skip
# the operand that is differentiated, where others are floats that select or measure: they jump
WRT = {"OneHot": 2, "Resize": 0, "Upsample": 0, "CastLike": 0, "RoiAlign": 0}
# cases whose inputs hold NaN, Inf, 1e199 or a negative base, which no difference survives: those elements are replaced
WITH_INFINITIES = (
    "test_cast_",
    "test_castlike_",
    "test_mod_float_edge_cases",
    "test_operator_add_",
    "test_operator_pow",
    "test_pow",
)
# masks and scores of -inf: no difference says how a result moves with -inf, so only what is finite is asked for
MASKED = (
    "test_attention_4d_softcap_neginf_mask",
    "test_attention_4d_softcap_neginf_mask_poison",
    "test_attention_4d_with_past_and_present_qk_matmul_bias_3d_mask_causal",
    "test_attention_4d_with_past_and_present_qk_matmul_bias_4d_mask_causal",
)
# float32 in the loss itself: its mean over 6480 elements enters each weight's gradient, where it nearly cancels
CANCELS = {"test_sce_NCd1d2d3d4d5_mean_weight": 3e-4}
# every n-th case in the default run
SAMPLE = 16


@pytest.fixture(scope="module", autouse=True)
def opsets() -> Iterator[None]:
    """Operators of opsets newer than onnxruntime guarantees are among the cases."""
    with any_opset():
        yield


def check(name: str, *, onnxruntime: bool) -> None:
    found = case(name)
    model, feeds = clamp_ir(found.model), found.inputs
    if name.startswith(WITH_INFINITIES):
        feeds = {
            k: np.where(
                np.isfinite(v) & (v > 0.01 if "pow" in name else True) & (np.abs(v) < 6e4), v, 0.75
            ).astype(v.dtype)
            for k, v in feeds.items()
        }
    operand = WRT.get(model.graph.node[0].op_type)
    wrt = None if operand is None else [model.graph.node[0].input[operand]]
    target = None
    if name in MASKED:
        wrt = [k for k, v in feeds.items() if v.dtype.kind == "f" and np.isfinite(v).all()]
        target = [
            v.name
            for v, out in zip(model.graph.output, found.outputs, strict=True)
            if np.isfinite(out).all()
        ]
    rtol = CANCELS.get(name, _resolution(model))
    check_model(model, feeds, wrt, target=target, onnxruntime=onnxruntime, rtol=rtol)


def _resolution(model: onnx.ModelProto) -> float:
    """1e-4, or what the coarsest float type on the way can tell apart."""
    types = {v.type.tensor_type.elem_type for v in (*model.graph.input, *model.graph.output)}
    return (
        3e-2
        if onnx.TensorProto.BFLOAT16 in types
        else 4e-3
        if onnx.TensorProto.FLOAT16 in types
        else 1e-4
    )


def cases(names: Sequence[str]) -> list[str]:
    """The cases that are no kinks."""
    return [n for n in names if n not in KINKS]


@pytest.mark.parametrize("name", cases(RUNS[::SAMPLE]))
def test_sample(name: str) -> None:
    check(name, onnxruntime=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", cases(RUNS))
def test_case(name: str) -> None:
    check(name, onnxruntime=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", cases(REFERENCE_ONLY))
def test_case_that_only_the_reference_runs(name: str) -> None:
    check(name, onnxruntime=False)


def test_the_exceptions_are_cases() -> None:
    assert {*KINKS, *MASKED, *CANCELS} <= {*RUNS, *REFERENCE_ONLY}
