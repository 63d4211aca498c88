"""Our kernels of the float64 reference: only what onnx.reference could not lend (`borrowed.py`).

Each says in one word why it is ours. They compute in float64 whatever the declared type, read
attributes and operands of every opset, and never run in onnxruntime.
"""

from onnxgrad.verify.reference.kernels import (
    affine_grid,
    boxes,
    contrib,
    contrib_attention,
    control,
    conv,
    elementwise,
    index,
    layout,
    linear,
    ml,
    norm,
    pool,
    quantization,
    recurrent,
    roi,
    sampling,
    training,
)
from onnxgrad.verify.reference.kernels.registry import KERNELS, UNTIL, WHY, Call, Unsupported

# operators that add many terms, in an order that an implementation may choose
CONTRACTIONS = frozenset({
    "MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum", "ReduceSum", "ReduceMean",
    "ReduceSumSquare", "ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceLogSum", "Softmax",
    "LogSoftmax", "LayerNormalization", "RMSNormalization", "GroupNormalization",
    "InstanceNormalization", "BatchNormalization", "AveragePool", "GlobalAveragePool", "LSTM",
    "GRU", "RNN", "Attention", "CumSum", "Sum", "FusedMatMul", "FusedConv", "DeformConv",
    "MatMulNBits",
})  # fmt: skip
# what rounds: those, and arithmetic element by element
ROUNDED = CONTRACTIONS | {
    "Add", "Sub", "Mul", "Div", "Pow", "Exp", "Log", "Sqrt", "Reciprocal", "Erf", "Sigmoid", "Tanh",
    "Softplus", "Gelu", "Sin", "Cos", "Tan", "Softsign", "Mish", "Swish", "HardSwish",
    "HardSigmoid", "Elu", "Selu", "Celu", "LeakyRelu", "PRelu", "Mean", "Resize", "LpNormalization",
    "LpPool", "LRN",
}  # fmt: skip
# between -1 and 1: onnxruntime computes these to an absolute precision
BOUNDED = frozenset({"Cos", "Erf", "HardSigmoid", "Sigmoid", "Sin", "Softmax", "Tanh"})
# operators whose function body in the schema is evaluated although onnx.reference has a class: the
# class rounds to float32
BY_BODY = frozenset({"CausalConvWithState", "LinearAttention"})
_REGISTERED = (
    affine_grid, boxes, contrib, contrib_attention, control, conv, elementwise, index, layout,
    linear, ml, norm, pool, quantization, recurrent, roi, sampling, training,
)  # fmt: skip

__all__ = [
    "BOUNDED", "BY_BODY", "CONTRACTIONS", "KERNELS", "ROUNDED", "UNTIL", "WHY", "Call",
    "Unsupported",
]  # fmt: skip
