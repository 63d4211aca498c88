"""Types of the most common operators in closed form, or None if onnx must infer them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import zip_longest
from typing import TypeAlias

from onnx import NodeProto, TensorProto

from onnxgrad.ir.attributes import values_of, written
from onnxgrad.ir.domains import ACTIVATIONS
from onnxgrad.ir.type_inference.symbolic_shapes import (
    of_concat,
    of_expand,
    of_reduction,
    of_reshape,
    of_unsqueeze,
    once_each,
)
from onnxgrad.ir.type_inference.window_shapes import Call, of_conv
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
    shape = matmul_shape(x, y) if x.dtype == y.dtype else None
    return None if shape is None else TensorType(x.dtype, shape)


def matmul_shape(x: TensorType, y: TensorType) -> Shape | None:
    """Returns the shape of x @ y, None if a rank is unknown or below 2. Raises TypeMismatch."""
    a, b = x.shape, y.shape
    if a is None or b is None or len(a) < 2 or len(b) < 2:
        return None
    if isinstance(a[-1], int) and isinstance(b[-2], int) and a[-1] != b[-2]:
        raise TypeMismatch(f"inner sizes differ: {x} @ {y}")
    batch = _broadcast([a[:-2], b[:-2]], (x, y))
    return None if batch is None else (*batch, a[-2], b[-1])


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


def _joins(c: Call) -> bool:
    """Whether the operands of a Concat are known to fit. Raises TypeMismatch if they do not."""
    first, shapes = c.x.shape, [None if v is None else v.shape for v in c.inputs]
    known = [s for s in shapes if s is not None]
    if first is None or len(known) < len(shapes) or any(len(s) != len(first) for s in known):
        return False
    axis = c.attr("axis", 1)  # opset 1 had this default
    if not -len(first) <= axis < len(first):
        raise TypeMismatch(f"axis {axis} does not fit {c.x.type}")
    for i, column in enumerate(zip(*known, strict=True)):
        if i != axis % len(first) and len({d for d in column if isinstance(d, int)}) > 1:
            types = ", ".join(str(v.type) for v in c.inputs if v is not None)
            raise TypeMismatch(f"sizes along axis {i} differ: {types}")
    return _alike(c)


def _alike(c: Call) -> bool:
    """Whether all operands have one dtype."""
    return len({v.dtype for v in c.inputs if v is not None}) == 1


def _shape(node: NodeProto, inputs: Sequence[Var]) -> TensorType | None:
    shape = inputs[0].shape
    if shape is None:
        return TensorType(TensorProto.INT64, (None,))
    start, end = written(node, "start", 0), written(node, "end", len(shape))
    return TensorType(TensorProto.INT64, (len(shape[start:end]),))


def _keeps_elements(c: Call) -> bool:
    """Whether a Reshape goes to constant sizes of as many elements, at least one; the target is an
    attribute below opset 5.
    """
    count, sizes = element_count(c.x.shape), _integers(c)
    if not count or sizes is None or min(sizes, default=0) < -1 or sizes.count(-1) > 1:
        return False
    return count == element_count(of_reshape(c))


def _integers(c: Call) -> tuple[int, ...] | None:
    """The elements of the second operand, a constant vector."""
    given = c.operand(1)
    return None if given is None or len(given.shape or ()) != 1 else given.ints


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


def _reduces(c: Call) -> bool:
    """Whether the axes of a reduction are constants, at least one, each there once."""
    axes, rank = _integers(c), c.x.rank
    return bool(axes) and rank is not None and once_each(axes or (), rank) is not None


def _slides(c: Call) -> bool:
    """Whether the sizes and attributes of a Conv are known, and each axis has room for a window."""
    x, w = c.x.shape, c.inputs[1].shape if c.inputs[1] is not None else None
    if x is None or w is None or len(x) != len(w) or x[0] is None or not _alike(c):
        return False
    sizes, kernel = [d for d in x[1:] if isinstance(d, int)], [d for d in w if isinstance(d, int)]
    if len(x) < 3 or len(sizes) < len(x) - 1 or len(kernel) < len(w):
        return False
    a, n = values_of(c.node), len(x) - 2
    pads, dilations = a.get("pads", [0] * 2 * n), a.get("dilations", [1] * n)
    return (
        a.get("auto_pad", b"NOTSET") == b"NOTSET"
        and list(a.get("kernel_shape", kernel[2:])) == kernel[2:]
        and sizes[0] == kernel[1] * a.get("group", 1)
        and (len(dilations), len(pads)) == (n, 2 * n)
        and all(
            d + before + after > dilation * (k - 1)
            for d, before, after, dilation, k in zip(
                sizes[1:], pads[:n], pads[n:], dilations, kernel[2:], strict=True
            )
        )
    )


def _grows(c: Call) -> bool:
    """Whether an Expand goes from known sizes to constant ones, none of which is 0."""
    shape, target = c.x.shape, _integers(c)
    if shape is None or target is None or min(target, default=1) < 1:
        return False
    found = of_expand(c) if all(isinstance(d, int) for d in shape) else None
    return found is not None and None not in found


def _sized(rule: Callable[[Call], Shape | None], fits: Callable[[Call], object]) -> _Rule:
    """Returns a rule from that for the shape, for the nodes that `fits` accepts: onnx reports what
    is wrong with others.
    """

    def of(node: NodeProto, inputs: Sequence[Var]) -> TensorType | None:
        c = Call(node, inputs[0], inputs, None)
        shape = rule(c) if fits(c) else None
        return None if shape is None else TensorType(c.x.dtype, shape)

    return of


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
    "Concat": _sized(of_concat, _joins),
    "Shape": _shape,
    "Reshape": _sized(of_reshape, _keeps_elements),
    "Gemm": _gemm,
    "Conv": _sized(of_conv, _slides),
    "Unsqueeze": _sized(of_unsqueeze, lambda c: len(c.inputs) == 1 or _integers(c)),
    "Expand": _sized(of_expand, _grows),
    "LayerNormalization": _layer_normalization,
    **dict.fromkeys(["ReduceSum", "ReduceMean"], _sized(of_reduction, _reduces)),
}
