"""The laws of the pass `legalize`: each quantized operator in terms of a `Form`.

The definitions follow the ONNX schemas and onnxruntime's docs/ContribOperators.md.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto

from onnxgrad.ir.emission.emit import constant
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import element_count
from onnxgrad.ir.var import Var
from onnxgrad.laws.quantized.calls import (
    CONTRIB,
    Quantized,
    QuantizedCall,
    dtype_of,
    dynamically,
    grouped,
    keep,
    law,
    operands_of,
    triple,
)
from onnxgrad.laws.quantized.calls import LAWS as LAWS
from onnxgrad.laws.quantized.forms import (
    LIMITS,
    PlainForm,
    along,
    centred,
    rounded,
    saturated,
)
from onnxgrad.laws.quantized.lstm import OPERANDS, OPTIONAL, dynamic_quantize_lstm
from onnxgrad.rewrite.trace import decline, decline_if

_CONV = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
_POOL = ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")

# ---- products: plain arithmetic accumulates integers, as the kernels do --------------------------


@law("QLinearConv", "")
@law("QLinearConv")
def qlinear_conv(
    call: QuantizedCall,
    x: Quantized,
    w: Quantized,
    y_scale: Var,
    y_zero: Var | None,
    bias: Var | None = None,
) -> list[Any]:
    """y = quantize(conv(x - x_zero, w - w_zero) + bias) * x_scale w_scale / y_scale"""
    form, attrs, dtype = call.form, call.written(*_CONV), dtype_of(y_zero, x.value)
    if isinstance(form, PlainForm):
        call.sums(x.value, x.zero, w.value, w.zero, tuple(range(1, len(w.value.shape or ()))), bias)
        wide = None if bias is None else op.Cast(bias, to=TensorProto.FLOAT)
        sums = op.Conv(centred(x.value, x.zero), centred(w.value, w.zero, 0), wide, **attrs)
        ratio = along(x.scale, None, x.value) * along(w.scale, 0, w.scale)
        ratio = ratio / along(y_scale, None, x.value)
        return [saturated(rounded(sums * along(ratio, 1, sums)), y_zero, dtype)]
    wide = None if bias is None else form.dequantize(bias, joint(x.scale, w.scale), None, 0)
    y = op.Conv(form.dequantize(*x), form.dequantize(*w, 0), wide, **attrs)
    return [form.quantize(y, y_scale, y_zero, dtype)]


def joint(a_scale: Var, b_scale: Var) -> Var:
    """Returns the scale of a sum of products: a vector if one of the factors is a vector, a
    constant if both are constant.
    """
    if a_scale.const is not None and a_scale.const.size == 1 and b_scale.const is not None:
        both = np.float32(a_scale.const.item()) * np.asarray(b_scale.const, np.float32)
        return constant(np.asarray(both, np.float32), name="scale")
    return along(a_scale, None, a_scale) * (
        b_scale if b_scale.shape != (1,) else along(b_scale, None, b_scale)
    )


@law("QLinearMatMul", "")
def qlinear_matmul(
    call: QuantizedCall, a: Quantized, b: Quantized, y_scale: Var, y_zero: Var | None
) -> list[Any]:
    """y = quantize((a - a_zero) @ (b - b_zero) * a_scale b_scale / y_scale)"""
    form, dtype = call.form, dtype_of(y_zero, a.value)
    if isinstance(form, PlainForm):
        sums = _product(call, a.value, b.value, a.zero, b.zero)
        ratio = along(a.scale, -2, a.value) * along(b.scale, -1, b.value)
        ratio = ratio / along(y_scale, -2, sums)
        return [saturated(rounded(sums * ratio), y_zero, dtype, -2)]
    y = op.MatMul(form.dequantize(*a, -2), form.dequantize(*b, -1))
    return [form.quantize(y, y_scale, y_zero, dtype, -2)]


def _product(call: QuantizedCall, a: Var, b: Var, a_zero: Var | None, b_zero: Var | None) -> Var:
    """(a - a_zero) @ (b - b_zero) in float32."""
    call.sums(a, a_zero, b, b_zero, (max(len(b.shape or ()) - 2, 0),))
    return op.MatMul(centred(a, a_zero, -2), centred(b, b_zero, -1))


@law("MatMulInteger", "")
def matmul_integer(
    call: QuantizedCall, a: Var, b: Var, a_zero: Var | None, b_zero: Var | None
) -> list[Any]:
    """y = (a - a_zero) @ (b - b_zero)"""
    return [op.Cast(_product(call, a, b, a_zero, b_zero), to=TensorProto.INT32)]


@law("ConvInteger", "")
def conv_integer(
    call: QuantizedCall, x: Var, w: Var, x_zero: Var | None, w_zero: Var | None
) -> list[Any]:
    """y = conv(x - x_zero, w - w_zero)"""
    call.sums(x, x_zero, w, w_zero, tuple(range(1, len(w.shape or ()))))
    y = op.Conv(centred(x, x_zero), centred(w, w_zero, 0), **call.written(*_CONV))
    return [op.Cast(y, to=TensorProto.INT32)]


@law("MatMulIntegerToFloat")
def matmul_integer_to_float(
    call: QuantizedCall, a: Var, b: Var, a_scale: Var, b_scale: Var,
    a_zero: Var | None, b_zero: Var | None, bias: Var | None = None,
) -> list[Any]:  # fmt: skip
    """y = (a - a_zero) @ (b - b_zero) * a_scale b_scale + bias"""
    if not isinstance(call.form, PlainForm) and same_size(b_scale, b_zero):
        left, right = Quantized(a, a_scale, a_zero), Quantized(b, b_scale, b_zero)
        y = op.MatMul(call.form.dequantize(*left), call.form.dequantize(*right, -1))
        return [y if bias is None else y + bias]
    y = _product(call, a, b, a_zero, b_zero) * (along(a_scale, None, a) * along(b_scale, -1, b))
    return [y if bias is None else y + bias]


def same_size(scale: Var, zero: Var | None) -> bool:
    """Whether DequantizeLinear accepts this scale and zero point: both scalars, or both one value
    per channel.
    """
    sizes = [element_count(v.shape) for v in (scale, zero) if v is not None]
    return len(set(sizes)) == 1


@law("QGemm")
def qgemm(
    call: QuantizedCall,
    a: Quantized,
    b: Quantized,
    c: Var | None = None,
    y_scale: Var | None = None,
    y_zero: Var | None = None,
) -> list[Any]:
    """y = quantize(alpha a_scale b_scale ((a - a_zero) (b - b_zero) + c)), a and b transposed by
    transA and transB; float without y_scale
    """
    columns, alpha = 0 if call.attr("transB", 0) else 1, float(call.attr("alpha", 1.0))
    form, turned = call.form, call.written("transA", "transB")
    if isinstance(form, PlainForm):
        both = joint(a.scale, b.scale) * alpha
        call.sums(a.value, a.zero, b.value, b.zero, (1 - columns,), c)
        left, right = centred(a.value, a.zero), centred(b.value, b.zero, columns)
        bias: Any = 0.0 if c is None else op.Cast(c, to=TensorProto.FLOAT)
        y = op.Gemm(left, right, bias, **turned) * both
    else:
        left, right = form.dequantize(*a), form.dequantize(*b, columns)
        bias = 0.0 if c is None else form.dequantize(c, joint(a.scale, b.scale), None, -1)
        y = op.Gemm(left, right, bias, **turned, alpha=alpha, beta=alpha)
    return [y if y_scale is None else form.quantize(y, y_scale, y_zero, dtype_of(y_zero, a.value))]


@law("DynamicQuantizeLinear", "")
def dynamic_quantize(call: QuantizedCall, x: Var) -> list[Any]:
    """y = quantize(x, s, z), s = (max(x, 0) - min(x, 0)) / 255, z = round(-min / s)"""
    found = dynamically(call, x)
    return [found.value, found.scale, found.zero]


@law("DynamicQuantizeMatMul")
def dynamic_quantize_matmul(
    call: QuantizedCall,
    x: Var,
    b: Var,
    b_scale: Var,
    b_zero: Var | None = None,
    bias: Var | None = None,
) -> list[Any]:
    """y = (q - z) @ (b - b_zero) * s b_scale + bias, where q, s, z = DynamicQuantizeLinear(x)"""
    a = dynamically(call, x)
    return matmul_integer_to_float(call, a.value, b, a.scale, b_scale, a.zero, b_zero, bias)


keep("DynamicQuantizeLSTM", CONTRIB, dynamic_quantize_lstm, [(n,) for n in OPERANDS], OPTIONAL)


# ---- elementwise and the like: dequantize, compute, quantize -------------------------------------


def _through(name: str, compute: Callable[..., Any], plain: Sequence[str] = ()) -> None:
    """Registers y = quantize(compute(call, dequantize(x), ...)).

    The operands are the parameters of `compute`: first the `plain` ones, then each value with its
    scale and zero point, then the scale and zero point of y.
    """
    quantized = list(inspect.signature(compute).parameters)[1 + len(plain) :]

    def formula(call: QuantizedCall, *operands: Any) -> list[Any]:
        *given, y_scale, y_zero = operands
        values = [call.form.dequantize(*x) if isinstance(x, Quantized) else x for x in given]
        dtype = dtype_of(y_zero, given[len(plain)].value)
        return [call.form.quantize(compute(call, *values), y_scale, y_zero, dtype)]

    groups = [*((n,) for n in plain), *map(triple, quantized), ("y_scale",), ("y_zero",)]
    keep(name, CONTRIB, formula, groups)


# from this opset on Softmax works along one axis, before along all axes from one on
_ONE_AXIS = 13


def _softmax(call: QuantizedCall, x: Var) -> Var:
    rank, ours = x.rank, x.block.opsets[""]
    if not rank:
        raise decline("Softmax of a value of unknown rank")
    axis = int(call.attr("axis", -1)) % rank
    decline_if(
        axis != rank - 1 and (int(call.attr("opset", ours)) >= _ONE_AXIS) != (ours >= _ONE_AXIS),
        "Softmax along another axis than the last, which has another meaning at this opset",
    )
    return op.Softmax(x, axis=axis)


def _average(call: QuantizedCall, x: Var) -> Var:
    attrs = call.written(*_POOL)
    if attrs.get("ceil_mode") and attrs.get("count_include_pad"):
        # onnxruntime's quantized kernel divides by the size of the window, even where the window
        # leaves the padding; AveragePool divides by the part inside
        decline_if(attrs.get("auto_pad", "NOTSET") != "NOTSET", "auto_pad beside ceil_mode")
        attrs["pads"] = _whole_windows(x, attrs)
        del attrs["ceil_mode"]
    return op.AveragePool(x, **attrs)


def _whole_windows(x: Var, attrs: Mapping[str, Any]) -> list[int]:
    """Returns the padding with which the windows that ceil_mode adds end inside."""
    kernel = list(attrs["kernel_shape"])
    sizes = list(x.shape or ())[2:]
    ones, zeros = [1] * len(kernel), [0] * 2 * len(kernel)
    strides, pads = list(attrs.get("strides") or ones), list(attrs.get("pads") or zeros)
    for i, size in enumerate(sizes):
        if not isinstance(size, int):
            raise decline("ceil_mode with count_include_pad, and a size is unknown")
        begin, end = pads[i], pads[i + len(kernel)]
        last = -(-(size + begin + end - kernel[i]) // strides[i]) * strides[i]
        last -= strides[i] if last >= size + begin else 0
        pads[i + len(kernel)] = max(end, last + kernel[i] - size - begin)
    return pads


def _mean(call: QuantizedCall, x: Var) -> Var:
    axes = call.attr("axes") or list(range(x.rank or 0))
    decline_if(not axes, "the mean of a scalar or of a value of unknown rank")
    return op.ReduceMean(x, list(axes), keepdims=int(call.attr("keepdims", 1)))


_through("QLinearAdd", lambda call, a, b: a + b)
_through("QLinearMul", lambda call, a, b: a * b)
_through("QLinearSigmoid", lambda call, x: op.Sigmoid(x))
_through("QLinearLeakyRelu", lambda call, x: op.LeakyRelu(x, alpha=call.attr("alpha", 0.01)))
_through(
    "QLinearWhere", lambda call, condition, a, b: op.Where(condition, a, b), plain=["condition"]
)
_through("QLinearAveragePool", _average)
_through("QLinearGlobalAveragePool", lambda call, x: op.GlobalAveragePool(x, **call.written()))
_through("QLinearSoftmax", _softmax)
_through("QLinearReduceMean", _mean)


@law("QLinearConcat")
def qlinear_concat(call: QuantizedCall, y_scale: Var, y_zero: Var | None) -> list[Any]:
    """y = quantize(concat(dequantize(x_1), dequantize(x_2), ...)), each x with its scale and
    zero point
    """
    form, groups = (
        call.form,
        [triple(f"x{i}") for i in range(1, len(call.binding.inputs) // 3 + 1)],
    )
    names = ["y_scale", "y_zero", *(name for group in groups for name in group)]
    xs = grouped(operands_of(call.binding, names)[2:], groups)
    y = op.Concat(*(form.dequantize(*x) for x in xs), axis=call.attr("axis"))
    return [form.quantize(y, y_scale, y_zero, dtype_of(y_zero, xs[0].value))]


# ---- fused operators: their operands dequantized, the float operator of the same kernel ----------

_EMBEDDED = ("word", "position", "segment", "gamma", "beta")
_EMBEDS = (
    "ids",
    "segment_ids",
    *_EMBEDDED,
    "mask",
    *(f"{n}_scale" for n in _EMBEDDED),
    *(f"{n}_zero" for n in _EMBEDDED),
)


def _embed_layer_normalization(
    call: QuantizedCall, ids: Var, segment_ids: Var | None, *rest: Any
) -> list[Any]:
    """y, mask_index = EmbedLayerNormalization(ids, segment_ids, dequantize(tables), ..., mask)"""
    values, mask, scales, zeros = rest[:5], rest[5], rest[6:11], rest[11:]
    tables = [
        None if v is None else call.form.dequantize(v, s, z)
        for v, s, z in zip(values, scales, zeros, strict=True)
    ]
    return _fused(call, "EmbedLayerNormalization", [ids, segment_ids, *tables, mask], "epsilon")


def _fused(
    call: QuantizedCall, name: str, operands: Sequence[Var | None], *attributes: str
) -> list[Any]:
    count = len(call.binding.outputs)
    made = getattr(op.domain(CONTRIB), name)(*operands, **call.written(*attributes), outputs=count)
    return [made] if isinstance(made, Var) else list(made)


keep(
    "QEmbedLayerNormalization",
    CONTRIB,
    _embed_layer_normalization,
    [(n,) for n in _EMBEDS],
    ("segment_ids", "segment", "segment_scale", "mask"),
)


@law("QAttention")
def qattention(
    call: QuantizedCall, x: Var, w: Var, bias: Var, x_scale: Var, w_scale: Var,
    mask: Var | None = None, x_zero: Var | None = None, w_zero: Var | None = None,
    past: Var | None = None,
) -> list[Any]:  # fmt: skip
    """y, present = Attention(dequantize(x), dequantize(w), bias, mask, past)"""
    decline_if(call.attr("past_present_share_buffer", 0), "past and present share their memory")
    decline_if(not same_size(w_scale, w_zero), "a zero point for each column, but one scale")
    operands = [
        call.form.dequantize(x, x_scale, x_zero),
        call.form.dequantize(w, w_scale, w_zero, -1),
        bias,
        mask,
        past,
    ]
    return _fused(call, "Attention", operands, *_ATTENTION)


_ATTENTION = ("num_heads", "unidirectional", "scale", "mask_filter_value", "do_rotary")


# ---- QuantizeLinear and DequantizeLinear themselves, where only plain operators exist ------------


def _since(call: QuantizedCall, dtype: int | None) -> None:
    """Raises Decline for 16-bit dtypes, which ONNX's own operators accept only from opset 21 on."""
    wide = dtype in (TensorProto.UINT16, TensorProto.INT16) and not isinstance(call.form, PlainForm)
    decline_if(wide and call.binding.block.opsets.get("", 0) < 21, "16 bits need opset 21")


