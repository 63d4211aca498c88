"""Bodies of onnxruntime's operators for diffusion models (com.microsoft).

onnxruntime's optimiser emits them for GPUs, and its CPU provider has no kernels for them. The
formulas follow their schemas.
"""

from __future__ import annotations

from collections.abc import Sequence

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.arithmetic import from_front, in_dtype_of, plus, rank_of
from onnxgrad.ir.emission.emit import constant
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var
from onnxgrad.laws.bodies.calls import Bodies, decline
from onnxgrad.laws.bodies.fused import fast_gelu, gelu, windowed


def _group_norm(
    x: Var, gamma: Var, beta: Var, *, groups: int, activation: int = 0, binding: Binding
) -> Var:
    """Normalises groups of channels, applies a scale and bias per channel, then SiLU if set."""
    decline(binding, f"activation {activation}", activation not in (0, 1))
    rank, last = rank_of(x, binding), binding.attr("channels_last", 1)
    first = _moved(in_dtype_of(x, gamma), _to_front(rank) if last else None)
    lines = op.Reshape(first, [0, groups, -1])
    ones = op.Expand(constant(1.0, gamma.dtype), [groups])
    epsilon = binding.attr("epsilon", 1e-5)
    flat = op.InstanceNormalization(lines, ones, ones - ones, epsilon=epsilon)
    y = _moved(op.Reshape(flat, op.Shape(first)), _to_back(rank) if last else None)
    if not last:
        gamma, beta = (op.Unsqueeze(v, list(range(1, rank - 1))) for v in (gamma, beta))
    y = y * gamma + beta
    return in_dtype_of(y * op.Sigmoid(y) if activation else y, x)


def _skip_group_norm(
    x: Var,
    gamma: Var,
    beta: Var,
    skip: Var,
    bias: Var | None,
    *,
    groups: int,
    activation: int = 0,
    binding: Binding,
) -> tuple[Var, Var]:
    """Returns the group normalisation of x + skip + bias, and that sum.

    skip: (N, H, W, C) or (N, C).
    """
    rank, last = rank_of(x, binding), binding.attr("channels_last", 1)
    if rank_of(skip, binding) == 2:
        skip = op.Unsqueeze(skip, list(range(1, rank - 1) if last else range(2, rank)))
    if bias is not None and not last:
        bias = op.Unsqueeze(bias, list(range(1, rank - 1)))
    total = plus(x, skip, bias)
    y = _group_norm(total, gamma, beta, groups=groups, activation=activation, binding=binding)
    return y, total


def _to_front(rank: int) -> list[int]:
    return [0, rank - 1, *range(1, rank - 1)]


def _to_back(rank: int) -> list[int]:
    return [0, *range(2, rank), 1]


def _moved(v: Var, order: Sequence[int] | None) -> Var:
    return v if order is None else op.Transpose(v, perm=list(order))


def _nhwc_conv(x: Var, w: Var, bias: Var | None, *, binding: Binding) -> Var:
    """Returns the convolution of x (N, *S, C) by w (M, *K, C / group)."""
    rank = rank_of(x, binding)
    x, w = (op.Transpose(v, perm=_to_front(rank)) for v in (x, w))
    return op.Transpose(windowed(x, w, bias, binding), perm=_to_back(rank))


def _bias_split_gelu(x: Var, bias: Var) -> Var:
    """Returns the left half of the columns of x + bias, times Gelu of the right half."""
    left, right = op.Split(x + bias, axis=-1, num_outputs=2, outputs=2)
    return left * gelu(right)


def _bias_softmax(x: Var, bias: Var, *, binding: Binding) -> Var:
    """Softmax of x + bias over `axis` and all later axes."""
    total, rank = x + bias, rank_of(x, binding)
    axis = from_front(binding.attr("axis", 1), rank)
    if axis == rank - 1:
        return op.Softmax(total, axis=-1)
    return op.Reshape(op.Softmax(op.Flatten(total, axis=axis), axis=-1), op.Shape(total))


_NOTE = "by its definition; onnxruntime's CPU has no kernel"
BODIES: Bodies = {
    "GroupNorm": (_group_norm, _NOTE),
    "SkipGroupNorm": (_skip_group_norm, _NOTE),
    "NhwcConv": (_nhwc_conv, _NOTE),
    "BiasSplitGelu": (_bias_split_gelu, _NOTE),
    "BiasSoftmax": (_bias_softmax, _NOTE),
    "BiasAdd": (lambda x, bias, skip: x + bias + skip, _NOTE),
    "GemmFastGelu": (lambda x, w, bias: fast_gelu(x @ w, bias), _NOTE),
}
