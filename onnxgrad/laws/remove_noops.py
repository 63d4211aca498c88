"""Removes operators that change nothing: Identity and the like, arithmetic with a neutral element,
an initial state of zeros. Exact for every value, including NaN, infinities and -0.0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.domains import MOVES
from onnxgrad.ir.ops import op
from onnxgrad.ir.sizes import at_least
from onnxgrad.ir.type_inference.shape_arithmetic import sizes
from onnxgrad.ir.types import FLOAT_DTYPES, Shape, element_count, is_static, same_shape
from onnxgrad.ir.var import Var
from onnxgrad.laws.constant_values import filling
from onnxgrad.laws.fold_scale_axis.scale import again
from onnxgrad.rewrite.pattern import P, capture
from onnxgrad.rewrite.trace import Decline, decline
from onnxgrad.rewrite.worklist import Measure, count, rewrite

x, y, p, begin, end, axis, step, a, b, c, w, r, lens, h = capture(
    "x y p begin end axis step a b c w r lens h"
)

# ends from here on mean "to the end": exporters write the largest int32 or int64
_FAR = (1 << 31) - 1


def x_if_free(root: Binding, x: Var) -> Var | Decline:
    """Returns `x` as the replacement of the root's result. Declines if the interface would need an
    Identity in its place.
    """
    if root.out.returned and (x.definition is None or x.returned or x.block is not root.block):
        return decline("the result is an output and its operand cannot take its name")
    return x


def x_or_identity(root: Binding, x: Var) -> Var:
    """Returns `x` as the replacement of the root's result, through an Identity if the interface
    needs one. For laws that replace several bindings.
    """
    free = x_if_free(root, x)
    return op.Identity(x) if isinstance(free, Decline) else free


def is_barrier(b: Binding | None) -> bool:
    """Whether the binding is `Where(c, x, x)`, which only waits for c. Checkpointing writes such
    barriers in front of recomputed values and of the shapes of their views.
    """
    return b is not None and b.is_op("Where") and b.inputs[1] is b.inputs[2]


@rewrite(P.Identity(x), shrinks=count())
def identity(x: Var, root: Binding) -> Any:
    """Identity(x) = x"""
    return x_if_free(root, x)


@rewrite(P.Cast(x), shrinks=count())
def cast_to_same(x: Var, root: Binding) -> Any:
    """Cast(x, to=dtype(x)) = x"""
    return x_if_free(root, x) if x.dtype and root.attr("to") == x.dtype else None


@rewrite(P.CastLike(x, y), shrinks=count("CastLike"))
def cast_like(x: Var, y: Var, root: Binding) -> Any:
    """CastLike(x, y) = Cast(x, to=dtype(y)), which is x when the types agree"""
    if not (x.dtype and y.dtype):
        return None
    if x.dtype != y.dtype:
        return op.Cast(x, to=y.dtype, **root.attrs)  # saturate and the like
    return x_if_free(root, x)


@rewrite(P.any_of("Expand", "Reshape", "Tile")(x, y), shrinks=count())
def same_shape_result(x: Var, y: Var, root: Binding) -> Any:
    """Expand/Reshape/Tile(x, s) = x when the result provably has x's shape, and s waits for
    nothing
    """
    if not same_shape(x.shape, root.out.shape) or is_barrier(y.definition):
        return None
    if root.op == "Reshape" and not (is_static(x.shape) or _keeps_each(x, y, root)):
        return decline("the sizes agree in name only")
    return x_if_free(root, x)


def _keeps_each(x: Var, target: Var, root: Binding) -> bool:
    """Whether each size is equal, not just named alike. Either at most one size is symbolic and
    none is 0, so that the number of elements determines it. Or the target specifies each size: 0
    copies a size unless `allowzero` is set, and one -1 is the size that is left (with `allowzero`
    the operator fails where it stands beside a 0).
    """
    shape = x.shape or ()
    if 0 not in shape and sum(not isinstance(d, int) for d in shape) <= 1:
        return True
    wanted = sizes(target)
    if wanted is None or len(wanted) != len(shape):
        return False
    inferred = (-1,) if root.attr("allowzero", 0) else (-1, 0)
    return wanted.count(-1) <= 1 and all(
        w == d or w in inferred for w, d in zip(wanted, shape, strict=True)
    )


@rewrite(P.any_of("Squeeze", "Unsqueeze", "Flatten")(x), shrinks=count())
def same_rank_result(x: Var, root: Binding) -> Any:
    """Squeeze/Unsqueeze/Flatten(x) = x when the shape stays"""
    # the axes that a Squeeze without axes drops are known only if all sizes are
    stays = same_shape(x.shape, root.out.shape) and (root.op == "Flatten" or is_static(x.shape))
    return x_if_free(root, x) if stays else None


in_order = p.where(lambda perm: perm is not None and list(perm) == sorted(perm))


@rewrite(P.Transpose(x, perm=in_order), shrinks=count())
def transpose_in_order(x: Var, root: Binding) -> Any:
    """Transpose(x, (0, 1, ..., n-1)) = x"""
    return x_if_free(root, x)


@rewrite(P.Slice(x, begin, end, axis.maybe, step.maybe), shrinks=count())
def slice_of_everything(
    x: Var, begin: Var, end: Var, axis: Var | None, step: Var | None, root: Binding
) -> Any:
    """x[0:, 0:, ...] = x"""
    starts = begin.ints
    ends = None if starts is None or any(starts) else sizes(end)
    if starts is None or ends is None or x.shape is None:
        return None
    axes = tuple(range(len(starts))) if axis is None else axis.ints
    steps = (1,) * len(starts) if step is None else step.ints
    if axes is None or steps is None:
        return None
    if not len(starts) == len(ends) == len(axes) == len(steps):
        return None  # an invalid Slice
    for last, k, by in zip(ends, axes, steps, strict=True):
        if not -len(x.shape) <= k < len(x.shape):
            return None
        if by != 1 or not (at_least(last, _FAR) or at_least(last, x.shape[k])):
            return None
    return x_if_free(root, x)


@rewrite(P.any_of("Concat", "Sum", "Max", "Min", "Mean")(x), shrinks=count())
def of_one_operand(x: Var, root: Binding) -> Any:
    """Concat(x) = Sum(x) = Max(x) = x"""
    return x_if_free(root, x)


@rewrite(P.Pad(x, y.const), shrinks=count())
def pad_by_nothing(x: Var, y: Var, root: Binding) -> Any:
    """Pad(x, 0) = x"""
    return x_if_free(root, x) if y.ints is not None and not any(y.ints) else None


@rewrite(P.Split(x, y.maybe), shrinks=count())
def split_into_one(x: Var, y: Var | None, root: Binding) -> Any:
    """Split(x) = x, into a single part"""
    parts = {len(root.outputs), root.attr("num_outputs", 1), len(root.attr("split") or (0,))}
    if parts != {1} or (y is not None and y.shape != (1,)):
        return None
    return x_if_free(root, x)


@rewrite(P.Cast(P.Cast(x)), shrinks=count())
def cast_of_cast(x: Var, root: Binding) -> Any:
    """Cast(Cast(x, to=a), to=dtype(x)) = x when every value of x's dtype is one of a's"""
    inner = root.inputs[0]
    if (
        inner is None
        or not x.dtype
        or root.attr("to") != x.dtype
        or (x.dtype, inner.dtype) not in _WIDENS
    ):
        return None
    return x_if_free(root, x)


_T = TensorProto
# pairs of dtypes: narrow -> wide -> narrow keeps every value, except NaN payloads
_WIDENS = frozenset({
    (_T.FLOAT16, _T.FLOAT), (_T.BFLOAT16, _T.FLOAT), (_T.FLOAT, _T.DOUBLE), (_T.FLOAT16, _T.DOUBLE),
    (_T.INT32, _T.INT64), (_T.INT8, _T.INT32), (_T.UINT8, _T.INT32), (_T.INT8, _T.INT64),
    (_T.UINT8, _T.INT64), (_T.BOOL, _T.INT32), (_T.BOOL, _T.INT64), (_T.BOOL, _T.FLOAT),
    (_T.BOOL, _T.FLOAT16), (_T.BOOL, _T.DOUBLE), (_T.BOOL, _T.UINT8), (_T.BOOL, _T.INT8),
})  # fmt: skip

NOOPS = [
    identity,
    cast_to_same,
    cast_like,
    cast_of_cast,
    same_shape_result,
    same_rank_result,
    transpose_in_order,
    slice_of_everything,
    of_one_operand,
    pad_by_nothing,
    split_into_one,
]


_OTHER_ZERO = "a zero of this sign turns -0.0 into 0.0"
number = c.const.where(lambda v: v.shape is not None and set(v.shape) <= {1})


def neutral(root: Binding, x: Var, c: Var, value: int, *, negative: bool = False) -> bool:
    """Whether `c` is the number `value` and the result has the shape of `x`. `negative`: whether a
    zero must be -0.0; raises Decline if it has the other sign.
    """
    array = c.const
    if array is None or array.dtype.kind not in "iuf" or array.item() != value:
        return False
    if array.dtype.kind == "f" and bool(np.signbit(array).item()) is not negative:
        raise decline(_OTHER_ZERO)
    if c.rank and (x.rank is None or x.rank < c.rank):
        return False  # (1,) + () has an axis
    # before opset 7 broadcasting depends on attributes
    return root.version >= 7 or same_shape(x.shape, root.out.shape)


@rewrite(P.Mul(x, number), shrinks=count())
def times_one(x: Var, c: Var, root: Binding) -> Any:
    """x 1 = x"""
    return x_if_free(root, x) if neutral(root, x, c, 1) else None


@rewrite(P.Div(x, number), shrinks=count())
def over_one(x: Var, c: Var, root: Binding) -> Any:
    """x / 1 = x"""
    return x_if_free(root, x) if neutral(root, x, c, 1) else None


@rewrite(P.Sub(x, number), shrinks=count())
def minus_zero(x: Var, c: Var, root: Binding) -> Any:
    """x - 0 = x; the zero is +0.0, for -0.0 - -0.0 is +0.0"""
    return x_if_free(root, x) if neutral(root, x, c, 0) else None


@rewrite(P.Add(x, number), shrinks=count())
def plus_zero(x: Var, c: Var, root: Binding) -> Any:
    """x + 0 = x for integers, x + -0.0 = x for floats: -0.0 + 0.0 is +0.0, so a positive zero
    stays
    """
    return x_if_free(root, x) if neutral(root, x, c, 0, negative=c.dtype in FLOAT_DTYPES) else None


@rewrite(P.Pow(x, number), shrinks=count())
def power_of_one(x: Var, c: Var, root: Binding) -> Any:
    """x ^ 1 = x for floats; onnxruntime raises integers as doubles, which does not keep every
    int64
    """
    return x_if_free(root, x) if x.dtype in FLOAT_DTYPES and neutral(root, x, c, 1) else None


@rewrite(P.any_of("And", "Or")(x, number), shrinks=count())
def and_true(x: Var, c: Var, root: Binding) -> Any:
    """x and true = x or false = x"""
    array = c.const
    fits = array is not None and bool(array.all()) is (root.op == "And")
    return x_if_free(root, x) if fits and same_shape(x.shape, root.out.shape) else None


@rewrite(P.Softmax(P.Add(x, c).only), shrinks=count())
def softmax_of_plus_zero(x: Var, c: Var, root: Binding) -> Any:
    """softmax(x + 0) = softmax(x) for zeros of either sign: exp(-0.0) is exp(0.0)

    Exporters write a mask of zeros where nothing is masked.
    """
    total = root.inputs[0]
    if c.dtype not in FLOAT_DTYPES or total is None or not same_shape(x.shape, total.shape):
        return None
    array: Any = c.const
    zeros = _is_zeros(c) if array is None else not array.any()
    return op.Softmax(x, **root.attrs) if zeros else None


elements = c.const.where(lambda v: v.shape is not None and not set(v.shape) <= {1})
_OF_CHAINS = frozenset({"Add", "Cast", "Div", "Mul", "Pow", "Reciprocal", "Sqrt"})
_CHAIN = 7  # of an RMS normalisation: Mul, Cast, Mul, Reciprocal, Sqrt, Add, ReduceMean


def _neutral_elements(root: Binding, x: Var, c: Var) -> Any:
    """Returns x if all elements of `c` are neutral and leave the shape of x."""
    array, value = c.const, int(root.op in ("Mul", "Div"))
    if array is None or array.dtype.kind not in "iuf" or not (array == value).all():
        return None
    negative = root.op == "Add" and array.dtype.kind == "f"
    if array.dtype.kind == "f" and value == 0 and not (np.signbit(array) == negative).all():
        return decline(_OTHER_ZERO)
    if not same_shape(x.shape, root.out.shape):
        return decline("the constant may broadcast the other operand")
    if _normalized(x, _CHAIN):
        return decline("onnxruntime needs the scale and the shift of a normalisation")
    return x_if_free(root, x)


def _normalized(x: Var, steps: int) -> bool:
    """Whether elementwise operators alone lead from a ReduceMean to x."""
    made = x.definition
    if made is None or not steps:
        return False
    if made.is_op("ReduceMean"):
        return True
    return made.op in _OF_CHAINS and any(
        v is not None and _normalized(v, steps - 1) for v in made.inputs
    )


@rewrite(P.any_of("Mul", "Add")(x, elements), shrinks=count())
def neutral_factors_and_terms(x: Var, c: Var, root: Binding) -> Any:
    """x [1, 1, ...] = x; x + [0, 0, ...] = x for integers and negative zeros"""
    return _neutral_elements(root, x, c)


@rewrite(P.any_of("Div", "Sub")(x, elements), shrinks=count())
def neutral_divisors_and_subtrahends(x: Var, c: Var, root: Binding) -> Any:
    """x / [1, 1, ...] = x; x - [0, 0, ...] = x for positive zeros"""
    return _neutral_elements(root, x, c)


NEUTRAL_ELEMENTS = [
    neutral_factors_and_terms,
    neutral_divisors_and_subtrahends,
    times_one,
    over_one,
    minus_zero,
    plus_zero,
    power_of_one,
    and_true,
    softmax_of_plus_zero,
]


_LAYERS = ("RNN", "GRU", "LSTM")
_QUANTIZED_LAYER = ("com.microsoft", "DynamicQuantizeLSTM")
_INITIAL_H, _INITIAL_C = 5, 6


def _is_refused(v: Var | None) -> bool:
    """Whether `v` is a vector of one element that is constant or may become constant: onnxruntime
    itself replaces an If of known condition by its branch.
    """
    if v is None or not v.rank or element_count(v.shape) != 1:
        return False
    return v.is_constant or (v.definition is not None and v.definition.is_op("If"))


VECTORS = Measure(
    "vectors that Range reads",
    lambda block: sum(_is_refused(v) for b in block.walk() if b.is_op("Range") for v in b.inputs),
)


@rewrite(P.Range(begin, end, step), shrinks=VECTORS)
def range_of_scalars(root: Binding) -> Any:
    """Range([a], [b], [c]) = Range(a, b, c)

    onnxruntime runs a Range of vectors with one element, until one of them is a constant.
    """
    if not any(map(_is_refused, root.inputs)):
        return None
    return op.Range(*(_as_scalar(v) if _is_refused(v) else v for v in root.inputs))


def _as_scalar(v: Var | None) -> Any:
    assert v is not None
    array = v.const if v.is_constant else None
    return op.Squeeze(v) if array is None else array.reshape(())


INITIAL_STATES = Measure(
    "initial states",
    lambda block: sum(
        v is not None
        for b in block.walk()
        if (b.op in _LAYERS and not b.domain) or (b.domain, b.op) == _QUANTIZED_LAYER
        for v in b.inputs[_INITIAL_H : _INITIAL_C + 1]
    ),
)
_OPERANDS = (x, w, r, b.maybe, lens.maybe, h.maybe, c.maybe, p.maybe)
_QUANTA = capture("w_scale w_zero r_scale r_zero")
_LAYER = P.any_of(*_LAYERS)(*_OPERANDS) | P.domain("com.microsoft").DynamicQuantizeLSTM(
    *_OPERANDS, *_QUANTA
)


@rewrite(_LAYER, shrinks=INITIAL_STATES)
def initial_state_of_zeros(x: Var, r: Var, root: Binding) -> Any:
    """LSTM(x, W, R, B, lens, 0, 0, P) = LSTM(x, W, R, B, lens, , , P), and so for RNN, GRU and
    DynamicQuantizeLSTM.

    An omitted state is zero. PyTorch's older exporter writes a chain of shape nodes for the zeros
    of every layer.
    """
    shape = _of_state(x, r, root)
    given = dict(enumerate(root.inputs[_INITIAL_H : _INITIAL_C + 1], _INITIAL_H))
    zeros = {i for i, v in given.items() if v is not None and _is_zeros(v)}
    if not zeros:
        return None
    if not all(v is None or same_shape(v.shape, shape) for v in map(given.get, zeros)):
        return decline("the initial state is not known to have the layer's shape")
    kept = [None if i in zeros else v for i, v in enumerate(root.inputs)]
    while kept[-1] is None:
        del kept[-1]
    return again(root, kept, outputs=len(root.outputs))


def _of_state(x: Var, r: Var, root: Binding) -> Shape | None:
    """(directions, batch, hidden), or with `layout` 1 (batch, directions, hidden)."""
    if x.shape is None or r.shape is None or len(x.shape) != 3 or len(r.shape) != 3:
        return None
    directions, *rest = r.shape
    hidden = rest[0] if root.domain else rest[1]  # the quantised layer has R transposed
    if root.attr("layout"):
        return (x.shape[0], directions, hidden)
    return (directions, x.shape[1], hidden)


def _is_zeros(v: Var) -> bool:
    """Whether `v` consists of positive zeros: constants or ConstantOfShape, moved and concatenated
    or not.
    """
    todo, seen = [v], {v}
    while todo:
        v = todo.pop()
        made = v.definition
        if made is not None and not made.domain and made.op in (*MOVES, "Concat"):
            sources = made.inputs if made.op == "Concat" else made.inputs[:1]
            new = [u for u in sources if u is not None and u not in seen]
            todo += new
            seen.update(new)
            continue
        array = v.const
        if made is not None and made.is_op("ConstantOfShape"):
            array = None if made.has_refs else filling(made)
        if array is None or array.dtype == object:
            return False
        if array.any() or np.signbit(array).any():
            return False
    return True
