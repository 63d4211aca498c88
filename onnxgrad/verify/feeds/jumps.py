"""Models whose results jump or saturate: comparisons, bounds, roundings, branches, sizes that
depend on data.

Two or three sets of feeds see most of what a smooth function does; of one with jumps they see one
side of each. Where such a model is small, a proof can afford more of them.
"""

from __future__ import annotations

from onnx import ModelProto, NodeProto

from onnxgrad.ir.protobufs import every_node, weight_elements

_JUMPS = {
    "And", "ArgMax", "ArgMin", "Binarizer", "Ceil", "Clip", "Compress", "Equal", "Floor", "Greater",
    "GreaterOrEqual", "HardSigmoid", "Hardmax", "If", "IsInf", "IsNaN", "Less", "LessOrEqual",
    "Loop", "Max", "Min", "Mod", "NonMaxSuppression", "NonZero", "Not", "Or", "QuantizeLinear",
    "Round", "Sign", "ThresholdedRelu", "TopK",
    "TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor", "Unique", "Where", "Xor",
}  # fmt: skip
_NODES = 128
_WEIGHTS = 1 << 17


def jumps(model: ModelProto) -> bool:
    """Whether a model is small and holds, nested or in a function too, an operator that jumps or
    saturates.
    """
    return small(model) and any(node.op_type in _JUMPS for node in _nodes(model))


def small(model: ModelProto) -> bool:
    """Whether a proof can afford many runs of a model."""
    return len(_nodes(model)) <= _NODES and weight_elements(model.graph) <= _WEIGHTS


def _nodes(model: ModelProto) -> list[NodeProto]:
    return [
        *every_node(model.graph.node),
        *(node for f in model.functions for node in every_node(f.node)),
    ]
