"""The result shapes of operators that compute sizes, from the shapes of their operands and the
elements of integer vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from onnx import NodeProto, TensorProto

from onnxgrad.ir import domains
from onnxgrad.ir import sizes as algebra
from onnxgrad.ir.attributes import written
from onnxgrad.ir.size_polynomials import KNOWN
from onnxgrad.ir.sizes import Dim
from onnxgrad.ir.type_inference.shape_arithmetic import INT_LIMITS, KnownElements
from onnxgrad.ir.type_inference.window_shapes import (
    Call,
    of_conv,
    of_depth_to_space,
    of_pool,
    of_resize,
    of_space_to_depth,
    of_transposed_conv,
)
from onnxgrad.ir.types import Shape, broadcast_shapes, element_count, same_dim
from onnxgrad.ir.var import Var

_Rule: TypeAlias = Callable[[Call], Shape | list[Shape] | None]


def refine(
    node: NodeProto, inputs: Sequence[Var | None], known: KnownElements | None = None
) -> list[Shape] | None:
    """Returns the shapes of the first results of an operator that computes sizes, None if nothing
    is known.

    `known` has elements that were evaluated before.
    """
    x = inputs[0] if inputs else None
    if x is None:
        return None
    if node.domain == ML:
        shape = _of_ml(node, x)
        return None if shape is None else [shape]
    rule = _REFINED.get(node.op_type) if domains.is_default(node.domain) else None
    if rule is None:
        return None
    found = rule(Call(node, x, inputs, known))
    if found is None:
        return None
    return [_sane(s) for s in (found if isinstance(found, list) else [found])]


def _sane(dims: Sequence[Dim]) -> Shape:
    return tuple(
        None if isinstance(d, int) and not 0 <= d < INT_LIMITS[TensorProto.INT64] else d
        for d in dims
    )


# ---- Reshape -------------------------------------------------------------------------------------


def of_reshape(c: Call) -> Shape | None:
    """Returns the result shape of a Reshape."""
    wanted = c.sizes(1)
    return None if wanted is None else _reshaped(c.x.shape, wanted, bool(c.attr("allowzero", 0)))


@lru_cache(maxsize=KNOWN)  # the layers of a model repeat a Reshape
def _reshaped(source: Shape | None, wanted: Shape, zeros: bool) -> Shape:
    dims = [_wanted(i, wanted, source, zeros) for i in range(len(wanted))]
    if -1 in dims:
        # if another size is 0, the run fails, and with `allowzero` ONNX forbids it
        dims[dims.index(-1)] = _remaining(source, [d for d in dims if d != -1])
    return tuple(dims)


def _wanted(i: int, wanted: Shape, source: Shape | None, zeros: bool) -> Dim:
    """Returns size `i` of the result of a Reshape to `wanted`; -1 for the size that is left.

    A symbol may be 0, which copies the operand's size (unless `zeros`). The result still has the
    symbol's size if the operand's size is 0 too, or if Reshape fails because the elements do not
    fit the other sizes. Runs in which two names are 0 are ignored. A size that may be negative may
    be a -1.
    """
    d, low = wanted[i], algebra.least(wanted[i])
    if d == 0 and not zeros:
        return source[i] if source is not None and i < len(source) else None
    if not isinstance(d, str):
        return d
    if source is not None and i < len(source) and same_dim(source[i], d):
        return d
    if low is None or low < 0:
        return None
    if low > 0 or zeros:
        return d
    if source is None or i >= len(source):
        return None if source is None else d  # a 0 without a size to copy fails
    for factor in algebra.factors(d):
        # a factor such as max(H//2, 1)*W is 0 only if a name is, one such as H//2 also beside one
        by_name = _is_positive(factor, 1)
        zero = algebra.symbols(factor) if by_name else (factor,)
        if not all(_stays_zero(i, wanted, source, z, int(by_name)) for z in zero):
            return None
    return d


def _stays_zero(i: int, wanted: Shape, source: Shape, zero: str, names: int) -> bool:
    """Whether size `i` of the result is 0, or Reshape fails, in every run in which `zero` is 0 and
    each other name is at least `names`.
    """
    if algebra.without(source[i], zero) == 0:
        return True
    if -1 in wanted or algebra.without(algebra.product(source), zero) != 0:
        return False
    # the operand is empty: Reshape fails unless another size of the result is 0, which needs a 0
    # to copy
    return all(
        k == i
        or k >= len(source)
        or any(_is_positive(algebra.without(d, zero), names) for d in (wanted[k], source[k]))
        for k in range(len(wanted))
    )


def _is_positive(d: Dim, names: int) -> bool:
    """Whether the size is not 0 if each name is at least `names`."""
    low = algebra.least(d, names)
    return low is not None and low > 0


def _remaining(source: Shape | None, others: list[Dim]) -> Dim:
    """The size that -1 stands for: the number of elements over the other sizes."""
    count = None if source is None else algebra.product(source)
    return algebra.divide(count, algebra.product(others))


def _of_flatten(c: Call) -> Shape | None:
    shape, axis = c.x.shape, c.attr("axis", 1)
    if shape is None or not -len(shape) <= axis <= len(shape):
        return None
    axis += len(shape) if axis < 0 else 0
    return algebra.product(shape[:axis]), algebra.product(shape[axis:])


def _of_squeeze(c: Call) -> Shape | None:
    axes = _axes(c, 1, c.x.rank)
    if c.x.shape is None or axes is None:
        return None
    return tuple(d for i, d in enumerate(c.x.shape) if i not in axes)


def of_unsqueeze(c: Call) -> Shape | None:
    """Returns the result shape of an Unsqueeze, whose axes are an attribute below opset 13."""
    given = c.numbers(1) if len(c.inputs) > 1 else c.attr("axes", None)
    axes = None if not given or c.x.rank is None else once_each(given, c.x.rank + len(given))
    if c.x.shape is None or axes is None:
        return None
    old = iter(c.x.shape)
    return tuple(1 if i in axes else next(old) for i in range(len(c.x.shape) + len(axes)))


def _axes(c: Call, index: int, rank: int | None) -> set[int] | None:
    """Returns axes as non-negative numbers, also those that onnx cannot see after an Identity."""
    axes = c.numbers(index)
    return None if rank is None or axes is None else once_each(axes, rank)


def once_each(axes: Sequence[int], rank: int) -> set[int] | None:
    """Returns axes as non-negative numbers, None if one is out of range or there twice."""
    if any(not -rank <= axis < rank for axis in axes):
        return None
    once = {axis % rank for axis in axes}
    return once if len(once) == len(axes) else None


def of_reduction(c: Call) -> Shape | None:
    """Returns the shape reduced along axes that are an operand, which onnx reads only if it is
    constant.
    """
    given = c.operand(1)
    axes = None if given is None else _axes(c, 1, c.x.rank)
    if c.x.shape is None or given is None:
        return None
    if axes is None:  # their number is enough for the rank
        count, rank = (given.shape or (None,))[0], len(c.x.shape)
        if c.attr("keepdims", 1):
            return (None,) * rank
        return (None,) * (rank - count) if isinstance(count, int) and 0 < count <= rank else None
    if not axes:
        axes = set() if c.attr("noop_with_empty_axes", 0) else set(range(len(c.x.shape)))
    if c.attr("keepdims", 1):
        return tuple(1 if i in axes else d for i, d in enumerate(c.x.shape))
    return tuple(d for i, d in enumerate(c.x.shape) if i not in axes)


# ---- more or fewer elements ----------------------------------------------------------------------


def of_expand(c: Call) -> Shape | None:
    """Returns the result shape of an Expand."""
    wanted = c.sizes(1)
    return None if wanted is None else broadcast_shapes([c.x.shape, _sane(wanted)])


def _of_constant(c: Call) -> Shape | None:
    return c.sizes(0)


def _of_tile(c: Call) -> Shape | None:
    repeats = c.sizes(1)
    if c.x.shape is None or repeats is None or len(repeats) != len(c.x.shape):
        return None
    return tuple(map(algebra.multiply, c.x.shape, repeats))


def _of_range(c: Call) -> Shape | None:
    bounds = [c.sizes(i) for i in range(3)]
    if any(b is None or len(b) != 1 for b in bounds):
        return None
    start, limit, step = (b[0] for b in bounds if b is not None)
    if not isinstance(step, int) or step < 1:
        return None
    length = algebra.maximum(algebra.subtract(limit, start), 0)
    return (algebra.divide(algebra.add(length, step - 1), step),)


def of_concat(c: Call) -> Shape | None:
    """Returns the result shape of a Concat."""
    shapes = [None if v is None else v.shape for v in c.inputs]
    known = [s for s in shapes if s is not None]
    rank, axis = len(known[0]) if known else 0, c.attr("axis", 1)
    if len(known) < len(shapes) or any(len(s) != rank for s in known) or not -rank <= axis < rank:
        return None
    return tuple(
        _total(column) if i == axis % rank else _agreed(column)
        for i, column in enumerate(zip(*known, strict=True))
    )


def _total(column: Sequence[Dim]) -> Dim:
    total: Dim = 0
    for d in column:
        total = algebra.add(total, d)
    return total


def _agreed(column: Sequence[Dim]) -> Dim:
    """The size along an axis that is not joined. Symbols may differ: onnxruntime ignores operands
    without elements.
    """
    known = [d for d in column if isinstance(d, int)]
    return known[0] if known else column[0] if len(set(column)) == 1 else None


def _of_split(c: Call) -> list[Shape] | None:
    shape, axis = c.x.shape, c.attr("axis", 0)
    if shape is None or not -len(shape) <= axis < len(shape):
        return None
    count, axis = len(c.node.output), axis % len(shape)
    parts: Sequence[Dim] | None = c.attr("split", None)
    if c.operand(1) is not None:
        parts = c.sizes(1)
    elif parts is None:
        parts = [algebra.exactly(shape[axis], count)] * count
    if parts is None or len(parts) != count or algebra.differ(_total(parts), shape[axis]):
        return None
    return [(*shape[:axis], part, *shape[axis + 1 :]) for part in parts]


def _of_top_k(c: Call) -> list[Shape] | None:
    shape, axis, count = c.x.shape, c.attr("axis", -1), c.sizes(1)
    if shape is None or count is None or len(count) != 1 or not -len(shape) <= axis < len(shape):
        return None
    axis %= len(shape)
    return [(*shape[:axis], count[0], *shape[axis + 1 :])] * 2


def _of_pad(c: Call) -> Shape | None:
    shape, pads = c.x.shape, c.sizes(1)
    axes = None if shape is None else list(range(len(shape)))
    if c.operand(3) is not None:
        axes = c.numbers(3)
    if shape is None or axes is None or any(not -len(shape) <= a < len(shape) for a in axes):
        return None
    dims = list(shape)
    count = len(axes)
    for i, axis in enumerate(axes):
        both = (
            algebra.add(pads[i], pads[i + count])
            if pads is not None and len(pads) == 2 * count
            else None
        )
        dims[axis] = algebra.maximum(algebra.add(shape[axis], both), 0)
    return tuple(dims)


def _of_dft(c: Call) -> Shape | None:
    """One-sided transforms return half of the frequencies, and the first; each is a complex
    number.
    """
    shape, axes = c.x.shape, c.numbers(2)
    if c.operand(2) is None:  # the default axis of opset 17 is 1, that of 20 is -2
        axes = [c.attr("axis", 1)] if c.x.rank == 3 or c.attr("axis", None) is not None else None
    one_sided = c.attr("onesided", 0)
    if shape is None or not axes or (one_sided and c.attr("inverse", 0)):
        return None
    axis = axes[0] + len(shape) if axes[0] < 0 else axes[0]
    if not 0 <= axis < len(shape) - 1:
        return None
    lengths = (shape[axis],) if c.operand(1) is None else c.sizes(1)
    length = lengths[0] if lengths else None
    if one_sided:
        length = algebra.add(algebra.divide(length, 2), 1)
    return (*shape[:axis], length, *shape[axis + 1 : -1], 2)


# exporters write INT32_MAX or INT64_MAX for "to the end"
_END = (1 << 31) - 1


def _of_slice(c: Call) -> Shape | None:
    shape, starts, ends = c.x.shape, c.sizes(1), c.sizes(2)
    if shape is None or c.operand(1) is None:
        return None
    axes = c.numbers(3) if c.operand(3) is not None else list(range(len(starts or ())))
    if axes is None or (c.operand(3) is None and starts is None):
        return None
    if any(not -len(shape) <= a < len(shape) for a in axes):
        return None
    steps = c.numbers(4) if c.operand(4) is not None else [1] * len(axes)
    dims = list(shape)
    for i, axis in enumerate(axes):
        known = starts is not None and ends is not None and steps is not None
        dims[axis] = (
            _sliced(shape[axis], starts[i], ends[i], steps[i])
            if known and starts and ends and steps
            else None
        )
    return tuple(dims)


def _sliced(size: Dim, start: Dim, end: Dim, step: int) -> Dim:
    """The length of size[start:end:step]."""
    if (start, step) == (-1, -1) and isinstance(end, int) and end <= -_END:
        return size
    if step < 1:
        return None
    first = 0 if start == 0 else _bound(start, size)
    last = size if isinstance(end, int) and end >= _END else _bound(end, size)
    length = algebra.maximum(algebra.subtract(last, first), 0)
    return algebra.divide(algebra.add(length, step - 1), step)


def _bound(at: Dim, size: Dim) -> Dim:
    """Returns a bound of a Slice, counted from the end if negative and clamped to the size."""
    if isinstance(at, int) and at < 0:
        return algebra.maximum(algebra.add(size, at), 0)
    return algebra.minimum(at, size) if algebra.at_least(at, 0) else None


# constants of more elements are not counted
_MOST = 1 << 16


def _of_non_zero(c: Call) -> Shape | None:
    count = element_count(c.x.shape)
    if not c.x.rank or not c.x.is_constant or count is None or count > _MOST:
        return None
    array = c.x.const
    return None if array is None else (c.x.rank, int(np.count_nonzero(array)))


def _as_first(c: Call) -> Shape | None:
    return c.x.shape


_REDUCED = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
REDUCTIONS = tuple(f"Reduce{name}" for name in _REDUCED)

_REFINED: dict[str, _Rule] = {
    **dict.fromkeys(REDUCTIONS, of_reduction),
    "Reshape": of_reshape,
    "Flatten": _of_flatten,
    "Squeeze": _of_squeeze,
    "Unsqueeze": of_unsqueeze,
    "Expand": of_expand,
    "ConstantOfShape": _of_constant,
    "Tile": _of_tile,
    "Range": _of_range,
    "Concat": of_concat,
    "Split": _of_split,
    "TopK": _of_top_k,
    "Pad": _of_pad,
    "Slice": _of_slice,
    "DFT": _of_dft,
    "NonZero": _of_non_zero,
    "GroupNormalization": _as_first,
    "ScatterND": _as_first,
    "ScatterElements": _as_first,
    "Conv": of_conv,
    "ConvTranspose": of_transposed_conv,
    **dict.fromkeys(("AveragePool", "LpPool", "MaxPool"), of_pool),
    "Resize": of_resize,
    "DepthToSpace": of_depth_to_space,
    "SpaceToDepth": of_space_to_depth,
}


def _of_ml(node: NodeProto, x: Var) -> Shape | None:
    """Returns the shape of the first result if the first operand determines it, else None."""
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


ML = "ai.onnx.ml"
# the operators whose results `refine` may know better than onnx, by domain
REFINED = frozenset(
    {*(("", name) for name in _REFINED), *((ML, name) for name in (*_ELEMENTWISE, *_WIDTHS))}
)
