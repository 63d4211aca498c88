"""The kernels of the float64 reference for operators that `onnx_reference_kernels.py` cannot
borrow.

Each kernel states in one word why it exists. Kernels compute in float64 whatever the declared type,
read attributes and operands of every opset, and never run in onnxruntime.
"""

from onnxgrad.ir import domains
from onnxgrad.verify.reference.kernels import (  # noqa: F401  # they register their kernels
    control_flow,
    conv_and_pool,
    elementwise,
    indexing,
    language_models,
    linear_and_quantization,
    ml_and_training,
    normalization,
    onnxruntime_attention,
    onnxruntime_operators,
    quantized_operators,
    recurrent,
    signals,
    vision,
)
from onnxgrad.verify.reference.kernels.registry import KERNELS, UNTIL, WHY, Call, Unsupported

# operators that add many terms, in an order that the implementation chooses
CONTRACTIONS = frozenset((
    *(op for op in domains.REDUCTIONS if op not in ("ReduceMax", "ReduceMin", "ReduceProd")),
    "MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum", "Softmax", "LogSoftmax",
    "LayerNormalization", "RMSNormalization", "GroupNormalization", "InstanceNormalization",
    "BatchNormalization", "AveragePool", "GlobalAveragePool", "LSTM", "GRU", "RNN", "Attention",
    "CumSum", "Sum", "FusedMatMul", "FusedConv", "DeformConv", "MatMulNBits", "MatMulBnb4",
    "GroupQueryAttention", "MultiHeadAttention", "DecoderMaskedMultiHeadAttention", "MoE",
    "LinearAttention", "CausalConvWithState", "SoftmaxCrossEntropyLoss",
))  # fmt: skip
# operators that round: those above, and elementwise arithmetic
ROUNDED = CONTRACTIONS | {
    *domains.ARITHMETIC, *domains.SMOOTH, *domains.KINKED, "Pow", "PRelu", "Mean", "Resize",
    "LpNormalization", "LpPool", "LRN", "ReduceProd", "CumProd", "QuickGelu", "FastGelu",
    "BiasGelu",
} - {"Abs", "Clip", "Neg", "Relu", "Shrink"}  # fmt: skip
# the error of onnxruntime's float32 kernels in half units in the last place, measured on 40,000
# numbers between -10 and 10; 1 for all other operators
DEPLOYED: dict[str, float] = {
    **dict.fromkeys(ROUNDED, 1.0), "Tanh": 4, "Sigmoid": 4, "Softmax": 8, "LogSoftmax": 3, "Log": 3,
    "SoftmaxCrossEntropyLoss": 3,
    "Softplus": 5, "Mish": 8, "Atan": 5, "Asin": 7, "Acos": 4, "Softsign": 2, "Sin": 2, "Cos": 2,
    "Sinh": 2, "Cosh": 2, "Asinh": 2, "Atanh": 2, "Gelu": 4, "FastGelu": 8,
}  # fmt: skip
# onnxruntime computes these to an absolute precision, through values between -1 and 1
BOUNDED = frozenset({
    "Celu", "Cos", "Elu", "Erf", "FastGelu", "Gelu", "HardSigmoid", "LogSoftmax", "Mish",
    "QuickGelu", "Selu", "Sigmoid", "Sin", "Softmax", "SoftmaxCrossEntropyLoss", "Softplus",
    "Swish", "Tanh",
})  # fmt: skip
# operators evaluated by the function body in their schema, because the class in onnx.reference
# rounds to float32
BY_BODY = frozenset({"CausalConvWithState", "LinearAttention"})
__all__ = [
    "BOUNDED", "BY_BODY", "CONTRACTIONS", "DEPLOYED", "KERNELS", "ROUNDED", "UNTIL", "WHY", "Call",
    "Unsupported",
]  # fmt: skip
