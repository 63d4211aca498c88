"""Evaluates bindings over constants in numpy where it is exact to the bit: data movement, integers,
IEEE + - * / sqrt. Also checks whether a new constant keeps the digits of its dtype.

Operators that two libraries may round differently (Exp, Erf, reductions, half precision) are left
to onnxruntime.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto

from onnxgrad.ir import domains
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.emit import constant
from onnxgrad.ir.traced_arrays import Traced, plain, predicate
from onnxgrad.ir.type_inference.shape_arithmetic import sizes
from onnxgrad.ir.types import (
    Array,
    TensorType,
    byte_count,
    element_count,
    is_static,
    numpy_dtype,
)
from onnxgrad.ir.var import Var

_Operands = Sequence[Any]

# operators whose results consist of elements of their operands, so nothing is rounded
MOVES = frozenset((*domains.MOVES, "Concat", "ConstantOfShape", "Where"))


def evaluate(b: Binding, operands: _Operands | None = None) -> Array | None:
    """The value of a binding over constants, or over `operands`; None if numpy may not return the
    same bits.
    """
    rule = _RULES.get(b.op)
    if rule is None:
        return None
    if operands is None:
        operands = [None if v is None else v.const for v in b.inputs]
    if any(v is not None and a is None for v, a in zip(b.inputs, operands, strict=True)):
        return None
    try:
        with np.errstate(all="ignore"):
            value = rule(b, operands)
    except (ValueError, IndexError, TypeError):
        return None  # invalid operands: the operator fails at run time
    if value is None:
        return None
    array: Any = value if isinstance(value, Traced) else np.asarray(value)
    wanted = b.out.shape
    if array.dtype != numpy_dtype(b.out.dtype) or (
        wanted is not None and len(wanted) != array.ndim
    ):
        return None
    # numpy accepts operands that ONNX does not: reject a result whose size is not as inferred
    if any(isinstance(w, int) and w != d for w, d in zip(wanted or (), array.shape, strict=False)):
        return None
    in_order = isinstance(array, Traced) or array.flags.c_contiguous
    return array if in_order else np.array(array, order="C")


def _reshape(b: Binding, o: _Operands) -> Any:
    sizes = [int(d) for d in o[1]]
    if not b.attr("allowzero", 0):
        sizes = [o[0].shape[i] if d == 0 else d for i, d in enumerate(sizes)]
    return o[0].reshape(sizes)


def _axes(b: Binding, o: _Operands) -> tuple[int, ...] | None:
    if len(o) > 1 and o[1] is not None:
        return tuple(int(a) for a in o[1].reshape(-1))
    axes = b.attr("axes")
    return None if axes is None else tuple(axes)


def _squeeze(b: Binding, o: _Operands) -> Any:
    axes = _axes(b, o)
    # an empty list of axes means none of them to numpy and every one to onnxruntime
    return None if axes == () else np.squeeze(o[0], axes)


def _slice(b: Binding, o: _Operands) -> Any:
    if len(o) < 3:
        return None  # bounds as attributes: opset 9 and older
    axes = range(len(o[1])) if len(o) < 4 or o[3] is None else o[3]
    steps = [1] * len(o[1]) if len(o) < 5 or o[4] is None else o[4]
    index: list[slice] = [slice(None)] * o[0].ndim
    for start, end, axis, step in zip(o[1], o[2], axes, steps, strict=True):
        size = o[0].shape[int(axis)]
        # a start before the first element stays there in ONNX; numpy would go on to "before the
        # first"
        first = max(int(start), -size) if step < 0 else int(start)
        index[int(axis)] = slice(first, int(end), int(step))
    return o[0][tuple(index)]


def filling(b: Binding) -> Array:
    """The element of which a ConstantOfShape makes its result."""
    value = b.attr("value")
    return np.zeros(1, np.float32) if value is None else b.block.program.array(value)


def _cast(b: Binding, o: _Operands) -> Any:
    source, target = o[0].dtype, numpy_dtype(b.attr("to"))
    # libraries differ in rounding to or from 8 bits and less, and for numbers out of an integer's
    # range
    exact = source.kind in "biu" and target.kind in "biuf" and target.itemsize >= 4
    exact = exact or (
        source.kind == "f" and target.kind == "f" and min(source.itemsize, target.itemsize) >= 4
    )
    return o[0].astype(target) if exact else None


def truncated(b: Binding) -> Array | None:
    """The value of a Cast of constant floats to integers that can hold them, or to booleans: every
    library truncates in the same way. None for any other binding.
    """
    x = b.operand(0)
    if not b.is_op("Cast") or x is None or byte_count(x.type) is None:
        return None
    a: Any = plain(x.const)
    target: Any = numpy_dtype(b.attr("to"))
    if a is None or a.dtype.kind != "f" or a.dtype.itemsize < 4 or target.kind not in "biu":
        return None
    if target.kind == "b":
        return np.asarray(a != 0)  # NaN is true
    limits = np.iinfo(target)
    fits = bool(((a >= float(limits.min)) & (a < float(limits.max))).all())
    return a.astype(target) if fits else None


def product_of_zeros(b: Binding) -> Array | None:
    """The value of a Gemm of constants with zeros on one side: its addend, in every library. None
    for any other binding, and if a zero is added, whose sign would depend on the products.
    """
    if not b.is_op("Gemm") or len(b.inputs) != 3 or b.attr("beta", 1.0) != 1.0:
        return None
    left, right, c = (None if v is None else plain(v.const) for v in b.inputs)
    if left is None or right is None or c is None or c.dtype.name not in ("float32", "float64"):
        return None
    finite = np.isfinite(b.attr("alpha", 1.0)) and all(np.isfinite(a).all() for a in (left, right))
    if not finite or not left.size or (left.any() and right.any()):
        return None
    shape = b.out.shape
    if not (np.isfinite(c) & (c != 0)).all() or not is_static(shape):
        return None
    try:
        return np.ascontiguousarray(np.broadcast_to(c, shape))
    except ValueError:
        return None  # invalid: it fails at run time


def _plain(a: Any) -> bool:
    return a.dtype.kind in "iu" or (a.dtype.kind == "f" and a.dtype.itemsize >= 4)


def _arithmetic(
    function: Callable[..., Any], integers: bool = True
) -> Callable[[Binding, _Operands], Any]:
    def rule(b: Binding, o: _Operands) -> Any:
        fits = all(_plain(a) and (integers or a.dtype.kind == "f") for a in o)
        return function(*o) if fits else None

    return rule


def _compare(function: Callable[..., Any]) -> Callable[[Binding, _Operands], Any]:
    return lambda b, o: function(*o) if all(_plain(a) or a.dtype.kind == "b" for a in o) else None


_RULES: dict[str, Callable[[Binding, _Operands], Any]] = {
    "Transpose": lambda b, o: np.transpose(o[0], b.attr("perm")),
    "Reshape": _reshape,
    "Squeeze": _squeeze,
    "Unsqueeze": lambda b, o: None if (a := _axes(b, o)) is None else np.expand_dims(o[0], a),
    "Concat": lambda b, o: np.concatenate(o, axis=b.attr("axis")),
    "Gather": lambda b, o: np.take(o[0], o[1], axis=b.attr("axis", 0)),
    "Slice": _slice,
    "Expand": lambda b, o: np.broadcast_to(
        o[0], np.broadcast_shapes(o[0].shape, tuple(int(d) for d in o[1]))
    ),
    "ConstantOfShape": lambda b, o: np.full([int(d) for d in o[0]], filling(b).reshape(-1)[0]),
    "Cast": _cast,
    "CastLike": lambda b, o: o[0].astype(o[1].dtype) if o[0].dtype == o[1].dtype else None,
    "Shape": lambda b, o: np.array(
        o[0].shape[b.attr("start", 0) : b.attr("end", o[0].ndim)], np.int64
    ),
    "Range": lambda b, o: (
        np.arange(o[0], o[1], o[2], dtype=o[0].dtype)
        if all(a.dtype.kind == "i" for a in o) and o[2] != 0
        else None
    ),
    "Add": _arithmetic(np.add),
    "Sub": _arithmetic(np.subtract),
    "Mul": _arithmetic(np.multiply),
    "Div": _arithmetic(np.divide, integers=False),
    "Neg": _arithmetic(np.negative),
    "Sqrt": _arithmetic(np.sqrt, integers=False),
    "Equal": _compare(np.equal),
    "Less": _compare(np.less),
    "Greater": _compare(np.greater),
    "GreaterOrEqual": _compare(np.greater_equal),
    "LessOrEqual": _compare(np.less_equal),
    "Not": lambda b, o: np.logical_not(o[0]),
    "And": lambda b, o: np.logical_and(o[0], o[1]),
    "Or": lambda b, o: np.logical_or(o[0], o[1]),
    "Where": lambda b, o: np.where(o[0], o[1], o[2]),
}
# the operators that `evaluate` supports
EVALUATED = frozenset(_RULES)


# the distance from 1 to the next larger number
EPSILON: dict[int, float] = {
    TensorProto.BFLOAT16: 2.0**-7,
    TensorProto.FLOAT16: 2.0**-10,
    TensorProto.FLOAT: 2.0**-23,
    TensorProto.DOUBLE: 2.0**-52,
}
# the smallest positive normal number
NORMAL: dict[int, float] = {
    TensorProto.BFLOAT16: 2.0**-126,
    TensorProto.FLOAT16: 2.0**-14,
    TensorProto.FLOAT: 2.0**-126,
    TensorProto.DOUBLE: 2.0**-1022,
}
# the most bindings over constants that are evaluated for one value
_REACH = 100


@predicate
def reason_of_rounding(exact: Any, dtype: int, name: str) -> str | None:
    """Why rounding `exact` to the float `dtype` loses more than its last digit, or None.

    The error is compared with each slice along each axis, so that a large channel does not hide the
    error of a small one. Only dead channels may vanish, which trained networks have many of: they
    lie below the last digit of the last digit of the whole array.
    """
    exact = np.asarray(exact)
    return reason_in_parts([exact], lambda: exact, dtype, name)


def reason_in_parts(
    parts: Iterable[Array], whole: Callable[[], Array], dtype: int, name: str
) -> str | None:
    """As `reason_of_rounding`, for an array in parts. Needs it as a whole only if numbers are below
    the smallest normal one.
    """
    narrow_dtype = numpy_dtype(dtype)
    with np.errstate(all="ignore"):
        some_small = False
        for part in parts:
            narrow = part.astype(narrow_dtype)
            if not np.isfinite(narrow).all():
                return f"{name} is not finite"
            some_small |= bool(((np.abs(narrow) < NORMAL[dtype]) & (part != 0)).any())
        if not some_small:
            return None  # each element is right to half of its last digit, and so is every slice
        exact = whole()
        wide = exact.astype(np.longdouble)
        rounded = exact.astype(narrow_dtype).astype(np.longdouble)
        error = np.square(rounded - wide)
        size = np.square(wide)
        epsilon = EPSILON[dtype]
        least = epsilon**4 * size.sum()
        for axis in range(wide.ndim) if wide.ndim else [None]:
            others = tuple(i for i in range(wide.ndim) if i != axis)
            if (error.sum(others) > epsilon**2 * np.maximum(size.sum(others), least)).any():
                return f"{name} nears the smallest number of its dtype and would lose digits"
    return None


def fixed_value(v: Var) -> Array | None:
    """The value of a constant or of unfolded bindings over constants; None if numpy may return
    other bits.
    """
    if v.is_constant:
        return v.const
    bindings = _over_constants(v)
    found: dict[Var | None, Array | None] = {None: None}
    for b in bindings or ():
        found.update({u: u.const for u in b.inputs if u is not None and u.is_constant})
        operands = [found[u] for u in b.inputs]
        if any(u is not None and a is None for u, a in zip(b.inputs, operands, strict=True)):
            return None
        found[b.out] = evaluate(b, operands)
    return found.get(v)


def _over_constants(v: Var) -> list[Binding] | None:
    """The bindings that compute a value from constants, operands first; None at the first that
    reads another value, or if there are more than `_REACH`.
    """
    ordered: dict[Binding, None] = {}
    entered: set[Binding] = set()
    work = [v]
    while work:
        b = work[-1].definition
        if b is None or b.domain != "" or b.blocks or b.has_refs or len(b.outputs) != 1:
            return None
        if b in entered:
            ordered.setdefault(b)
            work.pop()
            continue
        entered.add(b)
        if len(entered) > _REACH:
            return None
        work += [u for u in b.inputs if u is not None and not u.is_constant]
    return list(ordered)


# larger constants of a function body are computed by the runtime
_FOLDED_BYTES = 1 << 12


def folded(b: Binding) -> Var | None:
    """The small constant that a binding computes if sizes are known (shape arithmetic, numbers);
    None otherwise.
    """
    if b.blocks or b.domain != "" or b.out.returned or not isinstance(b.out.type, TensorType):
        return None
    array: Array | None = None
    if b.op == "Constant":
        array = b.out.const
    elif b.op == "Size" and b.inputs[0] is not None:
        count = element_count(b.inputs[0].shape)
        array = None if count is None else np.array(count, np.int64)
    elif b.op == "CastLike" and b.inputs[0] is not None and b.out.dtype:
        array = _as_dtype(b.inputs[0].const, b.out.dtype) if _is_short(b.inputs[0]) else None
    elif b.out.dtype == TensorProto.INT64 and b.out.rank in (0, 1):
        known = sizes(b.out)
        if known is not None and all(isinstance(d, int) for d in known):
            array = np.array(known, np.int64).reshape([len(known)] if b.out.rank else [])
    if array is None and all(v is None or v.is_constant for v in b.inputs) and _is_small(b):
        array = evaluate(b)
    return (
        None
        if array is None or array.dtype == object or array.nbytes > _FOLDED_BYTES
        else constant(array)
    )


def _is_small(b: Binding) -> bool:
    """Whether the result is small enough to evaluate. A result of unknown length comes from a Range
    or the like.
    """
    size = element_count(b.out.shape) or 0
    return size <= _FOLDED_BYTES and all(v is None or _is_short(v) for v in b.inputs)


def _is_short(v: Var) -> bool:
    size = element_count(v.shape)
    return size is not None and size <= _FOLDED_BYTES


def _as_dtype(array: Array | None, dtype: int) -> Array | None:
    """The same numbers in another dtype; None unless it represents each of them exactly."""
    target = numpy_dtype(dtype)
    if array is None or array.dtype.kind not in "biuf" or target.kind not in "biufV":
        return None
    with np.errstate(all="ignore"):
        cast = array.astype(target)
    return cast if np.array_equal(cast.astype(array.dtype), array) else None
