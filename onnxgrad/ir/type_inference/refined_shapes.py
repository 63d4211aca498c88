"""Shapes made from vectors of sizes: what symbols tell of the results of Reshape, Expand, Slice
and the like.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from onnx import NodeProto, TensorProto

from onnxgrad.ir.attributes import written
from onnxgrad.ir.type_inference.ml_shapes import ML_REFINED, refine_ml
from onnxgrad.ir.type_inference.symbols import INT_LIMITS, calculate, sizes
from onnxgrad.ir.types import Dim, Shape, broadcast_shapes
from onnxgrad.ir.var import Var

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
