"""Where the axes of an operand are in the result, by operator.

`axes(b, k)` returns the relation of each axis of operand k to the first result. `carried(b, k)`
keeps the axes whose indices stay: an element of the operand at index i of such an axis reaches only
elements at index i of that axis of the result.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypeAlias

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.domains import BROADCASTING, ELEMENTWISE, REDUCTIONS, full_name
from onnxgrad.ir.sizes import product
from onnxgrad.ir.type_inference.shape_arithmetic import sizes
from onnxgrad.ir.types import Shape, same_dim
from onnxgrad.ir.var import Var

# same: the index stays. repeated: it stays, or size 1 is repeated. mixed: each index reaches all.
# contracted: the result has no such axis. offset: indices are joined, cut or moved. windowed: an
# index reaches its neighbours.
How: TypeAlias = Literal["same", "repeated", "mixed", "contracted", "offset", "windowed"]


class Axis(NamedTuple):
    """The relation of an operand's axis. `to`: the axis of the result, or the name of an index that
    the result has not. Axes with one `to` have equal sizes, unless they are offset or windowed.
    """

    to: int | str
    how: How = "same"


# None for an axis that is split or joined to another, or whose relation is unknown
AxisMap: TypeAlias = "Sequence[Axis | None]"
_Rule: TypeAlias = Callable[[Binding, int, Shape, Shape], "AxisMap | None"]


def is_mapped(b: Binding) -> bool:
    """Whether the operator is in the table, or listed as one whose axes have no relation."""
    name = full_name(b.domain, b.op)
    return name in _RULES or name in OUTSIDE


def axes(b: Binding, slot: int) -> AxisMap | None:
    """Returns the relations of the axes of an operand; None if they are not in the table, or if a
    rank is unknown. A result of unknown rank counts as one of the most axes of an operand.
    """
    rule, x = _RULES.get(full_name(b.domain, b.op)), b.operand(slot)
    if rule is None or x is None or x.shape is None:
        return None
    y = b.outputs[0].shape if b.outputs and b.outputs[0] is not None else None
    wide = (v.shape for v in b.inputs if v is not None and v.shape is not None)
    return rule(b, slot, x.shape, max(wide, key=len) if y is None else y)


def carried(b: Binding, slot: int) -> tuple[int | None, ...] | None:
    """Returns the result's axis for each axis of an operand whose indices stay, None for others."""
    found, x, y = axes(b, slot), b.operand(slot), b.outputs[0] if b.outputs else None
    if found is None or x is None or y is None or x.shape is None or y.shape is None:
        return None
    return tuple(
        a.to
        if a is not None
        and isinstance(a.to, int)
        and (a.how == "same" or (a.how == "repeated" and same_dim(d, y.shape[a.to])))
        else None
        for d, a in zip(x.shape, found)
    )


def named_axes(b: Binding, rank: int) -> list[int] | None:
    """Returns the axes along which a node works, of an operand of this rank; None if they are
    unknown or beyond the rank.
    """
    given, first = b.operand(OPERAND_OF_AXES.get(b.op, len(b.inputs))), b.attr("axis")
    most = max(rank, 1)
    named: Sequence[int] | None
    if given is not None:
        named = () if given.shape == (0,) else given.ints
    elif first is not None:
        last = rank - 1 if b.op in _ROW_NORMS or flattens(b) else first % most
        named = range(first % most, last + 1)
    elif b.op == "Slice" and "axes" not in b.attrs:
        starts = b.operand(1)
        count = len(b.attr("starts") or ()) if starts is None else (starts.shape or (None,))[0]
        named = range(count) if isinstance(count, int) else None
    else:
        named = b.attr("axes", () if b.op in REDUCTIONS else range(rank))
    if b.op in REDUCTIONS and named is not None and not named:
        named = () if b.attr("noop_with_empty_axes", 0) else range(rank)
    if named is None or not all(-most <= a < most for a in named):
        return None
    return [a % most for a in named]


def flattens(b: Binding) -> bool:
    """Whether it is a Softmax or similar that works on all axes from one on, as before opset 13."""
    return b.op in _SOFTMAXES and b.version < 13


def _of_first(rule: _Rule) -> _Rule:
    """Returns the rule for the first operand alone."""
    return lambda b, slot, x, y: rule(b, slot, x, y) if slot == 0 else None


