"""Which operands of which operators are weights, and which floating-point operands never are."""

from __future__ import annotations

from collections.abc import Mapping

from onnxgrad.grad.weight_readers import Reader

_FILTER = {1: "filter of a convolution", 2: "bias of a convolution"}
_MATRIX = {0: "matrix of a product", 1: "matrix of a product"}
TABLE = "table of embeddings"
NORM = {1: "scale of a normalisation", 2: "bias of a normalisation"}
_RECURRENT = {1: "input weights", 2: "recurrent weights", 3: "bias of a recurrent layer"}

# the operands that are weights, by operator
WEIGHTS: Mapping[str, Mapping[int, str]] = {
    "Conv": _FILTER, "ConvTranspose": _FILTER, "FusedConv": _FILTER, "NhwcConv": _FILTER,
    "DeformConv": {1: "filter of a convolution", 3: "bias of a convolution"}, "MatMul": _MATRIX,
    "FusedMatMul": _MATRIX, "TransposeMatMul": _MATRIX, "Gemm": {**_MATRIX, 2: "bias of a product"},
    "FusedGemm": {**_MATRIX, 2: "bias of a product"},
    "Einsum": dict.fromkeys(range(8), "factor of an Einsum"), "BatchNormalization": NORM,
    "InstanceNormalization": NORM, "GroupNormalization": NORM, "GroupNorm": NORM,
    "LayerNormalization": NORM, "RMSNormalization": NORM, "SimplifiedLayerNormalization": NORM,
    "SkipLayerNormalization": {2: NORM[1], 3: NORM[2], 4: "bias behind a product"},
    "SkipSimplifiedLayerNormalization": {2: NORM[1], 3: "bias behind a product"},
    "EmbedLayerNormalization": {**dict.fromkeys((2, 3, 4), TABLE), 5: NORM[1], 6: NORM[2]},
    "Gather": {0: TABLE}, "GatherND": {0: TABLE}, "GatherElements": {0: TABLE},
    "LSTM": {**_RECURRENT, 7: "peepholes"}, "GRU": _RECURRENT, "RNN": _RECURRENT,
    "PRelu": {1: "slope of PRelu"},
    "BiasGelu": {1: "bias behind a product"}, "FastGelu": {1: "bias behind a product"},
}  # fmt: skip

# those that are none
OTHERS: Mapping[str, Mapping[int, str]] = {
    "BatchNormalization": {
        3: "running mean: moved by averaging",
        4: "running variance: moved by averaging",
    },
    "Resize": {1: "region of a Resize", 2: "scales of a Resize"},
    "Upsample": {1: "scales of a Resize"},
    "Dropout": {1: "ratio of a Dropout"},
    "Pad": {2: "what a Pad fills in"},
    "OneHot": {2: "values of a OneHot"},
    "QuantizeLinear": {1: "scale of a quantisation"},
    "DequantizeLinear": {1: "scale of a quantisation"},
    "StraightThrough": {1: "scale of a quantisation"},
    "SoftmaxCrossEntropyLoss": {2: "weights of a loss's classes"},
    "NegativeLogLikelihoodLoss": {2: "weights of a loss's classes"},
    "STFT": {2: "window of an STFT"},
    "GridSample": {1: "grid of a GridSample"},
    "RotaryEmbedding": dict.fromkeys((1, 2, 3), "cosines or sines of a rotary embedding"),
}
# the weights of contrib operators that share their name with one of ONNX
_CONTRIB: Mapping[str, Mapping[int, str]] = {
    "Attention": {1: "matrix of a product", 2: "bias behind a product"},
    "MultiHeadAttention": {3: "bias behind a product"},
}
FILTERS = frozenset({_FILTER[1], _MATRIX[0]})


def operand(by: Reader) -> str:
    """What the operand is called by an operator that has weights; empty where it has none, or
    others.
    """
    tables = [_CONTRIB] if by.binding.domain == "com.microsoft" else []
    return next(
        (
            t[by.binding.op][by.slot]
            for t in [*tables, WEIGHTS]
            if by.slot in t.get(by.binding.op, {})
        ),
        "",
    )
