"""Symbols carried through shape arithmetic: what an int64 vector says about sizes, and shapes made from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnx import NodeProto, TensorProto, helper

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.types import Dim, Shape, broadcast_shapes, same_dim
from onnxgrad.ir.var import Var

# the operators whose results `refine` may know better than onnx
REFINED = frozenset(
    {"Reshape", "Expand", "ConstantOfShape", "Tile", "Slice", "Pad", "Range", "ScatterND", "ScatterElements"}
)

# exporters write INT32_MAX or INT64_MAX for "to the end"
_END = (1 << 31) - 1

# no tensor has a higher rank, so that a longer vector is no shape; files declare vectors of 2^40 elements
_LONGEST = 1 << 10
# beyond these, machines wrap around
_LIMITS: dict[int, int] = {TensorProto.INT32: 1 << 31, TensorProto.INT64: 1 << 63}

# how many bindings of shape arithmetic are followed upwards
_DEPTH = 24


def sizes(var: Var) -> tuple[Dim, ...] | None:
    """The elements of a small integer vector (or scalar) as dimensions; None when its length is unknown."""
    return _Vectors().sizes(var, _DEPTH)


class _Vectors:
    """Follows integer vectors upwards, each once: operands that repeat would double the way at every binding."""

    def __init__(self) -> None:
        self.known: dict[Var, tuple[Dim, ...] | None] = {}

    def sizes(self, var: Var, depth: int) -> tuple[Dim, ...] | None:
        ints = var.ints
        if ints is not None:
            return ints if len(ints) <= _LONGEST else None
        # through bool or a float a number may change
        if var.dtype not in (TensorProto.INT64, TensorProto.INT32) or (var.rank or 0) > 1:
            return None
        b = var.definition
        if b is None or b.domain != "" or depth == 0:
            return _unknown(var)
        if var not in self.known:
            found = self._results(b, depth - 1)
            self.known[var] = _unknown(var) if found is None or len(found) > _LONGEST else _within(found, var.dtype)
        return self.known[var]

    def _results(self, b: Binding, depth: int) -> tuple[Dim, ...] | None:
        first = b.operand(0)
        if first is None or b.has_refs:
            return None
        if b.op == "Shape":
            shape = first.shape
            return None if shape is None else shape[b.attr("start", 0) : b.attr("end", len(shape))]
        if b.op in ("Identity", "Cast", "Squeeze"):
            return self.sizes(first, depth) if first.rank is not None and first.rank <= 1 else None
        if b.op == "Unsqueeze":
            return self.sizes(first, depth) if first.rank == 0 else None
        if b.op == "Reshape":
            return self.sizes(first, depth) if b.out.rank is not None and b.out.rank <= 1 else None
        if b.op == "Concat":
            return self._concatenated(b, depth)
        if b.op == "Gather":
            return _gathered(self.sizes(first, depth), b)
        if b.op == "Slice":
            return _sliced(self.sizes(first, depth), b)
        if b.op in ("Add", "Sub", "Mul", "Div", "Max", "Min"):
            return self._arithmetic(b, depth)
        return None

    def _concatenated(self, b: Binding, depth: int) -> tuple[Dim, ...] | None:
        dims: list[Dim] = []
        for v in b.inputs:
            part = None if v is None else self.sizes(v, depth)
            if part is None or len(dims) + len(part) > _LONGEST:
                return None
            dims.extend(part)
        return tuple(dims)

    def _arithmetic(self, b: Binding, depth: int) -> tuple[Dim, ...] | None:
        x, y = b.operand(0), b.operand(1)
        if x is None or y is None or len(b.inputs) != 2:
            return None
        xs, ys = self.sizes(x, depth), self.sizes(y, depth)
        if xs is None or ys is None:
            return None
        if len(xs) != len(ys):
            if len(xs) == 1:
                xs *= len(ys)
            elif len(ys) == 1:
                ys *= len(xs)
            else:
                return None
        return tuple(_calculate(b.op, p, q) for p, q in zip(xs, ys, strict=True))


def _within(dims: tuple[Dim, ...], dtype: int) -> tuple[Dim, ...]:
    limit = _LIMITS[dtype]
    return tuple(None if isinstance(d, int) and not -limit <= d < limit else d for d in dims)


def _unknown(var: Var) -> tuple[Dim, ...] | None:
    if var.shape == ():
        return (None,)
    if var.shape is not None and len(var.shape) == 1 and isinstance(var.shape[0], int):
        return (None,) * var.shape[0] if var.shape[0] <= _LONGEST else None
    return None


def _gathered(source: tuple[Dim, ...] | None, b: Binding) -> tuple[Dim, ...] | None:
    index = b.operand(1)
    ints = None if index is None else index.ints
    if source is None or ints is None or any(not -len(source) <= i < len(source) for i in ints):
        return None
    return tuple(source[i] for i in ints)


def _sliced(source: tuple[Dim, ...] | None, b: Binding) -> tuple[Dim, ...] | None:
    bounds = [None if v is None else v.ints for v in (b.operand(1), b.operand(2))]
    steps = b.operand(4)
    step = (1,) if steps is None else steps.ints
    starts, ends = bounds
    if source is None or starts is None or ends is None or step is None:
        return None
    if not len(starts) == len(ends) == len(step) == 1 or step[0] == 0:
        return None
    if step[0] < 0 and starts[0] < -len(source):
        return None  # ONNX starts at the first element then, Python before it
    return source[slice(starts[0], ends[0] if ends[0] > -(1 << 62) else None, step[0])]


def _calculate(op: str, p: Dim, q: Dim) -> Dim:
    if isinstance(p, int) and isinstance(q, int):
        if op == "Div":
            return p // q if q > 0 and p >= 0 else None
        return {"Add": p + q, "Sub": p - q, "Mul": p * q, "Max": max(p, q), "Min": min(p, q)}[op]
    if (op in ("Mul", "Div") and q == 1) or (op in ("Add", "Sub") and q == 0):
        return p
    if (op == "Mul" and p == 1) or (op == "Add" and p == 0):
        return q
    return p if op in ("Max", "Min") and same_dim(p, q) else None


def refine(node: NodeProto, inputs: Sequence[Var | None]) -> Shape | None:
    """The result shape of an operator that computes its shape, as far as symbols tell; None when they do not."""
    if node.domain != "" or not inputs or inputs[0] is None:
        return None
    x, second = inputs[0], inputs[1] if len(inputs) > 1 else None
    if node.op_type == "Reshape" and second is not None:
        return _reshaped(x.shape, sizes(second), bool(_attribute(node, "allowzero", 0)))
    if node.op_type == "Expand" and second is not None:
        wanted = sizes(second)
        return None if wanted is None else broadcast_shapes([x.shape, _sane(wanted)])
    if node.op_type == "ConstantOfShape":
        wanted = sizes(x)
        return None if wanted is None else _sane(wanted)
    if node.op_type == "Tile" and second is not None and x.shape is not None:
        repeats = sizes(second)
        if repeats is not None and len(repeats) == len(x.shape):
            return _sane(tuple(_calculate("Mul", d, r) for d, r in zip(x.shape, repeats, strict=True)))
    if node.op_type in ("ScatterND", "ScatterElements"):
        return x.shape
    if node.op_type == "Slice":
        return _sliced_shape(x.shape, inputs)
    if node.op_type == "Pad":
        return _untouched(x.shape, inputs[3] if len(inputs) > 3 else None)
    if node.op_type == "Range" and second is not None and len(inputs) == 3 and inputs[2] is not None:
        counts = sizes(second)
        return counts if x.ints == (0,) and inputs[2].ints == (1,) and counts is not None and len(counts) == 1 else None
    return None


def _sliced_shape(source: Shape | None, inputs: Sequence[Var | None]) -> Shape | None:
    starts, ends, axes, steps = (inputs[i] if i < len(inputs) else None for i in range(1, 5))
    if source is None or starts is None or ends is None:
        return None
    if axes is None:
        count = starts.shape[0] if starts.shape is not None and len(starts.shape) == 1 else None
        touched = tuple(range(count)) if isinstance(count, int) else None
    else:
        touched = axes.ints
    kept = _without(source, touched)
    if kept is None or touched is None:
        return None
    step = (1,) * len(touched) if steps is None else steps.ints
    if starts.ints == (0,) * len(touched) and step == (1,) * len(touched):
        dims = list(kept)
        for axis, end in zip(touched, ends.ints or (), strict=False):
            if end >= _END:
                dims[axis] = source[axis]
        return tuple(dims)
    return kept


def _untouched(source: Shape | None, axes: Var | None) -> Shape | None:
    return None if source is None or axes is None else _without(source, axes.ints)


def _without(source: Shape, touched: tuple[int, ...] | None) -> Shape | None:
    """The shape with the touched axes unknown."""
    if touched is None or any(not -len(source) <= axis < len(source) for axis in touched):
        return None
    gone = {axis % len(source) for axis in touched}
    return tuple(None if i in gone else d for i, d in enumerate(source))


def _sane(dims: tuple[Dim, ...]) -> Shape:
    return tuple(None if isinstance(d, int) and not 0 <= d < _LIMITS[TensorProto.INT64] else d for d in dims)


def _reshaped(source: Shape | None, wanted: tuple[Dim, ...] | None, allowzero: bool) -> Shape | None:
    if wanted is None:
        return None
    dims: list[Dim] = list(wanted)
    if not allowzero:
        for i, d in enumerate(dims):
            if d == 0:
                dims[i] = source[i] if source is not None and i < len(source) else None
    if -1 in dims:
        dims[dims.index(-1)] = _remaining(source, [d for d in dims if d != -1])
    return tuple(dims)


def _remaining(source: Shape | None, others: list[Dim]) -> Dim:
    """The size that -1 stands for: the source's dimensions over the others', equal symbols cancelled."""
    if source is None or None in source or None in others:
        return None
    left = list(source)
    count = 1
    for d in others:
        if isinstance(d, str):
            if d not in left:
                return None
            left.remove(d)
        elif d is not None:
            count *= d
    symbols = [d for d in left if isinstance(d, str)]
    total = 1
    for d in left:
        total *= d if isinstance(d, int) else 1
    if count == 0 or total % count or len(symbols) > 1:
        return None
    if not symbols:
        return total // count
    return symbols[0] if total == count else None


def _attribute(node: NodeProto, name: str, default: Any) -> Any:
    for a in node.attribute:
        if a.name == name:
            return helper.get_attribute_value(a)
    return default
