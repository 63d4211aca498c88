"""onnxgrad/grad/weight_names.py: what exporters' names say."""

import onnx
import pytest

from onnxgrad.grad.weight_names import evidence, is_scripted
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
