"""The definition of each quantized operator in terms of `Form`: the laws behind `legalize`.

A law takes the operands by the names that their operator gives them, with `_zero` for
`_zero_point`, and returns the new value of each output, in order. The definitions are those of the
ONNX schemas and of onnxruntime's contrib operators (docs/ContribOperators.md there).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from onnx import TensorProto

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var
from onnxgrad.laws.quantized.forms import (
    LIMITS,
    Form,
    PlainForm,
    Shortfall,
    accumulated,
    along,
    centred,
    rounded,
    saturated,
    shortfall,
)
from onnxgrad.rewrite.trace import decline, decline_if

Note = Callable[[Shortfall], None]


@dataclass(frozen=True)
class QuantizedCall:
    """One operator to be put in another form; `note` takes what float32 may not hold exactly."""

    binding: Binding
    form: Form
    note: Note

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute as written, else the schema's default, else `default`."""
        return self.binding.attr(name, default)

    def written(self, *names: str) -> dict[str, Any]:
        """Those of the attributes that are written. Declines where the channels come last."""
        decline_if(
            self.attr("channels_last", 0), "channels_last is 1, which plain operators do not know"
        )
        return {n: self.binding.attrs[n] for n in names if n in self.binding.attrs}

    def sums(
        self,
        x: Var,
        x_zero: Var | None,
        w: Var,
        w_zero: Var | None,
        axes: tuple[int, ...],
        bias: Var | None = None,
    ) -> None:
        """Note that products of `x` with `w` are summed in float32 over these axes of `w`, where
        it may round them.
        """
        short = shortfall(accumulated(x, x_zero, w, w_zero, axes, bias))
        if short is not None:
            self.note(short)


def operands_of(
    b: Binding, names: Sequence[str], optional: Collection[str] = ()
) -> list[Var | None]:
    """The operands in the order of their names, which say what they are.

    `x_scale` is float32, `x_zero` may be absent, an `x` that has one is of 8 or 16 bits, and
    everything but what is `optional` must be there and typed. Declines where it is not so.
    """
    found = []
    for i, name in enumerate(names):
        v = b.operand(i)
        found.append(v)
        if name.endswith("_zero") or (
            name in optional and (v is None or not name.endswith("_scale"))
        ):
            continue
        if v is None or not v.dtype or v.shape is None:
            raise decline(f"the operand {name} is missing or its type is unknown")
        decline_if(
            name.endswith("_scale") and v.dtype != TensorProto.FLOAT, "a scale that is not float32"
        )
        decline_if(f"{name}_zero" in names and v.dtype not in LIMITS, "not 8 or 16 bit integers")
    return found


CONTRIB = "com.microsoft"
LAWS: dict[tuple[str, str], Callable[[Binding, Form, Note], list[Any]]] = {}
# operators that no graph of other operators computes: why, and what to do. Measured with
# onnxruntime 1.31: a batch of 2 to 64 rows moves by 0.007 to 0.19 between one and two threads; one
# thread quantises all rows of a step alike.
WITHOUT_FORM: dict[tuple[str, str], str] = {
    (CONTRIB, "DynamicQuantizeLSTM"): "onnxruntime quantises the state anew at every step, by "
    "those rows of the batch that a thread of it has: the result depends on the number of threads, "
    "and no graph of other operators computes it; take the float model with LSTM that it was made "
    "from",
}

_CONV = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
_POOL = ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")

Law = Callable[..., list[Any]]


class Quantized(NamedTuple):
    """Integers, their scale and their zero point: three operands."""

    value: Var
    scale: Var
    zero: Var | None


# the names of the operands that one parameter of a law stands for: one, or three of a Quantized
Names = tuple[str, ...]


def _triple(name: str) -> Names:
    return (name, f"{name}_scale", f"{name}_zero")


def _grouped(values: Sequence[Any], groups: Sequence[Names]) -> list[Any]:
    left = iter(values)
    return [next(left) if len(g) == 1 else Quantized(*islice(left, 3)) for g in groups]


def _law(name: str, domain: str = CONTRIB) -> Callable[[Law], Law]:
    def keep(law: Law) -> Law:
        _, *parameters = inspect.signature(law).parameters.values()
        groups = [_triple(p.name) if p.annotation == "Quantized" else (p.name,) for p in parameters]
        _keep(name, domain, law, groups, {p.name for p in parameters if p.default is None})
        return law

    return keep


def _keep(
    name: str, domain: str, law: Law, groups: Sequence[Names], optional: Collection[str] = ()
) -> None:
    names = [n for group in groups for n in group]

    def applied(b: Binding, form: Form, note: Note) -> list[Any]:
        return law(QuantizedCall(b, form, note), *_grouped(operands_of(b, names, optional), groups))

    LAWS[domain, name] = applied