def _same(b: Binding, slot: int, x: Shape, y: Shape) -> AxisMap:
    return [Axis(i) for i in range(len(x))]


def _aligned(b: Binding, slot: int, x: Shape, y: Shape) -> AxisMap:
    """Axes are aligned at the end."""
    return [Axis(i + len(y) - len(x), "repeated") for i in range(len(x))]


def _along(how: How) -> _Rule:
    """Returns a rule for operators that work along the axes that they name."""

    def rule(b: Binding, slot: int, x: Shape, y: Shape) -> AxisMap | None:
        named = named_axes(b, len(x))
        if named is None:
            return None
        return [Axis(i, how if i in named else "same") for i in range(len(x))]

    return rule


def _contracted(b: Binding, slot: int, x: Shape, y: Shape) -> AxisMap | None:
    named, keeps = named_axes(b, len(x)), b.attr("keepdims", 1)
    if named is None:
        return None
    return [
        Axis(f"axis {i}", "contracted")
        if i in named
        else Axis(i if keeps else i - sum(a < i for a in named))
        for i in range(len(x))
    ]


def _transpose(b: Binding, slot: int, x: Shape, y: Shape) -> AxisMap:
    perm = list(b.attr("perm"))
    return [Axis(perm.index(i)) for i in range(len(x))]


def _reshape(b: Binding, slot: int, x: Shape, y: Shape) -> AxisMap:
    """An axis stays if as many elements are before it, or behind it. Size 1 does not count."""

    def stays(i: int, j: int) -> bool:
        parts = ((x[:i], y[:j]), (x[i + 1 :], y[j + 1 :]))
        return any(same_dim(product(before), product(after)) for before, after in parts)

    ends = range(len(y))
    found = (
        next((j for j in ends if d != 1 and same_dim(d, y[j]) and stays(i, j)), None)
        for i, d in enumerate(x)
    )
    return [None if j is None else Axis(j) for j in found]


def _pad(b: Binding, slot: int, x: Shape, y: Shape) -> AxisMap | None:
    """An axis with no padding keeps its indices."""
    named, pads = named_axes(b, len(x)), b.operand(1)
    known = b.attr("pads") if pads is None else sizes(pads)
    if named is None or known is None or len(known) != 2 * len(named):
        return None
    moved = {a for i, a in enumerate(named) if (known[i], known[i + len(named)]) != (0, 0)}
    return [Axis(i, "offset" if i in moved else "same") for i in range(len(x))]


def _gather(b: Binding, slot: int, x: Shape, y: Shape) -> AxisMap | None:
    """Axes of the indices take the place of the indexed axis."""
    data, indices = b.operand(0), b.operand(1)
    if data is None or indices is None or not data.rank or indices.rank is None:
        return None
    axis, more = b.attr("axis", 0) % data.rank, indices.rank - 1
    if slot:
        return [Axis(i + axis) for i in range(len(x))]
    return [Axis(i + more * (i > axis), "offset" if i == axis else "same") for i in range(len(x))]


def _one_hot(b: Binding, slot: int, x: Shape, y: Shape) -> AxisMap:
    axis = b.attr("axis", -1) % len(y)
    return [Axis(i + (i >= axis)) for i in range(len(x))]


def _matmul(b: Binding, slot: int, x: Shape, y: Shape) -> AxisMap | None:
    other = b.operand(1 - slot)
    if other is None or other.rank is None or not x:
        return None
    inner = Axis("inner", "contracted")
    if len(x) == 1:
        return [inner]
    rows = len(y) - 1 - (other.rank > 1)  # the axis after those of the batch
    batch = [Axis(rows + i, "repeated") for i in range(2 - len(x), 0)]
    return [*batch, inner, Axis(len(y) - 1)] if slot else [*batch, Axis(rows), inner]


def _gemm(b: Binding, slot: int, x: Shape, y: Shape) -> AxisMap:
    if slot == 2:
        return _aligned(b, slot, x, y)
    kept = [Axis(slot), Axis("inner", "contracted")]
    return kept[::-1] if bool(b.attr("transB" if slot else "transA")) != bool(slot) else kept


def _image(kept: int) -> _Rule:
    """Returns a rule for operands whose first axes stay and whose others are read by windows."""
    return lambda b, slot, x, y: [
        Axis(i, "same" if i < kept else "windowed") for i in range(len(x))
    ]


