"""The elements of small integer vectors as sizes: numbers, and expressions of the sizes from which
they are computed.

`Shape`, arithmetic, comparisons and operators that move elements are evaluated on arrays of sizes.
An element is None if its value is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, numpy_helper

from onnxgrad.ir import sizes as algebra
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.sizes import Dim
from onnxgrad.ir.types import Array, contradicts
from onnxgrad.ir.var import Var

# an array of Dim
Elements: TypeAlias = npt.NDArray[Any]

# no tensor has a higher rank, so a longer vector is not a shape; files declare vectors of 2^40
# elements
_LONGEST = 1 << 10
# integers wrap around beyond these
INT_LIMITS: dict[int, int] = {TensorProto.INT32: 1 << 31, TensorProto.INT64: 1 << 63}
_DTYPES = frozenset({*INT_LIMITS, TensorProto.BOOL})
# how many bindings of shape arithmetic are followed upwards
_DEPTH = 48


def sizes(var: Var, known: KnownElements | None = None) -> tuple[Dim, ...] | None:
    """The elements of an integer scalar or vector; None if their number is unknown."""
    ints = var.ints
    if ints is not None:
        return ints if len(ints) <= _LONGEST else None
    found = (KnownElements() if known is None else known).of(var)
    return None if found is None or found.ndim > 1 else tuple(found.reshape(-1).tolist())


class KnownElements:
    """Elements of values, each evaluated once. Valid as long as no value is redefined."""

    def __init__(self) -> None:
        self._known: dict[Var, Elements | None] = {}

    def of(self, var: Var, depth: int = _DEPTH) -> Elements | None:
        """The elements of an integer or boolean array; None if their number is unknown or they are
        too many.
        """
        if var.dtype not in _DTYPES:
            return None  # through a float a number may change
        if var not in self._known:
            self._known[var] = self._evaluated(var, depth)
        return self._known[var]

    def learn(self, var: Var, elements: Elements) -> None:
        """Remembers the elements of a value that no rule evaluates."""
        self._known[var] = elements

    def _evaluated(self, var: Var, depth: int) -> Elements | None:
        if var.is_constant:
            return _constant(var)
        b = var.definition
        rule = None if b is None or b.domain != "" or depth == 0 else _RULES.get(b.op)
        if b is None or rule is None or b.has_refs:
            return _unknown(var)
        if b.outputs[0] is not var and b.op != "Split":
            return _unknown(var)
        inputs = [None if v is None else self.of(v, depth - 1) for v in b.inputs]
        try:
            found = rule(b, inputs)
            if isinstance(found, list):
                found = found[b.outputs.index(var)]
            elif found is not None:
                found = _as_array(found)
        except (ValueError, IndexError, TypeError):  # what no run computes either
            found = None
        if found is None or found.size > _LONGEST:
            return _unknown(var)
        shape = var.shape
        if shape is not None and contradicts(shape, found.shape):
            return _unknown(var)
        return _within(found, var.dtype)


def _short(var: Var) -> list[int] | None:
    """Returns the sizes of a value if all are known and it has few elements, else None."""
    shape = var.shape
    sizes = [d for d in shape or () if isinstance(d, int)]
    if shape is None or len(sizes) < len(shape) or math.prod(sizes) > _LONGEST:
        return None
    return sizes


def _constant(var: Var) -> Elements | None:
    array = None if _short(var) is None else var.const
    if array is None:
        return None
    return (array.astype(int) if array.dtype == bool else array).astype(object)


def _array(values: Any, shape: Sequence[int]) -> Elements:
    """An array of Python objects."""
    flat = values
    for _ in range(len(shape) - 1):
        flat = [v for row in flat for v in row]
    made = np.empty(math.prod(shape), dtype=object)
    made[:] = flat if shape else [values]
    return made.reshape(shape)


def _unknown(var: Var) -> Elements | None:
    sizes = _short(var)
    return None if sizes is None else np.full(sizes, None, object)


def _within(found: Elements, dtype: int) -> Elements:
    """Returns the elements; those beyond the limits of the dtype become None."""
    limit = INT_LIMITS.get(dtype, 2)
    flat = found.reshape(-1).tolist()
    beyond = [i for i, d in enumerate(flat) if isinstance(d, int) and not -limit <= d < limit]
    if beyond:
        found = found.copy()
        found.flat[beyond] = None
    return found


def _numbers(elements: Elements | None) -> list[int] | None:
    """Returns all elements if they are numbers, else None."""
    flat = None if elements is None else elements.reshape(-1).tolist()
    return None if flat is None or any(not isinstance(d, int) for d in flat) else flat


# ---- rules: the elements of the first result -----------------------------------------------------

_Inputs: TypeAlias = Sequence[Elements | None]
_Rule: TypeAlias = Callable[[Binding, _Inputs], Elements | list[Elements] | None]


def _of_shape(b: Binding, inputs: _Inputs) -> Elements | None:
    shape = None if b.inputs[0] is None else b.inputs[0].shape
    if shape is None:
        return None
    part = shape[b.attr("start", 0) : b.attr("end", len(shape))]
    return _array(list(part), [len(part)])


def _of_size(b: Binding, inputs: _Inputs) -> Elements | None:
    shape = None if b.inputs[0] is None else b.inputs[0].shape
    return None if shape is None else _array(algebra.product(shape), [])


def _same(b: Binding, inputs: _Inputs) -> Elements | None:
    return inputs[0]


def _reshaped(b: Binding, inputs: _Inputs) -> Elements | None:
    """The elements in the shape of the result: the operators keep their order."""
    x, shape = inputs[0], b.out.shape
    if x is None:
        return None
    if shape is not None and all(isinstance(d, int) for d in shape):
        return x.reshape([int(str(d)) for d in shape])
    if b.op == "Unsqueeze" and x.ndim == 0:
        return x.reshape([1])
    if b.op == "Reshape" and b.out.rank in (0, 1):
        return x.reshape([-1] if b.out.rank else [])
    return None


def _cast(b: Binding, inputs: _Inputs) -> Elements | None:
    """Cast, and CastLike: the result has a dtype whose elements are followed."""
    source, x = b.inputs[0], inputs[0]
    if x is None and source is not None and source.is_constant and _short(source) is not None:
        x = _whole(source.const)
    if x is None or source is None or TensorProto.BOOL not in (b.out.dtype, source.dtype):
        return x
    return x if source.dtype == TensorProto.BOOL else _as_array(_is_nonzero(x, 0))


def _whole(array: Array | None) -> Elements | None:
    """The elements of a floating-point constant, if they are whole numbers."""
    if array is None or array.dtype.kind != "f" or not np.isfinite(array).all():
        return None
    return _as_array(_integer(array)) if (array == np.trunc(array)).all() else None


def _concat(b: Binding, inputs: _Inputs) -> Elements | None:
    parts = [x for x in inputs if x is not None]
    if len(parts) < len(inputs) or sum(x.size for x in parts) > _LONGEST:
        return None
    return np.concatenate(parts, axis=b.attr("axis"))


def _gather(b: Binding, inputs: _Inputs) -> Elements | None:
    x, index = inputs
    at = _numbers(index)
    if x is None or at is None or index is None:
        return None
    return x.take(np.array(at, int).reshape(index.shape), b.attr("axis", 0))


def _slice(b: Binding, inputs: _Inputs) -> Elements | None:
    x = inputs[0]
    if b.version < 10:
        bounds = [list(b.attr("starts")), list(b.attr("ends")), b.attr("axes"), None]
    else:
        bounds = [_numbers(e) for e in (*inputs[1:], None, None)][:4]
    given = len(b.inputs)
    starts, ends, axes, steps = bounds
    if x is None or starts is None or ends is None or len(starts) != len(ends):
        return None
    if b.version >= 10 and (
        (given > 3 and b.inputs[3] is not None and axes is None)
        or (given > 4 and b.inputs[4] is not None and steps is None)
    ):
        return None
    whole = [slice(None)] * x.ndim
    count = len(starts)
    for start, end, axis, step in zip(
        starts, ends, axes or range(count), steps or [1] * count, strict=True
    ):
        if step < 0 and start < -x.shape[axis]:
            return None  # ONNX starts at the first element then, Python before it
        far = step < 0 and end < -x.shape[axis]
        whole[axis] = slice(start, None if far else end, step)
    return x[tuple(whole)]


def _split(b: Binding, inputs: _Inputs) -> list[Elements] | None:
    """The parts, one for each result."""
    x, count = inputs[0], len(b.outputs)
    axis = b.attr("axis", 0)
    parts = b.attr("split") if b.operand(1) is None else _numbers(inputs[1])
    if x is None or (parts is None and b.operand(1) is not None):
        return None
    if parts is None:
        parts = [-(-x.shape[axis] // count)] * count
    found: list[Elements] = np.split(x, np.cumsum(parts)[:-1], axis=axis)
    return found if len(found) == count else None


def _elementwise(function: Callable[..., Dim], operands: int = 1) -> _Rule:
    """The rule of an operator of this many operands, which broadcast from opset 7 on."""
    each: Any = np.frompyfunc(function, operands, 1)

    def rule(b: Binding, inputs: _Inputs) -> Elements | None:
        if any(x is None for x in inputs) or (operands > 1 and b.version < 7):
            return None
        made: Elements | None = each(*inputs)
        return made

    return rule


def _folded(function: Callable[[Dim, Dim], Dim]) -> _Rule:
    """The rule of an operator of one or more operands, which broadcast from opset 7 on."""
    two: Any = np.frompyfunc(function, 2, 1)

    def rule(b: Binding, inputs: _Inputs) -> Elements | None:
        if b.version < 7 or any(x is None for x in inputs):
            return None
        made: Elements | None = reduce(two, inputs)
        return made

    return rule


def _as_array(found: Any) -> Elements:
    """Returns an array; numpy returns a single object as it is."""
    return found if isinstance(found, np.ndarray) else _array(found, [])


def _is_same(a: Dim, b: Dim) -> bool:
    return a is not None and a == b


# comparisons of two sizes: 1, 0, or None if the run decides


def _equal(a: Dim, b: Dim) -> Dim:
    return 1 if _is_same(a, b) else 0 if algebra.differ(a, b) else None


def _not_equal(a: Dim, b: Dim) -> Dim:
    return _inverted(_equal(a, b))


def _not_below(a: Dim, b: Dim) -> Dim:
    below = algebra.at_least(b, algebra.add(a, 1))
    return 1 if algebra.at_least(a, b) else 0 if below else None


def _below(a: Dim, b: Dim) -> Dim:
    return _inverted(_not_below(a, b))


def _not_above(a: Dim, b: Dim) -> Dim:
    return _not_below(b, a)


def _above(a: Dim, b: Dim) -> Dim:
    return _below(b, a)


def _both(a: Dim, b: Dim) -> Dim:
    return 0 if a == 0 or b == 0 else 1 if a == b == 1 else None


def _either(a: Dim, b: Dim) -> Dim:
    return 1 if a == 1 or b == 1 else 0 if a == b == 0 else None


def _chosen(condition: Dim, yes: Dim, no: Dim) -> Dim:
    if condition is None:
        return yes if yes == no else None
    return yes if condition else no


def _negated(x: Dim) -> Dim:
    return algebra.subtract(0, x)


def _inverted(x: Dim) -> Dim:
    return None if x is None else int(not x)


def _absolute(x: Dim) -> Dim:
    if isinstance(x, int):
        return abs(x)
    return x if algebra.at_least(x, 0) else None


def _remainder(a: Dim, b: Dim) -> Dim:
    """Returns the remainder if no operand is negative: `fmod` then makes no difference."""
    natural = algebra.at_least(a, 0) and algebra.at_least(b, 1)
    return algebra.remainder(a, b) if natural else None


def _reduced(function: Callable[[Dim, Dim], Dim], start: Dim) -> _Rule:
    """A reduction of all elements."""

    def rule(b: Binding, inputs: _Inputs) -> Elements | None:
        x = inputs[0]
        axes = b.attr("axes") if len(inputs) < 2 else _numbers(inputs[1])
        some = axes is not None and len(axes) > 0
        if x is None or (len(inputs) > 1 and b.inputs[1] is not None and axes is None):
            return None
        if (some and x.ndim != 1) or (not some and b.attr("noop_with_empty_axes")):
            return None
        if start is None and not x.size:
            return None
        flat: list[Dim] = x.reshape(-1).tolist()
        total: Dim = reduce(function, flat if start is None else [start, *flat])
        return _array([total], [1]).reshape([1] * x.ndim if b.attr("keepdims", 1) else [])

    return rule


def _filled(b: Binding, inputs: _Inputs) -> Elements | None:
    shape = _numbers(inputs[0])
    value = b.attr("value")
    number = 0 if value is None else numpy_helper.to_array(value).reshape(-1)[0].item()
    if shape is None or not isinstance(number, int) or _too_many(shape):
        return None
    return np.full(shape, int(number), object)


def _too_many(shape: Sequence[int]) -> bool:
    return any(not 0 <= d <= _LONGEST for d in shape) or math.prod(shape) > _LONGEST


def _expanded(b: Binding, inputs: _Inputs) -> Elements | None:
    x, shape = inputs[0], _numbers(inputs[1])
    if x is None or shape is None or _too_many(shape):
        return None
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(shape)))


def _tiled(b: Binding, inputs: _Inputs) -> Elements | None:
    x, repeats = inputs[0], _numbers(inputs[1])
    if x is None or repeats is None or len(repeats) != x.ndim:
        return None
    return None if _too_many([*repeats, x.size]) else np.tile(x, repeats)


def _transposed(b: Binding, inputs: _Inputs) -> Elements | None:
    x = inputs[0]
    return None if x is None else np.transpose(x, b.attrs.get("perm"))


def _range(b: Binding, inputs: _Inputs) -> Elements | None:
    bounds = [_numbers(x) for x in inputs]
    if any(n is None or len(n) != 1 for n in bounds):
        return None
    values = range(*(n[0] for n in bounds if n is not None))
    return _array(list(values), [len(values)]) if len(values) <= _LONGEST else None


_is_nonzero: Any = np.frompyfunc(_not_equal, 2, 1)
_integer: Any = np.frompyfunc(int, 1, 1)

_RULES: dict[str, _Rule] = {
    "Shape": _of_shape,
    "Size": _of_size,
    "Identity": _same,
    **dict.fromkeys(("Flatten", "Reshape", "Squeeze", "Unsqueeze"), _reshaped),
    **dict.fromkeys(("Cast", "CastLike"), _cast),
    "Concat": _concat,
    "Gather": _gather,
    "Slice": _slice,
    "Split": _split,
    "Transpose": _transposed,
    "Expand": _expanded,
    "Tile": _tiled,
    "ConstantOfShape": _filled,
    "Range": _range,
    "Add": _folded(algebra.add),
    "Sub": _folded(algebra.subtract),
    "Mul": _folded(algebra.multiply),
    "Div": _folded(algebra.divide),
    "Max": _folded(algebra.maximum),
    "Min": _folded(algebra.minimum),
    "Mod": _elementwise(_remainder, 2),
    "Neg": _elementwise(_negated),
    "Abs": _elementwise(_absolute),
    "Not": _elementwise(_inverted),
    "And": _folded(_both),
    "Or": _folded(_either),
    "Where": _elementwise(_chosen, 3),
    "Equal": _elementwise(_equal, 2),
    "Less": _elementwise(_below, 2),
    "LessOrEqual": _elementwise(_not_above, 2),
    "Greater": _elementwise(_above, 2),
    "GreaterOrEqual": _elementwise(_not_below, 2),
    "ReduceSum": _reduced(algebra.add, 0),
    "ReduceProd": _reduced(algebra.multiply, 1),
    "ReduceMax": _reduced(algebra.maximum, None),
    "ReduceMin": _reduced(algebra.minimum, None),
}
