"""Solves for inputs that would raise the coverage.

A walk leads from the operand of a threshold back to the inputs and sizes of the model, through
operators whose inverse is known. Inputs are filled with the values found.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import onnx

from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.ir.attributes import values_of
from onnxgrad.verify.coverage.counters import Array, Goal
from onnxgrad.verify.feeds.data_flow import DataFlow, Key
from onnxgrad.verify.feeds.dims import evaluate, symbols_in

_DEEP = 256  # values that one walk visits
_MOST_SIZE = 4096  # of a dimension
_FEW = 4  # different numbers of a constant operand that are solved for
_TINY = 1e-5

# operators whose result has elements of these operands (None: of every operand)
_PASSES: dict[str, tuple[int, ...] | None] = {
    "Abs": (0,), "AveragePool": (0,), "ArrayFeatureExtractor": (0,), "Cast": (0,), "CastLike": (0,),
    "Ceil": (0,), "Clip": (0,), "Compress": (0,), "Concat": None,
    "CumSum": (0,), "DepthToSpace": (0,),
    "Dropout": (0,), "Expand": (0,), "Flatten": (0,), "Floor": (0,), "Gather": (0,),
    "GatherElements": (0,), "GatherND": (0,), "GlobalAveragePool": (0,), "GlobalMaxPool": (0,),
    "Identity": (0,), "Imputer": (0,), "LeakyRelu": (0,), "Max": None, "MaxPool": (0,),
    "Min": None, "Pad": (0,), "PRelu": (0,), "ReduceMax": (0,), "ReduceMean": (0,),
    "ReduceMin": (0,), "Relu": (0,), "Reshape": (0,), "Resize": (0,), "Round": (0,), "Slice": (0,),
    "SpaceToDepth": (0,), "Split": (0,), "Squeeze": (0,), "StringNormalizer": (0,), "Tile": (0,),
    "Transpose": (0,), "Trilu": (0,), "Unsqueeze": (0,), "Where": (1, 2), "Loop": (), "Scan": (),
}  # fmt: skip
_INVERSES: dict[str, Callable[[Array], Array]] = {
    "Neg": np.negative,
    "Reciprocal": np.reciprocal,
    "Exp": np.log,
    "Log": np.exp,
    "Sqrt": np.square,
    "Tanh": np.arctanh,
    "Sigmoid": lambda y: np.log(y / (1 - y)),
    "Softplus": lambda y: np.log(np.expm1(y)),
    "Not": lambda y: 1 - y,
}


@dataclass
class Wishes:
    """The values that inputs should have, and the sizes of symbols. An array of two axes has rows
    of the input's last axis.
    """

    values: dict[str, list[Array]] = field(default_factory=dict)
    sizes: dict[str, set[int]] = field(default_factory=dict)

    def add(self, other: Wishes) -> None:
        """Adds the wishes of another goal."""
        for name, arrays in other.values.items():
            self.values.setdefault(name, []).extend(arrays)
        for symbol, sizes in other.sizes.items():
            self.sizes.setdefault(symbol, set()).update(sizes)


@frozen
class _Step:
    """A value and the elements that it should have. `index`: one element of a vector, if only
    that one counts.
    """

    key: Key
    wanted: Array
    index: int | None = None


_Steps: TypeAlias = Iterator[_Step]


def solved(flow: DataFlow, goal: Goal) -> Wishes:
    """Returns the values of inputs, and the sizes, with which `goal` may be reached."""
    wishes = Wishes()
    key = goal.scope, goal.value
    if goal.axis is not None:
        _add_sizes(wishes, flow, key, goal.axis, goal.wanted)
        return wishes
    inputs = {value.name for value in flow.inputs}
    finite = goal.wanted.dtype == object or bool(np.isfinite(goal.wanted).all())
    todo, seen = [_Step(key, goal.wanted)], set[tuple[Key, int]]()
    while todo and len(seen) < _DEEP:
        step = todo.pop()
        if (step.key, step.wanted.shape[-1]) in seen or not step.wanted.size:
            continue
        seen.add((step.key, step.wanted.shape[-1]))
        if step.key in flow.actuals:
            todo += [replace(step, key=actual) for actual in flow.actuals[step.key]]
            continue
        node = flow.producers.get(step.key)
        if node is None:
            if step.key[0] == "" and step.key[1] in inputs:
                wishes.values.setdefault(step.key[1], []).append(_kept(step.wanted, finite))
        elif node.op_type in _OF_SIZES:
            _OF_SIZES[node.op_type](
                wishes, flow, (step.key[0], node.input[0]), step.index, step.wanted
            )
        else:
            with np.errstate(all="ignore"):
                todo += _back(flow, node, step)
    return wishes


def _kept(values: Array, finite: bool) -> Array:
    """Returns the wanted values, without those for which an inverse has no number."""
    if finite and values.ndim == 1 and values.dtype != object:
        return np.asarray(values[np.isfinite(values)])
    return values


def _add_sizes(wishes: Wishes, flow: DataFlow, key: Key, axis: int | None, wanted: Array) -> None:
    """Adds the sizes of symbols with which a dimension of a value has a wanted size."""
    shape = flow.shapes.get(key, [])
    if axis is not None and not -len(shape) <= axis < len(shape):
        return
    for dim in shape if axis is None else [shape[axis]]:
        symbols = symbols_in(dim) if isinstance(dim, str) else set()
        if len(symbols) != 1:
            continue
        (symbol,) = symbols
        for size in {int(w) for w in wanted if math.isfinite(w)}:
            found = size if dim == symbol else _size(dim, symbol, size)
            if found is not None and 0 < found <= _MOST_SIZE:
                wishes.sizes.setdefault(symbol, set()).add(found)


def _add_totals(wishes: Wishes, flow: DataFlow, key: Key, axis: int | None, wanted: Array) -> None:
    """Adds the sizes of symbols with which a value has a wanted number of elements."""
    shape = flow.shapes.get(key, [])
    for axis, dim in enumerate(shape):
        others = [flow.size(key, i) for i in range(len(shape)) if i != axis]
        if isinstance(dim, str) and symbols_in(dim) == {dim} and None not in others:
            each = wanted / max(math.prod(n or 1 for n in others), 1)
            found = {int(n) for n in (*np.floor(each), *np.ceil(each)) if 0 < n <= _MOST_SIZE}
            wishes.sizes.setdefault(dim, set()).update(found)


_OF_SIZES = {"Shape": _add_sizes, "Size": _add_totals}


def _size(formula: int | str, symbol: str, wanted: int) -> int | None:
    """Returns the size of a symbol with which a formula has the wanted value, else None."""
    for size in range(1, min(2 * wanted, _MOST_SIZE) + 2):
        try:
            if evaluate(formula, {symbol: size}) == wanted:
                return size
        except InputError:
            return None
    return None


def _back(flow: DataFlow, node: onnx.NodeProto, step: _Step) -> _Steps:
    """Yields the goals of the operands with which a node reaches the goal of its result."""
    op, wanted = node.op_type, step.wanted
    keys = [(step.key[0], name) for name in node.input]
    if wanted.dtype == object and op not in _PASSES:
        return
    if op in _INVERSES:
        yield _Step(keys[0], _INVERSES[op](wanted))
    elif op in _BACK and (steps := list(_BACK[op](flow, node, keys, wanted))):
        yield from steps
    elif op in _PASSES:
        operands = _PASSES[op]
        index = _element(flow, keys) if op in ("Gather", "Slice") else step.index
        for i in range(len(keys)) if operands is None else operands:
            if i < len(keys):
                yield _Step(keys[i], wanted, index)


def _range(flow: DataFlow, node: onnx.NodeProto, keys: list[Key], wanted: Array) -> _Steps:
    yield _Step(keys[1], wanted + 1)


def _slice(flow: DataFlow, node: onnx.NodeProto, keys: list[Key], wanted: Array) -> _Steps:
    """Yields the end of a part of a constant, such as the first positions."""
    if len(keys) > 2 and keys[0] not in flow.producers and not _is_input(flow, keys[0]):
        yield _Step(keys[2], wanted + 1)


def _is_input(flow: DataFlow, key: Key) -> bool:
    return any(value.name == key[1] for value in flow.inputs)


def _sum(flow: DataFlow, node: onnx.NodeProto, keys: list[Key], wanted: Array) -> _Steps:
    each = wanted / _terms(flow, node, keys)
    if node.op_type == "ReduceL2":
        each = wanted / math.sqrt(_terms(flow, node, keys))
    yield _Step(keys[0], np.sqrt(np.abs(each)) if node.op_type == "ReduceSumSquare" else each)


def _power(flow: DataFlow, node: onnx.NodeProto, keys: list[Key], wanted: Array) -> _Steps:
    power = flow.scalar(keys[1])
    if power:
        yield _Step(keys[0], np.power(np.abs(wanted), 1 / power) * np.sign(wanted))


def _scaler(flow: DataFlow, node: onnx.NodeProto, keys: list[Key], wanted: Array) -> _Steps:
    known = values_of(node)
    offset, scale = (np.array(known.get(n, [d])) for n, d in (("offset", 0.0), ("scale", 1.0)))
    if wanted.ndim == 2 or scale.size == offset.size == 1:
        yield _Step(keys[0], wanted / scale + offset)
    else:
        pairs = np.broadcast_arrays(scale, offset)
        yield _Step(keys[0], np.concatenate([wanted / s + o for s, o in zip(*pairs)]))


# (operator, operand) -> the operand, by the result and the other operand
_SOLVED: dict[tuple[str, int], Callable[[Array, Any], Array]] = {
    ("Add", 0): lambda y, c: np.asarray(y - c),
    ("Add", 1): lambda y, c: np.asarray(y - c),
    ("Sub", 0): lambda y, c: np.asarray(y + c),
    ("Sub", 1): lambda y, c: np.asarray(c - y),
    ("Mul", 0): lambda y, c: np.asarray(y / c),
    ("Mul", 1): lambda y, c: np.asarray(y / c),
    ("Div", 0): lambda y, c: np.asarray(y * c),
    ("Div", 1): lambda y, c: np.asarray(c / y),
}


def _arithmetic(flow: DataFlow, node: onnx.NodeProto, keys: list[Key], wanted: Array) -> _Steps:
    for i, j in ((0, 1), (1, 0)):
        inverse, other = _SOLVED[node.op_type, i], flow.constant(keys[j])
        if other is None or other.dtype.kind not in "iuf" or not other.size:
            # the other operand may be anything: as if it were 0, or the same
            if flow.constant(keys[i]) is None:
                same = np.sign(wanted) ** i * np.sqrt(np.abs(wanted))
                by = node.op_type
                yield _Step(keys[i], same if by == "Mul" else inverse(wanted, int(by == "Div")))
            continue
        numbers = other.astype(np.float64).reshape(-1)
        if wanted.ndim == 2 and numbers.size in (1, wanted.shape[1]):
            yield _Step(keys[i], inverse(wanted, numbers))
        else:
            few = np.unique(numbers)[:_FEW]
            yield _Step(keys[i], np.concatenate([inverse(wanted, c) for c in few]))


def _product(flow: DataFlow, node: onnx.NodeProto, keys: list[Key], wanted: Array) -> _Steps:
    """Yields the number that all elements of an operand should have, by the weights with the
    largest sum.
    """
    weights = flow.constant(keys[1])
    if weights is None or weights.ndim < 2 or wanted.ndim > 1:
        return
    across = node.op_type == "Conv" or values_of(node).get("transB", 0)
    rows = weights.reshape(len(weights), -1) if across else np.moveaxis(weights, -2, -1)
    sums = rows.astype(np.float64).sum(axis=-1).reshape(-1)
    largest = sums[np.argmax(np.abs(sums))] if sums.size else 0.0
    if largest:
        yield _Step(keys[0], wanted / largest)


def _columns(flow: DataFlow, node: onnx.NodeProto, keys: list[Key], wanted: Array) -> _Steps:
    """Yields the columns of rows, by the operands of a Concat."""
    start = 0
    for key in keys if wanted.ndim == 2 else ():
        width = flow.size(key, -1)
        if width is None:
            return
        part = wanted[:, start : start + width]
        if part.size and not np.isnan(part).all():
            yield _Step(key, part)
        start += width


_BACK: dict[str, Callable[[DataFlow, onnx.NodeProto, list[Key], Array], _Steps]] = {
    "Range": _range,
    "Slice": _slice,
    **dict.fromkeys(("ReduceSum", "ReduceL1", "ReduceL2", "ReduceSumSquare"), _sum),
    "Pow": _power,
    "Scaler": _scaler,
    **dict.fromkeys(("Add", "Sub", "Mul", "Div"), _arithmetic),
    **dict.fromkeys(("MatMul", "Gemm", "Conv"), _product),
    "Concat": _columns,
}


def _terms(flow: DataFlow, node: onnx.NodeProto, keys: list[Key]) -> int:
    """Returns how many elements a reduction adds, as far as their sizes are known."""
    axes = values_of(node).get("axes")
    if axes is None and len(keys) > 1:
        axes = flow.constant(keys[1])
    if axes is None:
        axes = range(len(flow.shapes.get(keys[0], ())))
    return math.prod(flow.size(keys[0], int(axis)) or 1 for axis in np.reshape(axes, -1)) or 1


def _element(flow: DataFlow, keys: list[Key]) -> int | None:
    """Returns which element of a vector a Gather or Slice selects, if it is one."""
    chosen = flow.constant(keys[1]) if len(keys) > 1 else None
    return int(chosen.reshape(-1)[0]) if chosen is not None and chosen.size == 1 else None


# ---- values ------------------------------------------------------------------------------------


def whole_rows(arrays: Iterable[Array]) -> int:
    """Returns the number of rows or values that are wanted."""
    return max((len(a) for a in arrays), default=0)


def filled(
    usual: Array,
    arrays: Iterable[Array],
    turn: int,
    seed: int,
    limits: tuple[float, float] = (-math.inf, math.inf),
) -> Array | None:
    """Returns a usual value with wanted values in part of its elements; other ones each `turn`.
    `limits`: the closed interval of values that make sense. None if no value fits.
    """
    rows = [a for a in arrays if a.ndim == 2 and usual.ndim and a.shape[1] == usual.shape[-1]]
    flat = [a.reshape(-1) for a in arrays if not any(a is r for r in rows)]
    made = usual.copy()
    if rows and made.size:
        all_rows, lines = np.concatenate(rows), made.reshape(-1, made.shape[-1])
        chosen = all_rows[(np.arange(len(lines)) + turn * len(lines)) % len(all_rows)]
        lines[:] = np.where(np.isnan(chosen), lines, chosen)
        return lines.reshape(made.shape)
    values = fitting(flat, usual.dtype)
    if limits != (-math.inf, math.inf):
        values = values[(values >= limits[0]) & (values <= limits[1])]
    if not len(values) or not made.size:
        return None
    if turn % 3 == 2:  # what the reduction of everything sees, and tiny numbers that stand alone
        if values.dtype.kind == "f":
            values = values[np.argsort((np.abs(values) > _TINY) | (values == 0), kind="stable")]
        return np.full_like(made, values[turn // 3 % len(values)])
    if usual.ndim >= 2 and turn % 3 and len(usual) > 1:  # what reductions of rows see
        lines = made.reshape(len(made), -1)
        lines[:] = np.resize(np.roll(values, -turn // 3 * len(lines)), len(lines))[:, None]
        return lines.reshape(made.shape)
    spread = made.reshape(-1)
    order = np.random.default_rng([seed, turn]).permutation(spread.size)
    count = min(spread.size, max(len(values), spread.size // 2))
    spread[order[:count]] = np.resize(np.roll(values, -turn * count), count)
    return spread.reshape(made.shape)


def fitting(arrays: Iterable[Array], dtype: np.dtype[Any]) -> Array:
    """Returns the wanted values that a type can hold: whole numbers around fractions."""
    found: list[Any] = []
    for array in arrays:
        if array.dtype.kind == "O":
            found += [v for v in array.tolist() if dtype.kind == "O" and isinstance(v, str)]
        elif dtype.kind == "b":
            found += [bool(v) for v in array]
        elif dtype.kind in "iu":
            ends = np.iinfo(dtype)
            numbers = array[np.isfinite(array)]
            both = np.concatenate([np.floor(numbers), np.ceil(numbers)])
            found += [int(v) for v in both if ends.min <= v <= ends.max]
        elif dtype.kind != "O":
            found += array.tolist()
    kept = list(dict.fromkeys(found))
    with np.errstate(over="ignore"):  # a wish may be infinite in a narrow dtype
        return np.array(kept, dtype=object if dtype.kind == "O" else None).astype(dtype)


def parted(wishes: Mapping[str, list[Array]], finite: bool) -> dict[str, list[Array]]:
    """Returns the finite wanted values, or those that are not: one NaN reaches a whole output."""
    found = {}
    for name, arrays in wishes.items():
        kept = []
        for array in arrays:
            if array.ndim == 2 or array.dtype == object:
                kept += [array] if finite else []
            else:
                part = array[np.isfinite(array) == finite]
                kept += [part] if part.size else []
        if kept:
            found[name] = kept
    return found
