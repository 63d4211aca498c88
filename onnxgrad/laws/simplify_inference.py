"""Simplifies inference: BatchNormalization becomes a multiply and an add, or moves into the Conv
after it; Dropout is removed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import Shape, is_static, numpy_dtype
from onnxgrad.ir.var import Var
from onnxgrad.laws.constant_values import fixed_value
from onnxgrad.laws.fold_scale_axis.scale import again, fixed
from onnxgrad.rewrite.pattern import P, capture
from onnxgrad.rewrite.trace import decline, decline_if
from onnxgrad.rewrite.worklist import count, rewrite

x, w, c, gamma, beta, mean, var, ratio, mode = capture("x w c gamma beta mean var ratio mode")

_HALF = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16})
# operators that can take the scale into their weight and the shift into their bias
_PRODUCTS = frozenset({"Conv", "ConvTranspose", "MatMul", "Gemm"})
_UNPADDED = ("NOTSET", "VALID")  # `auto_pad` beside `pads` of zeros


def _training(root: Binding) -> str | None:
    """Why a BatchNormalization uses the statistics of the batch; None if it does not."""
    if root.version >= 14:
        return "training_mode is 1" if root.attr("training_mode") else None
    if root.version >= 7:
        # up to opset 13 more than one output means training, even if unused, as in onnxruntime
        outputs = sum(v is not None for v in root.outputs)
        return (
            f"it has {outputs} outputs, which means training before opset 14"
            if outputs > 1
            else None
        )
    return "before opset 7 its multiply and add do not broadcast"


def _axes_beside_channels(x: Var, root: Binding) -> list[int]:
    """The axes that a per-channel vector lacks to line up with axis 1 of `x`. Raises Decline."""
    if x.rank is None or not x.dtype:
        raise decline("the input's rank is unknown")
    decline_if(x.rank < 2, "the input has no axis of channels")
    if not root.attr("spatial", 1):
        return []  # opset 7 and 8: one statistic per feature, all axes but the batch
    return list(range(1, x.rank - 1))


@rewrite(P.BatchNormalization(x, gamma, beta, mean, var))
def batch_norm(x: Var, gamma: Var, beta: Var, mean: Var, var: Var, root: Binding) -> Any:
    """BN(x) = x * scale + shift, scale = gamma / sqrt(var + eps), shift = beta - mean * scale, in
    inference

    A gamma of ones adds no factor, a beta of zeros no term.
    """
    reason = "an attribute is that of the enclosing function" if root.has_refs else _training(root)
    reason = reason or _unusable((gamma, beta, mean, var), x, root)
    if reason is not None:
        return decline(reason)
    reader = root.out.sole_user()
    if reader is not None and reader.is_op("Conv") and reader.inputs[0] is root.out:
        decline_if(_not_into(reader, root) is None, "the Conv after it takes scale and shift")
    axes = _axes_beside_channels(x, root)

    def aligned(v: Var) -> Var:
        v = v if v.dtype == x.dtype else op.Cast(v, to=x.dtype)
        return op.Unsqueeze(v, axes) if axes else v

    scale, moved = _scale_and_moved_mean(x, gamma, beta, mean, var, root)
    y = x * aligned(scale)
    y = y + aligned(_shift(moved, beta))
    # in inference the running statistics do not change
    rest = {v: new for v, new in zip(root.outputs[1:], (mean, var)) if v is not None}
    return {root.out: y, **rest}


def _shift(moved: Var, beta: Var) -> Var:
    if _all(beta, 0):
        return moved
    return moved + (beta if beta.dtype == moved.dtype else op.Cast(beta, to=moved.dtype))


def _scale_and_moved_mean(
    x: Var, gamma: Var, beta: Var, mean: Var, var: Var, root: Binding
) -> tuple[Var, Var]:
    """The factor of each channel, and the term but for beta. Raises Decline if a factor or a term
    is not finite.
    """
    _check_finite((gamma, beta, mean, var), float(root.attr("epsilon")), x.dtype)
    # half precision has 3 digits: scale and shift are rounded only once, and eps would lose half
    # of its digits
    computed = TensorProto.FLOAT if var.dtype in _HALF else var.dtype

    def wide(v: Var) -> Var:
        """Casts to the computing dtype: from opset 15 on gamma and beta may be narrower."""
        return v if v.dtype == computed else op.Cast(v, to=computed)

    scale = 1.0 / op.Sqrt(wide(var) + float(root.attr("epsilon")))
    scale = scale if _all(gamma, 1) else scale * wide(gamma)
    return scale, -wide(mean) * scale


def _unusable(statistics: Sequence[Var], x: Var, root: Binding) -> str | None:
    """Why the statistics do not have one number for each channel; None if they may have."""
    if not all(v.dtype for v in statistics):
        return "a statistic's dtype is unknown"
    if root.attr("spatial", 1) and any(v.rank not in (None, 1) for v in statistics):
        return "a statistic is not a vector"
    if x.rank and any(_differ(v.shape, x.shape) for v in statistics):
        return "a statistic has no number for each channel"
    return None


def _differ(statistic: Shape | None, shape: Shape | None) -> bool:
    """Whether a vector is known to have another size than axis 1."""
    if statistic is None or len(statistic) != 1 or shape is None or len(shape) < 2:
        return False
    n, channels = statistic[0], shape[1]
    return isinstance(n, int) and isinstance(channels, int) and n != channels


def _all(v: Var, number: int) -> bool:
    """Whether every element is known to be this number."""
    array = fixed_value(v)
    return array is not None and bool((array == number).all())


def _check_finite(statistics: Sequence[Var], epsilon: float, dtype: int) -> None:
    """Raises Decline if a scale or shift is known not to be finite: x * inf + (b - m * inf) is not
    (x - m) * inf + b.
    """
    arrays = [None if (a := fixed_value(v)) is None else a.astype(np.float64) for v in statistics]
    g, b, m, v = arrays
    if g is None or b is None or m is None or v is None:
        return
    with np.errstate(all="ignore"):
        scale = g / np.sqrt(v + epsilon)
        for name, values in (("scale", scale), ("shift", b - m * scale)):
            decline_if(
                not np.isfinite(values.astype(numpy_dtype(dtype)).astype(np.float64)).all(),
                f"its {name} is not finite",
            )


def _after_product(x: Var) -> bool:
    """Whether `x` is a product with a fixed weight, plus a bias or not, that nothing else reads."""
    while x.definition is not None and x.sole_user() is not None:
        b = x.definition
        if b.domain == "" and b.op in _PRODUCTS:
            return any(v is not None and fixed(v) for v in b.inputs[b.op != "MatMul" : 2])
        operands = [v for v in b.inputs if v is not None and not v.is_constant]
        if not (b.is_op("Identity") or b.is_op("Add")) or len(operands) != 1:
            return False
        x = operands[0]
    return False


@rewrite(P.BatchNormalization(x, gamma, beta, mean, var))
def batch_norm_after_product(
    x: Var, gamma: Var, beta: Var, mean: Var, var: Var, root: Binding
) -> Any:
    """BN(x) = x * scale + shift, where x is a product that can take them"""
    decline_if(
        not _after_product(x),
        "its operand is not a product that could take the scale: one kernel is faster than two",
    )
    decline_if(
        not all(fixed(v) for v in (gamma, beta, mean, var)),
        "a statistic is not constant: one kernel is faster than the arithmetic",
    )
    return batch_norm.build(x, gamma, beta, mean, var, root)


def _not_into(conv: Binding, norm: Binding) -> str | None:
    """Why a Conv does not take the BatchNormalization before it; None if it does."""
    x, *statistics = (v for v in norm.inputs if v is not None)
    w = conv.inputs[1]
    if norm.has_refs or conv.has_refs:
        return "an attribute is that of the enclosing function"
    if _after_product(x):
        return "the product before it takes the scale"
    if (reason := _training(norm) or _unusable(statistics, x, norm)) is not None:
        return reason
    if any(conv.attr("pads", ())) or conv.attr("auto_pad", "NOTSET") not in _UNPADDED:
        return "the Conv after it pads"
    if w is None or not all(map(fixed, (w, *statistics))) or w.use_count > 1:
        return "a statistic or the weight is not constant, or others read the weight"
    if any(v.dtype != x.dtype for v in (w, *statistics)) or x.dtype in _HALF:
        return "the dtypes differ, or have few digits"
    if not is_static(w.shape) or any(
        v.shape != (conv.attr("group", 1) * w.shape[1],) for v in statistics
    ):
        return "a statistic has no number for each channel"
    return None


@rewrite(
    P.Conv(P.BatchNormalization(x, gamma, beta, mean, var).only.named("norm"), w, c.maybe),
    shrinks=count("BatchNormalization"),
)
def batch_norm_before_conv(
    x: Var,
    gamma: Var,
    beta: Var,
    mean: Var,
    var: Var,
    w: Var,
    c: Var | None,
    norm: Binding,
    root: Binding,
) -> Any:
    """Conv(BN(x), w, c) = Conv(x, w scale, c + sum(w shift)), for a Conv that pads nothing: its
    zeros would be shifted, too
    """
    reason = _not_into(root, norm)
    if reason is not None:
        return decline(reason)
    assert is_static(w.shape)
    groups, (rows, columns, *kernel) = root.attr("group", 1), w.shape
    lead = [groups] if groups > 1 else []  # channels of the groups: an axis in front
    parts = op.Reshape(w, [*lead, rows // groups, columns, *kernel]) if lead else w
    scale, moved = _scale_and_moved_mean(x, gamma, beta, mean, var, norm)
    scale, shift = (
        op.Reshape(v, [*lead, 1, columns, *(1 for _ in kernel)])
        for v in (scale, _shift(moved, beta))
    )
    summed = [*range(len(lead) + 1, len(lead) + 2 + len(kernel))]
    bias = op.Reshape(op.ReduceSum(parts * shift, summed), [rows])
    scaled = op.Reshape(parts * scale, w.shape) if lead else parts * scale
    return again(root, [x, scaled, bias if c is None else c + bias])


def _dropout(x: Var, root: Binding) -> Any:
    """Returns `x` as the result, and a mask of true elements if the mask is read."""
    mask = root.result(1)
    if mask is None or not mask.use_count:
        return x
    decline_if(root.version < 12, "its mask is read, which has no defined value before opset 12")
    true = helper.make_tensor("value", TensorProto.BOOL, [1], np.ones(1, bool))
    return {root.out: x, mask: op.ConstantOfShape(op.Shape(x), value=true)}


def _may_drop(root: Binding, ratio: Var | None, mode: Var | None) -> str | None:
    """Why the Dropout may drop elements; None if it cannot."""
    if root.version < 7 and not root.attr("is_test"):
        return "is_test is 0: it drops"
    if ratio is not None and ratio.const is not None and not ratio.const.any():
        return None
    if mode is None or (mode.const is not None and not mode.const.any()):
        return None
    return (
        "training_mode is true"
        if mode.const is not None
        else "training_mode is known only at run time"
    )


@rewrite(P.Dropout(x, ratio.maybe, mode.maybe), shrinks=count("Dropout"))
def dropout(x: Var, ratio: Var | None, mode: Var | None, root: Binding) -> Any:
    """Dropout(x, ratio, training_mode=false) = Dropout(x, 0, training_mode) = Dropout(x) = x"""
    reason = _may_drop(root, ratio, mode)
    return _dropout(x, root) if reason is None else decline(reason)
