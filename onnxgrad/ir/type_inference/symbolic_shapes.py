"""Symbols carried through shape arithmetic, and the shapes that vectors of sizes give."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from onnx import NodeProto, TensorProto

from onnxgrad.ir.attributes import written
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.types import Dim, Shape, broadcast_shapes, same_dim
from onnxgrad.ir.var import Var

# no tensor has a higher rank, so that a longer vector is no shape; files declare vectors of 2^40
# elements
_LONGEST = 1 << 10
# beyond these, machines wrap around
INT_LIMITS: dict[int, int] = {TensorProto.INT32: 1 << 31, TensorProto.INT64: 1 << 63}

# how many bindings of shape arithmetic are followed upwards
_DEPTH = 24


def sizes(var: Var) -> tuple[Dim, ...] | None:
    """The elements of a small integer vector (or scalar) as dimensions; None when its length is
    unknown.
    """
    return _Vectors().sizes(var, _DEPTH)


class _Vectors:
    """Follows integer vectors upwards, each once: operands that repeat would double the way at
    every binding.
    """

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
            self.known[var] = (
                _unknown(var)
                if found is None or len(found) > _LONGEST
                else _within(found, var.dtype)
            )
        return self.known[var]

    def _results(self, b: Binding, depth: int) -> tuple[Dim, ...] | None:
        x = b.operand(0)
        if x is None or b.has_refs:
            return None
        if b.op in _KEPT:
            return self.sizes(x, depth) if _KEPT[b.op](b, x) else None
        if b.op in _PICKED:
            return _PICKED[b.op](self.sizes(x, depth), b)
        if b.op == "Shape":
            return (
                None
                if x.shape is None
                else x.shape[b.attr("start", 0) : b.attr("end", len(x.shape))]
            )
        if b.op == "Concat":
            return self._concatenated(b, depth)
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
        return tuple(calculate(b.op, p, q) for p, q in zip(xs, ys, strict=True))


def _within(dims: tuple[Dim, ...], dtype: int) -> tuple[Dim, ...]:
    limit = INT_LIMITS[dtype]
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


# operators that keep the elements of a vector in their order, where this holds
_KEPT: dict[str, Callable[[Binding, Var], bool]] = {
    "Identity": lambda b, x: x.rank in (0, 1),
    "Cast": lambda b, x: x.rank in (0, 1),
    "Squeeze": lambda b, x: x.rank in (0, 1),
    "Unsqueeze": lambda b, x: x.rank == 0,
    "Reshape": lambda b, x: b.out.rank in (0, 1),
}
# and those that pick some of them
_PICKED: dict[str, Callable[[tuple[Dim, ...] | None, Binding], tuple[Dim, ...] | None]] = {
    "Gather": _gathered,
    "Slice": _sliced,
}


def calculate(op: str, p: Dim, q: Dim) -> Dim:
    """Returns the result of an arithmetic operator on two sizes, None if unknown."""
    if isinstance(p, int) and isinstance(q, int):
        if op == "Div":
            return p // q if q > 0 and p >= 0 else None
        return {"Add": p + q, "Sub": p - q, "Mul": p * q, "Max": max(p, q), "Min": min(p, q)}[op]
    if (op in ("Mul", "Div") and q == 1) or (op in ("Add", "Sub") and q == 0):
        return p
    if (op == "Mul" and p == 1) or (op == "Add" and p == 0):
        return q
    return p if op in ("Max", "Min") and same_dim(p, q) else None


def refine_ml(node: NodeProto, x: Var) -> Shape | None:
    """The shape of the first result, as far as the first operand tells; None where it does not."""
    if node.op_type in _ELEMENTWISE:
        return x.shape
    width = _WIDTHS.get(node.op_type)
    if width is None or x.shape is None or len(x.shape) != 2:
        return None
    return x.shape[0], width(node)


_ELEMENTWISE = frozenset({"Binarizer", "Imputer", "LabelEncoder", "Normalizer", "Scaler"})
_WIDTHS: dict[str, Callable[[NodeProto], int]] = {
    "LinearRegressor": lambda node: int(written(node, "targets", 1)),
    "SVMRegressor": lambda node: 1,
    "TreeEnsembleRegressor": lambda node: int(written(node, "n_targets", 1)),
}
# the operators whose results `refine_ml` may know better than onnx
ML_REFINED = _ELEMENTWISE | frozenset(_WIDTHS)


ML = "ai.onnx.ml"
# exporters write INT32_MAX or INT64_MAX for "to the end"
_END = (1 << 31) - 1


def refine(node: NodeProto, inputs: Sequence[Var | None]) -> Shape | None:
    """The result shape of an operator that computes its shape, as far as symbols tell; None when
    they do not.
    """
    x = inputs[0] if inputs else None
    if node.domain == ML and x is not None:
        return refine_ml(node, x)
    rule = _REFINED.get(node.op_type) if node.domain == "" else None
    return None if rule is None or x is None else rule(node, x, inputs)


def _operand(inputs: Sequence[Var | None], index: int) -> Var | None:
    return inputs[index] if index < len(inputs) else None


def _of_reshape(node: NodeProto, x: Var, inputs: Sequence[Var | None]) -> Shape | None:
    shape = _operand(inputs, 1)
    return (
        None
        if shape is None
        else _reshaped(x.shape, sizes(shape), bool(written(node, "allowzero", 0)))
    )


def _of_expand(node: NodeProto, x: Var, inputs: Sequence[Var | None]) -> Shape | None:
    shape = _operand(inputs, 1)
    wanted = None if shape is None else sizes(shape)
    return None if wanted is None else broadcast_shapes([x.shape, _sane(wanted)])


def _of_constant(node: NodeProto, shape: Var, inputs: Sequence[Var | None]) -> Shape | None:
    wanted = sizes(shape)
    return None if wanted is None else _sane(wanted)


def _of_tile(node: NodeProto, x: Var, inputs: Sequence[Var | None]) -> Shape | None:
    given = _operand(inputs, 1)
    repeats = None if given is None else sizes(given)
    if x.shape is None or repeats is None or len(repeats) != len(x.shape):
        return None
    return _sane(tuple(calculate("Mul", d, r) for d, r in zip(x.shape, repeats, strict=True)))


def _of_range(node: NodeProto, start: Var, inputs: Sequence[Var | None]) -> Shape | None:
    """Range(0, limit, 1) has `limit` elements."""
    limit, delta = _operand(inputs, 1), _operand(inputs, 2)
    if limit is None or delta is None or start.ints != (0,) or delta.ints != (1,):
        return None
    counts = sizes(limit)
    return counts if counts is not None and len(counts) == 1 else None


def _of_squeeze(node: NodeProto, x: Var, inputs: Sequence[Var | None]) -> Shape | None:
    axes = _axes(_operand(inputs, 1), x.rank)
    if x.shape is None or axes is None:
        return None
    return tuple(d for i, d in enumerate(x.shape) if i not in axes)


def _of_unsqueeze(node: NodeProto, x: Var, inputs: Sequence[Var | None]) -> Shape | None:
    vector = _operand(inputs, 1)
    count = None if vector is None else (sizes(vector) or ())
    axes = None if not count or x.rank is None else _axes(vector, x.rank + len(count))
    if x.shape is None or axes is None:
        return None
    old = iter(x.shape)
    return tuple(1 if i in axes else next(old) for i in range(len(x.shape) + len(axes)))


def _axes(vector: Var | None, rank: int | None) -> set[int] | None:
    """Axes that an Identity, or arithmetic, hides from onnx, made non-negative."""
    found = None if vector is None else sizes(vector)
    axes = [axis for axis in found or () if isinstance(axis, int)]
    if rank is None or found is None or len(axes) < len(found):
        return None
    if any(not -rank <= axis < rank for axis in axes):
        return None
    once = {axis % rank for axis in axes}
    return once if len(once) == len(axes) else None


_REFINED: dict[str, Callable[[NodeProto, Var, Sequence[Var | None]], Shape | None]] = {
    "Reshape": _of_reshape,
    "Expand": _of_expand,
    "ConstantOfShape": _of_constant,
    "Tile": _of_tile,
    "Range": _of_range,
    "ScatterND": lambda node, data, inputs: data.shape,
    "ScatterElements": lambda node, data, inputs: data.shape,
    "Slice": lambda node, data, inputs: _sliced_shape(data.shape, inputs),
    "Squeeze": _of_squeeze,
    "Unsqueeze": _of_unsqueeze,
    "Pad": lambda node, data, inputs: _untouched(data.shape, _operand(inputs, 3)),
}
# the operators whose results `refine` may know better than onnx, by domain
REFINED = frozenset({*(("", name) for name in _REFINED), *((ML, name) for name in ML_REFINED)})


def _sliced_shape(source: Shape | None, inputs: Sequence[Var | None]) -> Shape | None:
    starts, ends, axes, steps = (_operand(inputs, i) for i in range(1, 5))
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
    return tuple(
        None if isinstance(d, int) and not 0 <= d < INT_LIMITS[TensorProto.INT64] else d
        for d in dims
    )


def _reshaped(
    source: Shape | None, wanted: tuple[Dim, ...] | None, allowzero: bool
) -> Shape | None:
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
    """The size that -1 stands for: the source's dimensions over the others', equal symbols
    cancelled.
    """
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