@law("DequantizeLinear")
def contrib_dequantize(
    call: QuantizedCall, x: Var, x_scale: Var, zero_point: Var | None = None
) -> list[Any]:
    """com.microsoft::DequantizeLinear(x, s, z) = DequantizeLinear(x, s, z)"""
    _since(call, x.dtype)
    if x.dtype in _WIDER:
        x, zero_point = _in_bytes(x), None if zero_point is None else _in_bytes(zero_point)
    decline_if(x.dtype not in (*LIMITS, TensorProto.INT32), "not 4 to 32 bit integers")
    return [call.form.dequantize(x, x_scale, zero_point, call.attr("axis"))]


_WIDER: dict[int, type[np.generic]] = {TensorProto.INT4: np.int8, TensorProto.UINT4: np.uint8}


def _in_bytes(v: Var) -> Var:
    """A constant of 4 bits in 8, which opsets below 21 know."""
    if v.const is None:
        raise decline(f"'{v.name}' has 4 bits and is not a constant")
    return constant(np.asarray(v.const).astype(_WIDER[v.dtype]), name=v.name)


@law("QuantizeLinear")
def contrib_quantize(call: QuantizedCall, x: Var, y_scale: Var, y_zero: Var | None) -> list[Any]:
    """com.microsoft::QuantizeLinear(x, s, z) = QuantizeLinear(x, s, z)"""
    dtype = TensorProto.UINT8 if y_zero is None else y_zero.dtype
    _since(call, dtype)
    decline_if(dtype not in LIMITS or x.dtype != TensorProto.FLOAT, "not float32 to 8 or 16 bits")
    return [call.form.quantize(x, y_scale, y_zero, dtype, call.attr("axis"))]


@law("DequantizeLinear", "")
def dequantize(
    call: QuantizedCall, x: Var, x_scale: Var, zero_point: Var | None = None
) -> list[Any]:
    """y = (x - zero_point) * x_scale"""
    decline_if(
        call.attr("block_size", 0) or x.dtype not in (*LIMITS, TensorProto.INT32),
        "blocks, or not 8 to 32 bit integers",
    )
    return [PlainForm().dequantize(x, x_scale, zero_point, call.attr("axis", 1))]


@law("QuantizeLinear", "")
def quantize(call: QuantizedCall, x: Var, y_scale: Var, y_zero: Var | None) -> list[Any]:
    """y = saturate(round(x / y_scale) + y_zero)"""
    dtype = TensorProto.UINT8 if y_zero is None else y_zero.dtype
    decline_if(
        call.attr("block_size", 0) or call.attr("output_dtype", 0) or dtype not in LIMITS,
        "blocks, or not to 8 or 16 bit integers",
    )
    decline_if(x.dtype != TensorProto.FLOAT, "not from float32")
    return [PlainForm().quantize(x, y_scale, y_zero, dtype, call.attr("axis", 1))]