def _dtype(zero: Var | None, like: Var) -> int:
    return zero.dtype if zero is not None and zero.dtype in LIMITS else like.dtype


# ---- products: plain arithmetic accumulates integers, as the kernels do --------------------------


@_law("QLinearConv", "")
@_law("QLinearConv")
def qlinear_conv(
    call: QuantizedCall,
    x: Quantized,
    w: Quantized,
    y_scale: Var,
    y_zero: Var | None,
    bias: Var | None = None,
) -> list[Any]:
    """y = quantize(conv(x - x_zero, w - w_zero) + bias) * x_scale w_scale / y_scale"""
    form, attrs, dtype = call.form, call.written(*_CONV), _dtype(y_zero, x.value)
    if isinstance(form, PlainForm):
        call.sums(x.value, x.zero, w.value, w.zero, tuple(range(1, len(w.value.shape or ()))), bias)
        wide = None if bias is None else op.Cast(bias, to=TensorProto.FLOAT)
        sums = op.Conv(centred(x.value, x.zero), centred(w.value, w.zero, 0), wide, **attrs)
        ratio = along(x.scale, None, x.value) * along(w.scale, 0, w.scale)
        ratio = ratio / along(y_scale, None, x.value)
        return [saturated(rounded(sums * along(ratio, 1, sums)), y_zero, dtype)]
    wide = None if bias is None else form.dequantize(bias, _joint(x.scale, w.scale), None, 0)
    y = op.Conv(form.dequantize(*x), form.dequantize(*w, 0), wide, **attrs)
    return [form.quantize(y, y_scale, y_zero, dtype)]


def _joint(a_scale: Var, b_scale: Var) -> Var:
    """The scale of a sum of products; a vector when one of them is."""
    return along(a_scale, None, a_scale) * (
        b_scale if b_scale.shape != (1,) else along(b_scale, None, b_scale)
    )


@_law("QLinearMatMul", "")
def qlinear_matmul(
    call: QuantizedCall, a: Quantized, b: Quantized, y_scale: Var, y_zero: Var | None
) -> list[Any]:
    """y = quantize((a - a_zero) @ (b - b_zero) * a_scale b_scale / y_scale)"""
    form, dtype = call.form, _dtype(y_zero, a.value)
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


@_law("MatMulInteger", "")
def matmul_integer(
    call: QuantizedCall, a: Var, b: Var, a_zero: Var | None, b_zero: Var | None
) -> list[Any]:
    """y = (a - a_zero) @ (b - b_zero)"""
    return [op.Cast(_product(call, a, b, a_zero, b_zero), to=TensorProto.INT32)]


@_law("ConvInteger", "")
def conv_integer(
    call: QuantizedCall, x: Var, w: Var, x_zero: Var | None, w_zero: Var | None
) -> list[Any]:
    """y = conv(x - x_zero, w - w_zero)"""
    call.sums(x, x_zero, w, w_zero, tuple(range(1, len(w.shape or ()))))
    y = op.Conv(centred(x, x_zero), centred(w, w_zero, 0), **call.written(*_CONV))
    return [op.Cast(y, to=TensorProto.INT32)]


@_law("MatMulIntegerToFloat")
def matmul_integer_to_float(
    call: QuantizedCall, a: Var, b: Var, a_scale: Var, b_scale: Var,
    a_zero: Var | None, b_zero: Var | None, bias: Var | None = None,
) -> list[Any]:  # fmt: skip
    """y = (a - a_zero) @ (b - b_zero) * a_scale b_scale + bias"""
    y = _product(call, a, b, a_zero, b_zero) * (along(a_scale, None, a) * along(b_scale, -1, b))
    return [y if bias is None else y + bias]


@_law("QGemm")
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
        joint = _joint(a.scale, b.scale) * alpha
        call.sums(a.value, a.zero, b.value, b.zero, (1 - columns,), c)
        left, right = centred(a.value, a.zero), centred(b.value, b.zero, columns)
        bias: Any = 0.0 if c is None else op.Cast(c, to=TensorProto.FLOAT)
        y = op.Gemm(left, right, bias, **turned) * joint
    else:
        left, right = form.dequantize(*a), form.dequantize(*b, columns)
        bias = 0.0 if c is None else form.dequantize(c, _joint(a.scale, b.scale), None, -1)
        y = op.Gemm(left, right, bias, **turned, alpha=alpha, beta=alpha)
    return [y if y_scale is None else form.quantize(y, y_scale, y_zero, _dtype(y_zero, a.value))]


