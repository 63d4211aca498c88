"""Types of the most common operators in closed form, or None if onnx must infer them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, reduce
from itertools import zip_longest
from typing import TypeAlias

from onnx import NodeProto, TensorProto

from onnxgrad.ir.attributes import values_of, written
from onnxgrad.ir.domains import ACTIVATIONS
from onnxgrad.ir.sizes import Dim, add
from onnxgrad.ir.types import (
    Shape,
    TensorType,
    TypeMismatch,
    broadcast_shapes,
    element_count,
    same_dim,
)
from onnxgrad.ir.var import Var

_Rule: TypeAlias = Callable[[NodeProto, Sequence[Var]], TensorType | None]
# combinations of operands' types that are remembered for each rule
_TYPES = 1 << 12


def _unary(node: NodeProto, inputs: Sequence[Var]) -> TensorType | None:
    return TensorType(inputs[0].dtype, inputs[0].shape) if len(inputs) == 1 else None


def _of_types(rule: Callable[..., TensorType | None]) -> _Rule:
    """Returns a rule that needs the operands' types only, with a cache: the layers of a model share
    types.
    """
    known = lru_cache(maxsize=_TYPES)(rule)

    def of(node: NodeProto, inputs: Sequence[Var]) -> TensorType | None:
        return known(*[v.type for v in inputs])

    return of


@_of_types
def _binary(*types: TensorType) -> TensorType | None:
    if len({t.dtype for t in types}) != 1:
        return None  # onnx reports what is wrong
    return TensorType(types[0].dtype, _broadcast([t.shape for t in types], types))


@_of_types
def _compare(*types: TensorType) -> TensorType | None:
    if len({t.dtype for t in types}) != 1:
        return None
    return TensorType(TensorProto.BOOL, _broadcast([t.shape for t in types], types))


@_of_types
def _where(*types: TensorType) -> TensorType | None:
    c, x, y = types
    if c.dtype != TensorProto.BOOL or x.dtype != y.dtype:
        return None
    return TensorType(x.dtype, _broadcast([t.shape for t in types], types))


@_of_types
def _power(*types: TensorType) -> TensorType | None:
    return TensorType(types[0].dtype, _broadcast([t.shape for t in types], types))


def _broadcast(shapes: Sequence[Shape | None], types: Sequence[TensorType]) -> Shape | None:
    shape = broadcast_shapes(shapes)
    if shape is not None and None in shape:  # unknown, or two known sizes that do not match
        for column in zip_longest(*[reversed(s or ()) for s in shapes], fillvalue=1):
            if len({d for d in column if isinstance(d, int) and d != 1}) > 1:
                raise TypeMismatch(f"shapes do not broadcast: {' and '.join(map(str, types))}")
    return shape


@_of_types
def _matmul(*types: TensorType) -> TensorType | None:
    x, y = types
    a, b = x.shape, y.shape
    if a is None or b is None or len(a) < 2 or len(b) < 2 or x.dtype != y.dtype:
        return None
    if isinstance(a[-1], int) and isinstance(b[-2], int) and a[-1] != b[-2]:
        raise TypeMismatch(f"inner sizes differ: {x} @ {y}")
    batch = _broadcast([a[:-2], b[:-2]], types)
    return None if batch is None else TensorType(x.dtype, (*batch, a[-2], b[-1]))


def _transpose(node: NodeProto, inputs: Sequence[Var]) -> TensorType | None:
    shape = inputs[0].shape
    if shape is None:
        return None
    perm = list(written(node, "perm", range(len(shape) - 1, -1, -1)))
    if sorted(perm) != list(range(len(shape))):
        raise TypeMismatch(f"perm {perm} does not fit {inputs[0].type}")
    return TensorType(inputs[0].dtype, tuple([shape[p] for p in perm]))


def _cast(node: NodeProto, inputs: Sequence[Var]) -> TensorType | None:
    return TensorType(written(node, "to", 0), inputs[0].shape)


def _concat(node: NodeProto, inputs: Sequence[Var]) -> TensorType | None:
    shapes = [v.shape for v in inputs]
    first = shapes[0]
    if first is None or any(s is None or len(s) != len(first) for s in shapes):
        return None
    axis = written(node, "axis", 1)  # opset 1 had this default
    if not -len(first) <= axis < len(first):
        raise TypeMismatch(f"axis {axis} does not fit {inputs[0].type}")
    axis %= len(first)
    dims: list[Dim] = []
    for i in range(len(first)):
        sizes = [s[i] for s in shapes if s is not None]
        if i == axis:
            dims.append(reduce(add, sizes))
            continue
        known = {d for d in sizes if isinstance(d, int)}
        if len(known) > 1:
            raise TypeMismatch(
                f"sizes along axis {i} differ: {', '.join(str(v.type) for v in inputs)}"
            )
        dims.append(
            next(iter(known))
            if known
            else sizes[0]
            if all(same_dim(d, sizes[0]) for d in sizes)
            else None
        )
    return TensorType(inputs[0].dtype, tuple(dims)) if len({v.dtype for v in inputs}) == 1 else None


def _shape(node: NodeProto, inputs: Sequence[Var]) -> TensorType | None:
    shape = inputs[0].shape
    if shape is None:
        return TensorType(TensorProto.INT64, (None,))
    start, end = written(node, "start", 0), written(node, "end", len(shape))
    return TensorType(TensorProto.INT64, (len(shape[start:end]),))


def _reshape(node: NodeProto, inputs: Sequence[Var]) -> TensorType | None:
    if len(inputs) < 2:  # the target is an attribute below opset 5
        return None
    shape = inputs[0].shape
    count = element_count(shape)
    target = inputs[1].ints if count else None
    if shape is None or not count or target is None or len(inputs[1].shape or ()) != 1:
        return None
    sizes = [
        shape[i] if d == 0 and i < len(shape) and not written(node, "allowzero", 0) else d
        for i, d in enumerate(target)
    ]
    rest = element_count(tuple(d for d in sizes if d != -1))
    if min(target, default=0) < -1 or not rest or sizes.count(-1) > 1 or count % rest:
        return None  # onnx reports what is wrong
    return TensorType(inputs[0].dtype, tuple(count // rest if d == -1 else d for d in sizes))


def _gemm(node: NodeProto, inputs: Sequence[Var]) -> TensorType | None:
    a, b = inputs[0].shape, inputs[1].shape
    if (
        len(inputs) not in (2, 3)
        or a is None
        or b is None
        or len(a) != 2
        or len(b) != 2
        or len({v.dtype for v in inputs}) > 1
    ):
        return None
    (m, k), (k2, n) = (
        a[:: -1 if written(node, "transA", 0) else 1],
        b[:: -1 if written(node, "transB", 0) else 1],
    )
    return TensorType(inputs[0].dtype, (m, n)) if same_dim(k, k2) else None


def _reduce(node: NodeProto, inputs: Sequence[Var]) -> TensorType | None:
    shape, axes = inputs[0].shape, inputs[1].ints if len(inputs) == 2 else None
    if shape is None or not axes or any(not -len(shape) <= a < len(shape) for a in axes):
        return None
    gone = {a % len(shape) for a in axes}
    left = [1 if i in gone else d for i, d in enumerate(shape)]
    kept = written(node, "keepdims", 1)
    return TensorType(
        inputs[0].dtype, tuple(d for i, d in enumerate(left) if kept or i not in gone)
    )


def _conv(node: NodeProto, inputs: Sequence[Var]) -> TensorType | None:
    """(N, M, (d_i + pads - dilation_i (k_i - 1) - 1) // stride_i + 1), of known sizes."""
    x, w = inputs[0].shape, inputs[1].shape
    if x is None or w is None or len(x) != len(w) or inputs[0].dtype != inputs[1].dtype:
        return None
    n = len(x) - 2
    sizes, kernel = [d for d in x[1:] if isinstance(d, int)], [d for d in w if isinstance(d, int)]
    if n < 1 or x[0] is None or len(sizes) <= n or len(kernel) < n + 2:
        return None
    a = values_of(node)
    strides, dilations = a.get("strides", [1] * n), a.get("dilations", [1] * n)
    pads = a.get("pads", [0] * 2 * n)
    if (
        (len(strides), len(dilations), len(pads)) != (n, n, 2 * n)
        or a.get("auto_pad", b"NOTSET") != b"NOTSET"
        or list(a.get("kernel_shape", kernel[2:])) != kernel[2:]
        or sizes[0] != kernel[1] * a.get("group", 1)
    ):
        return None
    room = [
        d + before + after - dilation * (k - 1) - 1
        for d, before, after, dilation, k in zip(
            sizes[1:], pads[:n], pads[n:], dilations, kernel[2:], strict=True
        )
    ]
    if min(room) < 0 or min(strides) < 1:
        return None  # onnx reports what is wrong
    spatial = [r // s + 1 for r, s in zip(room, strides, strict=True)]
    return TensorType(inputs[0].dtype, (x[0], kernel[0], *spatial))


def _unsqueeze(node: NodeProto, inputs: Sequence[Var]) -> TensorType | None:
    shape = inputs[0].shape
    axes = inputs[1].ints if len(inputs) == 2 else written(node, "axes", None)
    if shape is None or not axes or (len(inputs) == 2 and inputs[1].rank != 1):
        return None
    rank = len(shape) + len(axes)
    new = {a % rank for a in axes if -rank <= a < rank}
    if len(new) != len(axes):
        return None
    rest = iter(shape)
    return TensorType(inputs[0].dtype, tuple(1 if i in new else next(rest) for i in range(rank)))


def _expand(node: NodeProto, inputs: Sequence[Var]) -> TensorType | None:
    shape, target = inputs[0].shape, inputs[1].ints
    if shape is None or target is None or inputs[1].rank != 1 or min(target, default=1) < 1:
        return None
    if not all(isinstance(d, int) for d in shape):
        return None
    found = broadcast_shapes([shape, target])
    return None if found is None or None in found else TensorType(inputs[0].dtype, found)


def _layer_normalization(node: NodeProto, inputs: Sequence[Var]) -> TensorType | None:
    x = inputs[0]
    if x.shape is None or not -len(x.shape) <= written(node, "axis", -1) < len(x.shape):
        return None
    return TensorType(x.dtype, x.shape) if len({v.dtype for v in inputs}) == 1 else None


_SAME_AS_OPERAND = (
    *(op for op in ACTIVATIONS if op != "Clip"), "Identity", "LogSoftmax", "Not", "Softmax",
)  # fmt: skip


CLOSED_FORMS: dict[str, _Rule] = {
    **dict.fromkeys(_SAME_AS_OPERAND, _unary),
    **dict.fromkeys(["Add", "Sub", "Mul", "Div", "And", "Or", "Xor"], _binary),
    **dict.fromkeys(["Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"], _compare),
    "Where": _where,
    "Pow": _power,
    "MatMul": _matmul,
    "Transpose": _transpose,
    "Cast": _cast,
    "Concat": _concat,
    "Shape": _shape,
    "Reshape": _reshape,
    "Gemm": _gemm,
    "Conv": _conv,
    "Unsqueeze": _unsqueeze,
    "Expand": _expand,
    "LayerNormalization": _layer_normalization,
    "ReduceSum": _reduce,
    "ReduceMean": _reduce,
}


def refine_ml(node: NodeProto, x: Var) -> Shape | None:
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
# the operators whose results `refine_ml` may know better than onnx
ML_REFINED = _ELEMENTWISE | frozenset(_WIDTHS)