def _convolution(b: Binding, slot: int, x: Shape, y: Shape) -> AxisMap:
    """Samples are the first axis; the weight's first axis is the result's channels."""
    first = Axis(0) if slot == 0 else Axis(1) if slot == 2 or b.op == "Conv" else None
    inner: How = "windowed"
    return [first, *(None if slot or i == 1 else Axis(i, inner) for i in range(1, len(x)))]


def _grid(b: Binding, slot: int, x: Shape, y: Shape) -> AxisMap:
    return [Axis(0), *[None] * (len(x) - 1)] if slot else _image(2)(b, slot, x, y) or ()


def _channels(b: Binding, slot: int, x: Shape, y: Shape) -> AxisMap | None:
    """Operands after the first have one number per channel; at first one per group of channels."""
    if slot:
        return None if b.op == "GroupNormalization" and b.version < 21 else [Axis(1)] * len(x)
    trains = bool(b.attr("training_mode", 0))
    mixes = {0} if trains else set()
    mixes |= {1} if b.op == "GroupNormalization" else set()
    mixes |= set() if b.op == "BatchNormalization" and not trains else set(range(2, len(x)))
    return [Axis(i, "mixed" if i in mixes else "same") for i in range(len(x))]


def _row_norm(b: Binding, slot: int, x: Shape, y: Shape) -> AxisMap:
    if slot:
        return _aligned(b, slot, x, y)
    return _along("mixed")(b, slot, x, y) or ()


def _quantized(b: Binding, slot: int, x: Shape, y: Shape) -> AxisMap | None:
    """Scales and zero points have one number per position of an axis, or one for all."""
    if slot and len(x) == 1 and y:
        return [Axis(b.attr("axis", 1) % len(y), "repeated")]
    return None if slot else _same(b, slot, x, y)


def _recurrent(b: Binding, slot: int, x: Shape, y: Shape) -> AxisMap | None:
    """(length, batch, features), initial states (directions, batch, size), lengths (batch)."""
    first = bool(b.attr("layout", 0))
    samples, steps = Axis(0 if first else 2), Axis(1 if first else 0, "mixed")
    if slot == 4:
        return [samples]
    if slot in (0, 5, 6):
        other = None if slot else steps
        return [samples, other, None] if first else [other, samples, None]
    return None


def _attention(b: Binding, slot: int, x: Shape, y: Shape) -> AxisMap | None:
    """Queries, keys and values are (batch, heads, length, size) or (batch, length, size); a mask is
    aligned with (batch, heads, length of queries, length of keys).
    """
    heads, keys = [None] * (len(x) - 3), Axis("keys", "contracted")
    if slot == 3:
        past = b.operand(4) is not None
        behind = [Axis(len(y) - 2, "repeated"), None if past else Axis("keys", "repeated")]
        return [*[None] * (len(x) - 2), *behind[-len(x) :]] if x else []
    return [Axis(0), *heads, keys if slot else Axis(len(y) - 2), None] if slot < 3 else None


def _scatter_elements(b: Binding, slot: int, x: Shape, y: Shape) -> AxisMap:
    """Indices and updates have one shape."""
    return [Axis(f"place {i}", "contracted") if slot else Axis(i) for i in range(len(x))]


def _scatter_nd(b: Binding, slot: int, x: Shape, y: Shape) -> AxisMap | None:
    """Indices are (*n, k), updates (*n, *axes of the data after the first k).

    Constant indices have no axis that another operand must agree with.
    """
    indices = b.operand(1)
    if indices is None or indices.rank is None or (slot == 1 and indices.const is not None):
        return None
    before = indices.rank - 1
    places: list[Axis | None] = [Axis(f"place {i}", "contracted") for i in range(before)]
    if slot == 1:
        return [*places, None]
    behind = [Axis(len(y) - len(x) + i) for i in range(before if slot else 0, len(x))]
    return [*places, *behind] if slot else behind