@_law("DynamicQuantizeLinear", "")
def dynamic_quantize(call: QuantizedCall, x: Var) -> list[Any]:
    """y = quantize(x, s, z), s = (max(x, 0) - min(x, 0)) / 255, z = round(-min / s)"""
    low = op.Min(op.ReduceMin(x, keepdims=0), 0.0)
    high = op.Max(op.ReduceMax(x, keepdims=0), 0.0)
    span = (high - low) / 255.0
    # nothing but zeros: any scale will do, and onnxruntime's is 1
    scale = op.Where(op.Equal(span, 0.0), 1.0, span)
    zero = saturated(rounded((0.0 - low) / scale), None, TensorProto.UINT8)
    return [call.form.quantize(x, scale, zero, TensorProto.UINT8), scale, zero]


# ---- elementwise and the like: dequantize, compute, quantize -------------------------------------


def _through(name: str, compute: Callable[..., Any], plain: Sequence[str] = ()) -> None:
    """Register y = quantize(compute(call, dequantize(x), ...)).

    The operands are those that `compute` names, each with its scale and zero point, except the
    `plain` ones in front, and then the scale and the zero point of y.
    """
    quantized = list(inspect.signature(compute).parameters)[1 + len(plain) :]

    def law(call: QuantizedCall, *operands: Any) -> list[Any]:
        *given, y_scale, y_zero = operands
        values = [call.form.dequantize(*x) if isinstance(x, Quantized) else x for x in given]
        dtype = _dtype(y_zero, given[len(plain)].value)
        return [call.form.quantize(compute(call, *values), y_scale, y_zero, dtype)]

    groups = [*((n,) for n in plain), *map(_triple, quantized), ("y_scale",), ("y_zero",)]
    _keep(name, CONTRIB, law, groups)


def _softmax(call: QuantizedCall, x: Var) -> Var:
    rank = x.rank
    if not rank or int(call.attr("axis", -1)) % rank != rank - 1:
        raise decline("Softmax along another axis than the last, which older opsets mean otherwise")
    return op.Softmax(x, axis=rank - 1)


_through("QLinearAdd", lambda call, a, b: a + b)
_through("QLinearMul", lambda call, a, b: a * b)
_through("QLinearSigmoid", lambda call, x: op.Sigmoid(x))
_through("QLinearLeakyRelu", lambda call, x: op.LeakyRelu(x, alpha=call.attr("alpha", 0.01)))
_through(
    "QLinearWhere", lambda call, condition, a, b: op.Where(condition, a, b), plain=["condition"]
)
_through("QLinearAveragePool", lambda call, x: op.AveragePool(x, **call.written(*_POOL)))
_through("QLinearGlobalAveragePool", lambda call, x: op.GlobalAveragePool(x, **call.written()))
_through("QLinearSoftmax", _softmax)


@_law("QLinearConcat")
def qlinear_concat(call: QuantizedCall, y_scale: Var, y_zero: Var | None) -> list[Any]:
    """y = quantize(concat(dequantize(x_1), dequantize(x_2), ...)), each x with its scale and
    zero point
    """
    form, groups = (
        call.form,
        [_triple(f"x{i}") for i in range(1, len(call.binding.inputs) // 3 + 1)],
    )
    names = ["y_scale", "y_zero", *(name for group in groups for name in group)]
    xs = _grouped(operands_of(call.binding, names)[2:], groups)
    y = op.Concat(*(form.dequantize(*x) for x in xs), axis=call.attr("axis"))
    return [form.quantize(y, y_scale, y_zero, _dtype(y_zero, xs[0].value))]


# ---- QuantizeLinear and DequantizeLinear themselves, where only plain operators exist ------------


@_law("DequantizeLinear", "")
def dequantize(
    call: QuantizedCall, x: Var, x_scale: Var, zero_point: Var | None = None
) -> list[Any]:
    """y = (x - zero_point) * x_scale"""
    decline_if(
        call.attr("block_size", 0) or x.dtype not in (*LIMITS, TensorProto.INT32),
        "blocks, or not 8 to 32 bit integers",
    )
    return [PlainForm().dequantize(x, x_scale, zero_point, call.attr("axis", 1))]


@_law("QuantizeLinear", "")
def quantize(call: QuantizedCall, x: Var, y_scale: Var, y_zero: Var | None) -> list[Any]:
    """y = saturate(round(x / y_scale) + y_zero)"""
    dtype = TensorProto.UINT8 if y_zero is None else y_zero.dtype
    decline_if(
        call.attr("block_size", 0) or call.attr("output_dtype", 0) or dtype not in LIMITS,
        "blocks, or not to 8 or 16 bit integers",
    )
    decline_if(x.dtype != TensorProto.FLOAT, "not from float32")
    return [PlainForm().quantize(x, y_scale, y_zero, dtype, call.attr("axis", 1))]
