"""What each quantized operator computes, in terms of `Form`: the laws behind `legalize`.

A law answers the new value of each output, in order. The definitions are those of the ONNX schemas and of
onnxruntime's contrib operators (docs/ContribOperators.md there).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onnx import TensorProto

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var
from onnxgrad.laws.quantized.bounds import Shortfall, accumulated, shortfall
from onnxgrad.laws.quantized.forms import LIMITS, Form, PlainForm, along, centred, rounded, saturated
from onnxgrad.rewrite.trace import decline

Note = Callable[[Shortfall], None]
Law = Callable[[Binding, Form, Note], list[Any]]
CONTRIB = "com.microsoft"
LAWS: dict[tuple[str, str], Law] = {}
# what no graph of other operators computes: why, and what to do. Measured with onnxruntime 1.31: a batch of 2 to 64
# rows moves by 0.007 to 0.19 between one and two threads; one thread quantises all rows of a step alike.
WITHOUT_FORM: dict[tuple[str, str], str] = {
    (CONTRIB, "DynamicQuantizeLSTM"): "onnxruntime quantises the state anew at every step, by those rows of the batch "
    "that a thread of it has: the result depends on the number of threads, and no graph of other operators computes "
    "it; take the float model with LSTM that it was made from",
}

_CONV = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
_POOL = ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")


def _law(name: str, domain: str = CONTRIB) -> Callable[[Law], Law]:
    def keep(law: Law) -> Law:
        LAWS[domain, name] = law
        return law

    return keep


def operand(b: Binding, index: int) -> Var:
    """Operand `index`, which must be there and typed."""
    v = b.operand(index)
    if v is None or not v.dtype or v.shape is None:
        raise decline(f"operand {index} is missing or its type is unknown")
    return v


def _quantized(b: Binding, *indices: int) -> list[Var]:
    found = [operand(b, i) for i in indices]
    if any(v.dtype not in LIMITS for v in found):
        raise decline("not 8 or 16 bit integers")
    return found


def _scale(b: Binding, *indices: int) -> list[Var]:
    found = [operand(b, i) for i in indices]
    if any(v.dtype != TensorProto.FLOAT for v in found):
        raise decline("a scale that is not float32")
    return found


def _attrs(b: Binding, names: tuple[str, ...]) -> dict[str, Any]:
    if b.attr("channels_last", 0):
        raise decline("channels_last is 1, which plain operators do not know")
    return {n: b.attrs[n] for n in names if n in b.attrs}


def _out_dtype(b: Binding, zero: Var | None, like: Var) -> int:
    return zero.dtype if zero is not None and zero.dtype in LIMITS else like.dtype


# ---- products: plain arithmetic accumulates integers, as the kernels do ----------------------------------------------


@_law("QLinearConv", "")
@_law("QLinearConv")
def qlinear_conv(b: Binding, form: Form, note: Note) -> list[Any]:
    """y = quantize(conv(x - zx, w - zw) + bias) * sx sw / sy"""
    x, w = _quantized(b, 0, 3)
    (sx, sw, sy), (zx, zw, zy), bias = _scale(b, 1, 4, 6), (b.operand(2), b.operand(5), b.operand(7)), b.operand(8)
    attrs, dtype = _attrs(b, _CONV), _out_dtype(b, zy, x)
    if isinstance(form, PlainForm):
        short = shortfall(accumulated(x, zx, w, zw, tuple(range(1, len(w.shape or ()))), bias))
        if short is not None:
            note(short)
        wide = None if bias is None else op.Cast(bias, to=TensorProto.FLOAT)
        sums = op.Conv(centred(x, zx), centred(w, zw, 0), wide, **attrs)
        ratio = along(sx, None, x) * along(sw, 0, sw) / along(sy, None, x)
        return [saturated(rounded(sums * along(ratio, 1, sums)), zy, dtype)]
    wide = None if bias is None else form.dequantize(bias, _joint(sx, sw), None, 0)
    y = op.Conv(form.dequantize(x, sx, zx), form.dequantize(w, sw, zw, 0), wide, **attrs)
    return [form.quantize(y, sy, zy, dtype)]


def _joint(sx: Var, sw: Var) -> Var:
    """The scale of a sum of products; a vector when one of them is."""
    return along(sx, None, sx) * (sw if sw.shape != (1,) else along(sw, None, sw))


@_law("QLinearMatMul", "")
def qlinear_matmul(b: Binding, form: Form, note: Note) -> list[Any]:
    """y = quantize((a - za) @ (b - zb) * sa sb / sy)"""
    a, w = _quantized(b, 0, 3)
    (sa, sw, sy), (za, zw, zy) = _scale(b, 1, 4, 6), (b.operand(2), b.operand(5), b.operand(7))
    dtype = _out_dtype(b, zy, a)
    if isinstance(form, PlainForm):
        sums = _sums(a, za, w, zw, note)
        ratio = along(sa, -2, a) * along(sw, -1, w) / along(sy, -2, sums)
        return [saturated(rounded(sums * ratio), zy, dtype, -2)]
    y = op.MatMul(form.dequantize(a, sa, za, -2), form.dequantize(w, sw, zw, -1))
    return [form.quantize(y, sy, zy, dtype, -2)]


def _sums(a: Var, za: Var | None, w: Var, zw: Var | None, note: Note) -> Var:
    """(a - za) @ (w - zw) in float32."""
    rank = len(w.shape or ())
    short = shortfall(accumulated(a, za, w, zw, (max(rank - 2, 0),), None))
    if short is not None:
        note(short)
    return op.MatMul(centred(a, za, -2), centred(w, zw, -1))


@_law("MatMulInteger", "")
def matmul_integer(b: Binding, form: Form, note: Note) -> list[Any]:
    """y = (a - za) @ (b - zb)"""
    a, w = _quantized(b, 0, 1)
    return [op.Cast(_sums(a, b.operand(2), w, b.operand(3), note), to=TensorProto.INT32)]


@_law("ConvInteger", "")
def conv_integer(b: Binding, form: Form, note: Note) -> list[Any]:
    """y = conv(x - zx, w - zw)"""
    x, w = _quantized(b, 0, 1)
    short = shortfall(accumulated(x, b.operand(2), w, b.operand(3), tuple(range(1, len(w.shape or ()))), None))
    if short is not None:
        note(short)
    y = op.Conv(centred(x, b.operand(2)), centred(w, b.operand(3), 0), **_attrs(b, _CONV))
    return [op.Cast(y, to=TensorProto.INT32)]


@_law("MatMulIntegerToFloat")
def matmul_integer_to_float(b: Binding, form: Form, note: Note) -> list[Any]:
    """y = (a - za) @ (b - zb) * sa sb + bias"""
    (a, w), (sa, sw) = _quantized(b, 0, 1), _scale(b, 2, 3)
    y = _sums(a, b.operand(4), w, b.operand(5), note) * (along(sa, None, a) * along(sw, -1, w))
    return [y if b.operand(6) is None else y + b.operand(6)]


@_law("QGemm")
def qgemm(b: Binding, form: Form, note: Note) -> list[Any]:
    """y = quantize(alpha sa sb ((A - za) (B - zb) + C)), A and B transposed as asked; float without an output scale"""
    a, w = _quantized(b, 0, 3)
    (sa, sw), (za, zw), bias = _scale(b, 1, 4), (b.operand(2), b.operand(5)), b.operand(6)
    flipped = int(b.attr("transB", 0))
    columns = 0 if flipped else 1
    joint = _joint(sa, sw) * float(b.attr("alpha", 1.0))
    transposed = {n: b.attrs[n] for n in ("transA", "transB") if n in b.attrs}
    if isinstance(form, PlainForm):
        short = shortfall(accumulated(a, za, w, zw, (1 - columns,), bias))
        if short is not None:
            note(short)
    sums = op.Gemm(
        centred(a, za),
        centred(w, zw, columns),
        0.0 if bias is None else op.Cast(bias, to=TensorProto.FLOAT),
        **transposed,
    )
    y = sums * joint
    if b.operand(7) is None:
        return [y]
    zero = b.operand(8)
    return [form.quantize(y, _scale(b, 7)[0], zero, _out_dtype(b, zero, a))]


@_law("DynamicQuantizeLinear", "")
def dynamic_quantize(b: Binding, form: Form, note: Note) -> list[Any]:
    """y = quantize(x, s, z), s = (max(x, 0) - min(x, 0)) / 255, z = round(-min / s)"""
    x = operand(b, 0)
    low = op.Min(op.ReduceMin(x, keepdims=0), 0.0)
    high = op.Max(op.ReduceMax(x, keepdims=0), 0.0)
    span = (high - low) / 255.0
    # nothing but zeros: any scale will do, and onnxruntime's is 1
    scale = op.Where(op.Equal(span, 0.0), 1.0, span)
    zero = saturated(rounded((0.0 - low) / scale), None, TensorProto.UINT8)
    return [form.quantize(x, scale, zero, TensorProto.UINT8), scale, zero]


# ---- elementwise and the like: dequantize, compute, quantize -------------------------------------------------------


def _through(name: str, count: int, first: int, compute: Callable[[Binding, list[Any]], Any]) -> None:
    """Register y = quantize(f(dequantize(x_1), ...)): operands (x, scale, zero) * count from `first`, (scale, zero)."""

    def law(b: Binding, form: Form, note: Note) -> list[Any]:
        starts = [first + 3 * i for i in range(count)]
        xs = _quantized(b, *starts)
        values = [form.dequantize(v, _scale(b, i + 1)[0], b.operand(i + 2)) for v, i in zip(xs, starts)]
        at = first + 3 * count
        zero = b.operand(at + 1)
        return [form.quantize(compute(b, values), _scale(b, at)[0], zero, _out_dtype(b, zero, xs[0]))]

    _law(name)(law)


_through("QLinearAdd", 2, 0, lambda b, v: v[0] + v[1])
_through("QLinearMul", 2, 0, lambda b, v: v[0] * v[1])
_through("QLinearSigmoid", 1, 0, lambda b, v: op.Sigmoid(v[0]))
_through("QLinearLeakyRelu", 1, 0, lambda b, v: op.LeakyRelu(v[0], alpha=b.attr("alpha", 0.01)))
_through("QLinearWhere", 2, 1, lambda b, v: op.Where(operand(b, 0), v[0], v[1]))
_through("QLinearAveragePool", 1, 0, lambda b, v: op.AveragePool(v[0], **_attrs(b, _POOL)))
_through("QLinearGlobalAveragePool", 1, 0, lambda b, v: op.GlobalAveragePool(v[0], **_attrs(b, ())))


def _softmax(b: Binding, values: list[Any]) -> Var:
    rank = values[0].rank
    if rank is None or int(b.attr("axis", -1)) % rank != rank - 1:
        raise decline("Softmax along another axis than the last, which older opsets mean otherwise")
    return op.Softmax(values[0], axis=rank - 1)


_through("QLinearSoftmax", 1, 0, _softmax)


@_law("QLinearConcat")
def qlinear_concat(b: Binding, form: Form, note: Note) -> list[Any]:
    """y = quantize(concat(dequantize(x_1), dequantize(x_2), ...))"""
    starts = range(2, len(b.inputs), 3)
    xs = _quantized(b, *starts)
    values = [form.dequantize(v, _scale(b, i + 1)[0], b.operand(i + 2)) for v, i in zip(xs, starts)]
    zero = b.operand(1)
    return [form.quantize(op.Concat(*values, axis=b.attr("axis")), _scale(b, 0)[0], zero, _out_dtype(b, zero, xs[0]))]


# ---- QuantizeLinear and DequantizeLinear themselves, where only plain operators exist ------------------------------


@_law("DequantizeLinear", "")
def dequantize(b: Binding, form: Form, note: Note) -> list[Any]:
    """y = (x - z) * s"""
    x = operand(b, 0)
    if b.attr("block_size", 0) or x.dtype not in (*LIMITS, TensorProto.INT32):
        raise decline("blocks, or not 8 to 32 bit integers")
    return [PlainForm().dequantize(x, _scale(b, 1)[0], b.operand(2), b.attr("axis", 1))]


@_law("QuantizeLinear", "")
def quantize(b: Binding, form: Form, note: Note) -> list[Any]:
    """y = saturate(round(x / s) + z)"""
    x, zero = operand(b, 0), b.operand(2)
    dtype = TensorProto.UINT8 if zero is None else zero.dtype
    if b.attr("block_size", 0) or b.attr("output_dtype", 0) or dtype not in LIMITS or x.dtype != TensorProto.FLOAT:
        raise decline("blocks, or not from float32 to 8 or 16 bit integers")
    return [PlainForm().quantize(x, _scale(b, 1)[0], zero, dtype, b.attr("axis", 1))]