def einsum_indices(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Returns the indices of the operands of an Einsum, and those of its result, with letters for
    those of an ellipsis.
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if not arrow:
        once = {c for c in left if left.count(c) == 1 and c.isalpha()}
        right = ("..." if "." in left else "") + "".join(sorted(once))
    spare = [c for c in string.ascii_letters if c not in left + right]
    widths = [rank - len(t) + 3 if "..." in t else 0 for t, rank in zip(terms, ranks, strict=True)]
    letters = ["".join(spare[:width][::-1]) for width in (*widths, max(widths))]
    found = [t.replace("...", free) for t, free in zip((*terms, right), letters, strict=True)]
    return found[:-1], found[-1]


def _einsum(b: Binding, slot: int, x: Shape, y: Shape) -> AxisMap | None:
    equation, ranks = str(b.attr("equation")), [v.rank for v in b.inputs if v is not None]
    known = [rank for rank in ranks if rank is not None]
    if len(known) < len(ranks):
        return None
    terms, right = einsum_indices(equation, known)
    return [
        Axis(
            right.index(c) if c in right else c,
            "contracted" if c not in right else "same" if c in equation else "repeated",
        )
        for c in terms[slot]
    ]


# they keep the order of all elements
RESHAPES = frozenset({"Flatten", "Reshape", "Squeeze", "Unsqueeze"})
_SOFTMAXES = ("Hardmax", "LogSoftmax", "Softmax")
_ROW_NORMS = ("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")
OPERAND_OF_AXES = {
    **dict.fromkeys((*REDUCTIONS, "CumProd", "CumSum", "Squeeze"), 1),
    **dict.fromkeys(("Pad", "Slice"), 3),
}
# channels stay apart
_POOLS = (
    "AveragePool", "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", "LpPool", "MaxPool",
)  # fmt: skip
_RULES: dict[str, _Rule] = {
    **dict.fromkeys((*ELEMENTWISE, "Dropout", "ai.onnx.ml::Binarizer"), _of_first(_same)),
    **dict.fromkeys(("com.microsoft::Gelu", "com.microsoft::QuickGelu"), _of_first(_same)),
    **dict.fromkeys((*BROADCASTING, "com.microsoft::FastGelu"), _aligned),
    **dict.fromkeys((*REDUCTIONS, "ArgMax", "ArgMin"), _of_first(_contracted)),
    **dict.fromkeys(
        (*_SOFTMAXES, "CumProd", "CumSum", "LpNormalization", "MeanVarianceNormalization"),
        _of_first(_along("mixed")),
    ),
    **dict.fromkeys(("Slice", "Split", "TopK"), _of_first(_along("offset"))),
    **dict.fromkeys(RESHAPES, _of_first(_reshape)),
    **dict.fromkeys(("Conv", "ConvTranspose"), _convolution),
    **dict.fromkeys(_ROW_NORMS, _row_norm),
    **dict.fromkeys(
        ("BatchNormalization", "GroupNormalization", "InstanceNormalization"), _channels
    ),
    **dict.fromkeys(_POOLS, _of_first(_image(2))),
    **dict.fromkeys(("AffineGrid", "DepthToSpace", "LRN", "SpaceToDepth"), _of_first(_image(1))),
    **dict.fromkeys(("GRU", "LSTM", "RNN"), _recurrent),
    **dict.fromkeys(("DequantizeLinear", "QuantizeLinear"), _quantized),
    "Attention": _attention,
    "Concat": _along("offset"),
    "Einsum": _einsum,
    "Expand": _of_first(_aligned),
    "Gather": _gather,
    "Gemm": _gemm,
    "GridSample": _grid,
    "MatMul": _matmul,
    "OneHot": _of_first(_one_hot),
    "Pad": _of_first(_pad),
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "Transpose": _transpose,
    "Trilu": _of_first(lambda b, slot, x, y: [*_same(b, slot, x[:-2], y), None, None]),
}
# operators without a map, and why operands need not agree
OUTSIDE = {
    **dict.fromkeys(("Constant", "ConstantOfShape", "Range"), "they read no axis"),
    **dict.fromkeys(("Shape", "Size"), "the result holds sizes"),
    **dict.fromkeys(("GatherElements", "GatherND"), "indices choose from axes of other sizes"),
    **dict.fromkeys(("Resize", "Upsample"), "a scale of 1 may be known only at run time"),
    "Tile": "axes repeat as often as an operand says",
}


def on_axes(v: Var) -> tuple[int, ...] | None:
    """Returns the axes along which a value may vary: those whose size is not 1."""
    return None if v.shape is None else tuple(i for i, d in enumerate(v.shape) if d != 1)
