"""Operators whose kernel on onnxruntime's CPU is slower than the chain that they stand for.

Time of the chain in units of the operator's, one thread, onnxruntime 1.31.1: GroupNormalization
0.62 to 0.73, Swish 0.49 to 0.75 (Sigmoid and Mul are fused), SkipLayerNormalization 0.25 to 0.76,
SkipSimplifiedLayerNormalization 0.64 to 1.02. onnxruntime itself fuses Add and LayerNormalization
into SkipLayerNormalization, but not Sum: 0.14 to 0.20. FastGelu, Gelu, BiasGelu and QuickGelu of
com.microsoft and Mish take as long as their chains and stay.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import is_static, same_shape
from onnxgrad.ir.var import Var
from onnxgrad.rewrite.pattern import P, capture
from onnxgrad.rewrite.trace import decline, decline_if
from onnxgrad.rewrite.worklist import count, rewrite

a, b, x, scale, bias, skip, gamma, beta = capture("a b x scale bias skip gamma beta")
_MS = P.domain("com.microsoft")


@rewrite(P.GroupNormalization(x, scale, bias), shrinks=count("GroupNormalization"))
def group_normalization(x: Var, scale: Var, bias: Var, root: Binding) -> Any:
    """GroupNormalization(x, s, b) = n s + b, where n is InstanceNormalization(x) of x in the shape
    (N, groups, elements)
    """
    decline_if(
        root.has_refs or root.version < 21, "before opset 21 it has one scale for each group"
    )
    decline_if(
        x.dtype != TensorProto.FLOAT or scale.dtype != x.dtype or bias.dtype != x.dtype,
        "it computes in float32, but its operands have another dtype",
    )
    if x.rank is None or x.rank < 3:
        return decline("the input's rank is unknown, or below 3")
    count = int(root.attr("num_groups"))
    ones, zeros = np.ones(count, np.float32), np.zeros(count, np.float32)
    rows = op.Reshape(x, [0, count, -1])
    normal = op.InstanceNormalization(rows, ones, zeros, epsilon=float(root.attr("epsilon")))
    back = op.Reshape(normal, list(x.shape) if is_static(x.shape) else op.Shape(x))
    axes = list(range(1, x.rank - 1))
    return back * op.Unsqueeze(scale, axes) + op.Unsqueeze(bias, axes)


@rewrite(P.Swish(x), shrinks=count("Swish"))
def swish(x: Var, root: Binding) -> Any:
    """Swish(x) = x sigmoid(alpha x)"""
    decline_if(root.has_refs, "its alpha is the enclosing function's")
    alpha = float(root.attr("alpha"))
    return x * op.Sigmoid(x if alpha == 1 else x * alpha)


_SKIP = _MS.SkipLayerNormalization(x, skip, gamma, beta.maybe, bias.maybe)


@rewrite(_SKIP, shrinks=count("SkipLayerNormalization"))
def skip_layer_normalization(
    x: Var, skip: Var, gamma: Var, beta: Var | None, bias: Var | None, root: Binding
) -> Any:
    """SkipLayerNormalization(x, skip, gamma, beta, bias) = LayerNormalization(x + skip + bias)"""
    decline_if(root.block.opsets.get("", 0) < 17, "LayerNormalization needs opset 17")
    total = _sum(x, skip, bias, root)
    normal = op.LayerNormalization(total, gamma, beta, axis=-1, epsilon=_epsilon(root))
    return _with_sum(root, normal, total)


_SKIP_SIMPLIFIED = _MS.SkipSimplifiedLayerNormalization(x, skip, gamma, bias.maybe)


@rewrite(_SKIP_SIMPLIFIED, shrinks=count("SkipSimplifiedLayerNormalization"))
def skip_simplified_layer_normalization(
    x: Var, skip: Var, gamma: Var, bias: Var | None, root: Binding
) -> Any:
    """SkipSimplifiedLayerNormalization(x, skip, gamma, bias) = RMSNormalization(x + skip + bias)"""
    decline_if(root.block.opsets.get("", 0) < 23, "RMSNormalization needs opset 23")
    total = _sum(x, skip, bias, root)
    return _with_sum(
        root, op.RMSNormalization(total, gamma, axis=-1, epsilon=_epsilon(root)), total
    )


@rewrite(P.LayerNormalization(P.Add(a, b).only, gamma, beta.maybe), shrinks=count("Add"))
def sum_before_normalization(a: Var, b: Var, root: Binding) -> Any:
    """LayerNormalization(a + b) = LayerNormalization(Sum(a, b)), which nothing fuses"""
    if a.dtype != TensorProto.FLOAT or (a.is_constant and b.is_constant) or root.has_refs:
        return None
    decline_if(not same_shape(a.shape, b.shape), "its summands are not known to have one shape")
    return {root.inputs[0]: op.Sum(a, b)}


def _sum(x: Var, skip: Var, bias: Var | None, root: Binding) -> Var:
    """x + skip + bias. Raises Decline."""
    decline_if(
        root.has_refs or x.dtype != TensorProto.FLOAT, "it is not known to compute in float32"
    )
    decline_if(any(v is not None for v in root.outputs[1:3]), "its mean or its deviation is read")
    decline_if(
        any(v is not None and v.rank not in (None, 1) for v in root.inputs[2:]),
        "its weight or its bias is not a vector",
    )
    decline_if(
        x.rank == 0 or not all(v is None or _fits(v, x) for v in (skip, bias)),
        "the addend and the input differ in size",
    )
    return op.Sum(x, skip) if bias is None else op.Sum(x, skip, bias)


def _fits(v: Var, x: Var) -> bool:
    """Whether `v` may be added to `x` without widening it, if the sizes are known."""
    if v.shape is None or x.shape is None:
        return True
    pairs = zip(reversed(v.shape), reversed(x.shape), strict=False)
    known = [(n, m) for n, m in pairs if isinstance(n, int) and isinstance(m, int)]
    return len(v.shape) <= len(x.shape) and all(n in (1, m) for n, m in known)


def _epsilon(root: Binding) -> float:
    """Returns epsilon; both operators have the same default in onnxruntime, whose schemas onnx
    lacks.
    """
    return float(root.attr("epsilon", 1e-12))


def _with_sum(root: Binding, normal: Var, total: Var) -> dict[Var, Var]:
    whole = root.result(3)
    return {root.out: normal} if whole is None else {root.out: normal, whole: total}
