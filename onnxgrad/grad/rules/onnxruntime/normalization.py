"""The layer normalisations that onnxruntime fuses, by their bodies: `contrib` says how these
operators are treated.
"""

from __future__ import annotations

from collections.abc import Sequence

from onnx import TensorProto

from onnxgrad.errors import InputError
from onnxgrad.grad.registry import body
from onnxgrad.grad.rules._common import plus
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.constant import constant
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var

_DOMAIN = "com.microsoft"
# onnxruntime's own default of epsilon where it fuses
_TINY = 1e-12


def _layer_norm(
    x: Var, scale: Var, bias: Var | None, epsilon: float, binding: Binding, axis: int = -1
) -> list[Var | None]:
    """Result, mean and 1 / standard deviation, the last two where the call has them."""
    present = [True, *(binding.result(i) is not None for i in (1, 2))]
    found = op.LayerNormalization(x, scale, bias, axis=axis, epsilon=epsilon, outputs=present)
    return list(found)


def _root_mean_square(x: Var, scale: Var, epsilon: float, axes: Sequence[int]) -> tuple[Var, Var]:
    """x / sqrt(mean(x^2) + epsilon) scaled, and the factor; in float32 where the data are of
    half precision.
    """
    up = (
        op.Cast(x, to=TensorProto.FLOAT)
        if x.dtype in (TensorProto.FLOAT16, TensorProto.BFLOAT16)
        else x
    )
    inverse = op.Reciprocal(op.Sqrt(op.ReduceMean(up * up, list(axes), keepdims=1) + epsilon))
    y = up * inverse
    return (y if up is x else op.Cast(y, to=x.dtype)) * scale, inverse


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
    return (*_layer_norm(total, gamma, beta, epsilon, binding), total)


def _skip_simplified(
    x: Var, skip: Var, gamma: Var, bias: Var | None, *, epsilon: float = _TINY
) -> tuple[Var | None, ...]:
    total = plus(x, skip, bias)
    y, inverse = _root_mean_square(total, gamma, epsilon, [-1])
    return (y, None, inverse, total)


def _simplified(
    x: Var, scale: Var, *, axis: int = -1, epsilon: float = 1e-5, binding: Binding
) -> tuple[Var, Var]:
    if axis >= 0 and x.rank is None:
        raise InputError(
            f"the gradient of '{binding}' needs the rank of '{x.name}', which shape "
            "inference cannot tell"
        )
    return _root_mean_square(
        x, scale, epsilon, range(axis if axis < 0 else axis - (x.rank or 0), 0)
    )


def _layer_normalization(
    x: Var, scale: Var, bias: Var | None, *, axis: int = -1, epsilon: float = 1e-5, binding: Binding
) -> tuple[Var | None, ...]:
    return tuple(_layer_norm(x, scale, bias, epsilon, binding, axis))


def _embed(
    input_ids: Var,
    segment_ids: Var | None,
    word: Var,
    position: Var,
    segment: Var | None,
    gamma: Var,
    beta: Var,
    mask: Var | None,
    position_ids: Var | None,
    *,
    epsilon: float = _TINY,
    binding: Binding,
) -> tuple[Var | None, ...]:
    """Tables (count, H) looked up by ids (batch, length), positions 0, 1, ... unless given,
    added and normalised.
    """
    length = op.Shape(input_ids, start=1, end=2)
    if position_ids is None:
        place = op.Slice(position, [0], length, [0])
    else:
        place = op.Gather(position, position_ids)
    total = op.Gather(word, input_ids) + place
    if segment is not None and segment_ids is not None:
        total = total + op.Gather(segment, segment_ids)
    [y] = op.LayerNormalization(total, gamma, beta, axis=-1, epsilon=epsilon, outputs=1)
    if binding.result(1) is None:
        return (y, None, total)
    # how many 1 each row of the mask has; zeros without a mask
    if mask is None:
        batch = op.Shape(input_ids, start=0, end=1)
        return (y, op.Expand(constant([0], TensorProto.INT32), batch), total)
    kept = op.Cast(
        op.Equal(mask, constant(1, mask.dtype or TensorProto.INT32)), to=TensorProto.INT32
    )
    return (y, op.ReduceSum(kept, [1], keepdims=0), total)


body(f"{_DOMAIN}::SkipLayerNormalization", _skip_layer_norm)
body(f"{_DOMAIN}::SkipSimplifiedLayerNormalization", _skip_simplified)
body(f"{_DOMAIN}::LayerNormalization", _layer_normalization)
body(f"{_DOMAIN}::SimplifiedLayerNormalization", _simplified)
body("SimplifiedLayerNormalization", _simplified, notes="onnxruntime's, in the default domain")
body(f"{_DOMAIN}::EmbedLayerNormalization", _embed)
