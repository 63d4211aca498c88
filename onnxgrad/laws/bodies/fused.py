"""onnxruntime's fused operators: products and convolutions with their activations,
normalizations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from onnx import TensorProto

from onnxgrad.errors import InputError
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.arithmetic import in_dtype_of, plus, rank_of, scaled
from onnxgrad.ir.emission.emit import constant
from onnxgrad.ir.emission.emitter import emitter
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var
from onnxgrad.laws.bodies.calls import Bodies

# the opset that introduced Gelu
_GELU = 20


# ---- Gelu ----------------------------------------------------------------------------------------


def _has_gelu() -> bool:
    return emitter().block.opsets.get("", 0) >= _GELU


def gelu(x: Var) -> Var:
    """x Phi(x)."""
    return op.Gelu(x) if _has_gelu() else x * (op.Erf(x * math.sqrt(0.5)) * 0.5 + 0.5)


def fast_gelu(x: Var, bias: Var | None) -> Var:
    """Returns the approximation by tanh of Gelu of x + bias."""
    x = plus(x, bias)
    if _has_gelu():
        return op.Gelu(x, approximate="tanh")
    return x * (op.Tanh((x + x * x * x * 0.044715) * math.sqrt(2.0 / math.pi)) * 0.5 + 0.5)


# ---- products and convolutions with fused operators ----------------------------------------------


def _fused_matmul(
    a: Var,
    b: Var,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
    binding: Binding,
) -> Var:
    y = _arranged(a, transA, transBatchA, binding) @ _arranged(b, transB, transBatchB, binding)
    return scaled(y, alpha)


def _arranged(v: Var, last_two: int, batch: int, binding: Binding) -> Var:
    """Moves the first axis after the batch axes, (M, *batch, K) to (*batch, M, K), if `batch`.

    Then swaps the last two axes, if `last_two`.
    """
    if not last_two and not batch:
        return v
    order = list(range(rank_of(v, binding)))
    if batch and len(order) > 2:
        order = [*order[1:-1], 0, order[-1]]
    if last_two and len(order) > 1:
        order = [*order[:-2], order[-1], order[-2]]
    return v if order == sorted(order) else op.Transpose(v, perm=order)


def _fused_gemm(
    a: Var,
    b: Var,
    c: Var | None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    binding: Binding,
) -> Var:
    y = op.Gemm(a, b, c, alpha=alpha, beta=beta, transA=transA, transB=transB)
    numbers = [binding.attr(f"activation_{name}", None) for name in ("alpha", "beta")]
    return _activated(y, numbers, binding)


_WINDOW = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")


def _fused_conv(x: Var, w: Var, bias: Var | None, z: Var | None, *, binding: Binding) -> Var:
    y = windowed(x, w, bias, binding)
    return _activated(plus(y, z), binding.attr("activation_params", ()), binding)


def windowed(x: Var, w: Var, bias: Var | None, binding: Binding) -> Var:
    """Returns the convolution with the attributes of the call."""
    y: Var = op.Conv(x, w, bias, **{name: binding.attr(name, None) for name in _WINDOW})
    return y


# the standard operator's attributes that hold the parameters of an activation
_ACTIVATIONS: dict[str, tuple[str, ...]] = {
    "Elu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "HardSwish": (),
    "LeakyRelu": ("alpha",),
    "Relu": (),
    "Sigmoid": (),
    "Softplus": (),
    "Softsign": (),
    "Tanh": (),
    "ThresholdedRelu": ("alpha",),
}


def _activated(y: Var, numbers: Sequence[float | None], binding: Binding) -> Var:
    name = binding.attr("activation", "")
    if name in ("", "Identity"):
        return y
    if name == "Clip" and len(numbers) == 2:
        return op.Clip(y, *numbers)
    if name not in _ACTIVATIONS:
        raise InputError(f"no gradient of '{binding}': its activation '{name}' is not known")
    result: Var = getattr(op, name)(y, **dict(zip(_ACTIVATIONS[name], numbers)))
    return result


# onnxruntime's default of epsilon in fused operators
_TINY = 1e-12


def _layer_norm(
    x: Var, scale: Var, bias: Var | None, *, axis: int = -1, epsilon: float = 1e-5, binding: Binding
) -> tuple[Var | None, ...]:
    """Returns the result, mean and 1 / standard deviation, the last two if the call has them."""
    present = [True, *(binding.result(i) is not None for i in (1, 2))]
    return (*op.LayerNormalization(x, scale, bias, axis=axis, epsilon=epsilon, outputs=present),)


def root_mean_square(x: Var, scale: Var, epsilon: float, axes: Sequence[int]) -> tuple[Var, Var]:
    """Returns x / sqrt(mean(x^2) + epsilon) times the scale, and the factor of x.

    Data of half precision are computed in float32.
    """
    up = (
        op.Cast(x, to=TensorProto.FLOAT)
        if x.dtype in (TensorProto.FLOAT16, TensorProto.BFLOAT16)
        else x
    )
    inverse = op.Reciprocal(op.Sqrt(op.ReduceMean(up * up, list(axes), keepdims=1) + epsilon))
    return in_dtype_of(up * inverse, x) * scale, inverse


def _skip_layer_norm(
    x: Var,
    skip: Var,
    gamma: Var,
    beta: Var | None,
    bias: Var | None,
    *,
    epsilon: float = _TINY,
    binding: Binding,
) -> tuple[Var | None, ...]:
    total = plus(x, skip, bias)
    return (*_layer_norm(total, gamma, beta, epsilon=epsilon, binding=binding), total)


def _skip_simplified(
    x: Var, skip: Var, gamma: Var, bias: Var | None, *, epsilon: float = _TINY
) -> tuple[Var | None, ...]:
    total = plus(x, skip, bias)
    y, inverse = root_mean_square(total, gamma, epsilon, [-1])
    return y, None, inverse, total


def _simplified(
    x: Var, scale: Var, *, axis: int = -1, epsilon: float = 1e-5, binding: Binding
) -> tuple[Var, Var]:
    first = axis if axis < 0 else axis - rank_of(x, binding)
    return root_mean_square(x, scale, epsilon, range(first, 0))


def _embed(
    input_ids: Var,
    segment_ids: Var | None,
    word: Var,
    position: Var,
    segment: Var | None,
    gamma: Var,
    beta: Var,
    *,
    binding: Binding,
) -> tuple[Var | None, ...]:
    """Looks up ids (batch, length) in tables (count, H), adds the results and normalises the sum.

    Positions are 0, 1, ... unless given.
    """
    mask, position_ids = binding.operand(7), binding.operand(8)
    length = op.Shape(input_ids, start=1, end=2)
    place = (
        op.Slice(position, [0], length, [0])
        if position_ids is None
        else op.Gather(position, position_ids)
    )
    total = op.Gather(word, input_ids) + place
    if segment is not None and segment_ids is not None:
        total = total + op.Gather(segment, segment_ids)
    epsilon = binding.attr("epsilon", _TINY)
    [y] = op.LayerNormalization(total, gamma, beta, axis=-1, epsilon=epsilon, outputs=1)
    if binding.result(1) is None:
        return (y, None, total)
    # the number of ones in each row of the mask; zeros without a mask
    if mask is None:
        batch = op.Shape(input_ids, start=0, end=1)
        return (y, op.Expand(constant([0], TensorProto.INT32), batch), total)
    kept = op.Cast(
        op.Equal(mask, constant(1, mask.dtype or TensorProto.INT32)), to=TensorProto.INT32
    )
    return (y, op.ReduceSum(kept, [1], keepdims=0), total)


BODIES: Bodies = {
    "Gelu": (gelu, ""),
    "FastGelu": (fast_gelu, ""),
    "QuickGelu": (lambda x, *, alpha=1.702: x * op.Sigmoid(scaled(x, alpha)), ""),
    "BiasGelu": (lambda a, b: gelu(a + b), ""),
    "FusedMatMul": (_fused_matmul, ""),
    "TransposeMatMul": (_fused_matmul, ""),
    "FusedGemm": (_fused_gemm, "at a kink as the activation"),
    "FusedConv": (_fused_conv, "at a kink as the activation"),
    "SkipLayerNormalization": (_skip_layer_norm, ""),
    "SkipSimplifiedLayerNormalization": (_skip_simplified, ""),
    "LayerNormalization": (_layer_norm, ""),
    "SimplifiedLayerNormalization": (_simplified, ""),
    "EmbedLayerNormalization": (_embed, ""),
}
