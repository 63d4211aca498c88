"""Rules that compute a node with the rows on their own axis in front."""

from __future__ import annotations

import string

import numpy as np
from onnx import TensorProto

from onnxgrad.batching.along_axes import OVER_AXES, UNARY, axes_of
from onnxgrad.batching.elementwise_and_products import check_broadcasting, indices_of
from onnxgrad.batching.layout import FRONT, Refused, Size, known
from onnxgrad.batching.registry import shifted
from onnxgrad.batching.site import Site
from onnxgrad.ir.axis_maps import flattens
from onnxgrad.ir.domains import BROADCASTING
from onnxgrad.ir.emission.emit import constant, emit
from onnxgrad.ir.ops import op
from onnxgrad.ir.sizes import product
from onnxgrad.ir.types import TensorType
from onnxgrad.ir.var import Var


@shifted(f"{UNARY} CastLike Trilu Det")
def unary(at: Site) -> None:
    """Elementwise, or on the last two axes."""
    at.only_first()
    at.back(at.again(at.front(0), *at.operands[1:]))


@shifted(" ".join(BROADCASTING))
def broadcasting(at: Site) -> None:
    """Rows broadcast against shared operands."""
    check_broadcasting(at)
    if at.op == "PRelu" and at.at(0) is None:
        raise Refused("the slope differs from row to row, and its operand does not")
    rank = len(at.result())
    at.back(at.again(*(at.front(k, rank) for k in at.present())))


@shifted("MatMul")
def matmul(at: Site) -> None:
    """Vectors become matrices, rows lead."""
    vectors = (at.rank(0) == 1, at.rank(1) == 1)
    rank = max(len(at.result()) + sum(vectors), 2)
    found = []
    for k in (0, 1):
        v = at.front(k) if vectors[k] else at.front(k, rank)
        if vectors[k]:
            size = at.sizes(k)[0]
            matrix: list[Size] = [1, size] if k == 0 else [size, 1]
            lead = [1] * (rank - 2)
            v = at.reshape(v, matrix if at.at(k) is None else [-1, *lead, *matrix])
        found.append(v)
    made = op.MatMul(*found)
    at.back(at.reshape(made, [-1, *at.result()]) if any(vectors) else made)


@shifted("Gemm")
def gemm(at: Site) -> None:
    """A product for each row."""
    x, y = at.front(0), at.front(1)
    if at.attr("transA"):
        x = op.Transpose(x, perm=[1, 0] if at.at(0) is None else [0, 2, 1])
    if at.attr("transB"):
        y = op.Transpose(y, perm=[1, 0] if at.at(1) is None else [0, 2, 1])
    made = op.MatMul(x, y)
    if at.attr("alpha", 1.0) != 1.0:
        made = made * at.attr("alpha")
    if at.operand(2) is not None:
        bias = at.front(2, 2)
        made = made + (bias if at.attr("beta", 1.0) == 1.0 else bias * at.attr("beta"))
    if at.batched() == [2]:
        raise Refused("rows in the bias alone")
    at.back(made)


@shifted("Einsum")
def einsum(at: Site) -> None:
    """One index more."""
    terms, right = indices_of(at)
    free = next(c for c in string.ascii_letters if c not in "".join(terms))
    wider = [free + t if at.at(k) else t for k, t in enumerate(terms)]
    operands = [at.front(k) for k in at.present()]
    made = at.again(*operands, equation=f"{','.join(wider)}->{free}{right}")
    made.type = TensorType(made.dtype, (1, *(at.binding.out.shape or ())))  # of a broadcast index
    at.back(made)


@shifted(OVER_AXES)
def reduction(at: Site) -> None:
    """Over the axes of one row."""
    at.only_first()
    given = at.operand(1)
    if given is not None and given.const is None:
        computed = at.inner_axes(1, at.rank(0))
        if computed is not None:
            at.back(at.again(at.front(0), computed))
            return
    x, axes = _apart(at, axes_of(at))
    kept = {}
    if not axes:  # ReduceL2 is Abs then: over a new axis of size 1
        axes, kept = [at.rank(0) + 1], {"keepdims": 0}
        x = op.Unsqueeze(x, axes)
    if at.op.startswith("Arg"):
        at.back(at.again(x, axis=axes[0]))
    elif at.version >= (13 if at.op == "ReduceSum" else 18):
        at.back(at.again(x, np.array(axes, np.int64), axes=None, **kept))
    else:
        at.back(at.again(x, axes=axes, **kept))


def _apart(at: Site, over: list[int]) -> tuple[Var, list[int]]:
    """Returns the operand with the rows in front, and the axes to reduce. Rows on an axis of size 1
    that is reduced stay there, and the other axes are reduced: one axis more of size 1 makes
    onnxruntime add element by element, which is slower and has ten times the error.
    """
    x, others = at.operand(0), sorted({*over} - {0})
    dropped = at.first() == FRONT and 0 in over and at.sizes(0)[0] == 1
    if x is not None and dropped and others and not at.attr("keepdims", 1):
        return x, others
    return at.front(0), [a + 1 for a in over]


@shifted("Softmax LogSoftmax Hardmax")
def softmax(at: Site) -> None:
    """Along an axis of one row."""
    at.only_first()
    rank = at.rank(0)
    axis = at.axis("axis", 1 if flattens(at.binding) else -1, rank)
    if not flattens(at.binding) or axis == rank - 1:
        at.back(at.again(at.front(0), axis=axis + 1))
        return
    sizes = at.sizes(0)
    x = at.reshape(at.front(0), [-1, *sizes[:axis], known(product(sizes[axis:]))])
    at.back(at.reshape(at.again(x, axis=axis + 1), [-1, *sizes]))


@shifted("DFT")
def dft(at: Site) -> None:
    """Along an axis of one row."""
    at.only_first()
    if at.version < 20:
        at.back(at.again(at.front(0), *at.operands[1:], axis=at.axis("axis", 1, at.rank(0)) + 1))
        return
    axis = at.inner_axes(2, at.rank(0))
    if not isinstance(axis, Var):
        axis = np.array(at.rank(0) - 1 if axis is None else axis).reshape(())
    at.back(at.again(at.front(0), at.operand(1), axis))


@shifted("CumSum CumProd")
def cum_sum(at: Site) -> None:
    """Along an axis of one row."""
    at.only_first()
    axis = at.inner_axes(1, at.rank(0))
    if not isinstance(axis, Var) and axis is not None:
        axis = axis.reshape(())
    at.back(at.again(at.front(0), axis))


@shifted(
    "TopK Split LpNormalization LayerNormalization RMSNormalization SimplifiedLayerNormalization"
)
def along(at: Site) -> None:
    """Along an axis of one row, or from one on."""
    at.only_first()
    axis = at.axis("axis", 0 if at.op == "Split" else -1, at.rank(0)) + 1
    at.back(at.again(at.front(0), *at.operands[1:], axis=axis))


@shifted("Squeeze Unsqueeze")
def squeeze(at: Site) -> None:
    """Axes after that of the rows."""
    at.only_first()
    rank = len(at.result()) if at.op == "Unsqueeze" else at.rank(0)
    axes = at.inner_axes(1, rank, "axes")
    if axes is None:
        axes = np.array([i + 1 for i, d in enumerate(at.sizes(0)) if d == 1])
    x = at.front(0)
    at.back(emit(at.op, [x, axes]) if not isinstance(axes, np.ndarray) or axes.size else x)


@shifted("Reshape Flatten")
def reshape(at: Site) -> None:
    """Each row in its new shape."""
    at.only_first()
    try:
        at.back(at.reshape(at.front(0), [-1, *at.result()]))
    except Refused:
        shape = at.operand(1)
        if shape is None:
            raise
        front = at.sizes_at.rows() if at.attr("allowzero", 0) else np.zeros(1, np.int64)
        at.back(at.again(at.front(0), op.Concat(front, shape, axis=0)))


@shifted("Transpose")
def transpose(at: Site) -> None:
    """The axes of one row."""
    perm = at.binding.attrs.get("perm", range(at.rank(0))[::-1])
    at.back(at.again(at.front(0), perm=[0, *(p + 1 for p in perm)]))


@shifted("Expand")
def expand(at: Site) -> None:
    """Each row to its new shape."""
    at.only_first()
    rank = len(at.result())
    x, target = at.front(0, rank), at.operand(1)
    try:
        sizes = at.sizes_at.vector([1, *at.result()])
    except Refused:
        count = None if target is None else (target.shape or (None,))[0]
        if not isinstance(count, int):
            raise
        sizes = op.Concat(np.ones(1 + rank - count, np.int64), target, axis=0)
    at.back(op.Expand(x, sizes))


@shifted("Concat")
def concat(at: Site) -> None:
    """Along an axis of one row; shared operands repeat."""
    axis = at.axis("axis", 1, len(at.result())) + 1
    at.back(at.again(*(_each(at, k) for k in at.present()), axis=axis))


def _each(at: Site, k: int) -> Var:
    """Operand `k` with an axis for the rows in front, repeated if it is shared."""
    v = at.front(k)
    if at.at(k) is not None:
        return v
    one = at.reshape(v, [1, *at.sizes(k)])
    made: Var = op.Tile(one, at.repeats(0, at.rank(k)))
    return made


@shifted("Slice")
def slice_(at: Site) -> None:
    """Along the axes of one row."""
    at.only_first()
    rank = at.rank(0)
    axes, starts = at.inner_axes(3, rank, "axes"), at.operand(1)
    if axes is None:
        count = len(at.attr("starts")) if starts is None else (starts.shape or (None,))[0]
        if not isinstance(count, int):
            raise Refused("its axes are not known")
        axes = np.arange(1, count + 1)
    if starts is None or at.version < 10:
        at.back(at.again(at.front(0), axes=np.asarray(axes).tolist()))
        return
    there = axes if isinstance(axes, Var) else constant(axes, starts.dtype)
    if there.dtype != starts.dtype:
        there = op.Cast(there, to=starts.dtype)
    at.back(at.again(at.front(0), starts, at.operand(2), there, *at.operands[4:]))


@shifted("Pad")
def pad(at: Site) -> None:
    """Along the axes of one row."""
    at.only_first()
    rank = at.rank(0)
    if at.version < 11:
        raise Refused("Pad of an old opset")
    if at.version >= 18:
        axes = at.inner_axes(3, rank)
        axes = np.arange(1, rank + 1) if axes is None else axes
        at.back(at.again(at.front(0), at.operand(1), at.operand(2), axes))
        return
    pads = at.ints(1) or []
    wider = np.array([0, *pads[:rank], 0, *pads[rank:]], np.int64)
    at.back(at.again(at.front(0), wider, *at.operands[2:]))


@shifted("Tile")
def tile(at: Site) -> None:
    """Along the axes of one row."""
    at.only_first()
    if at.version < 6:
        raise Refused("Tile of an old opset")
    at.back(op.Tile(at.front(0), op.Concat(np.ones(1, np.int64), at.operand(1), axis=0)))


@shifted("Gather")
def gather(at: Site) -> None:
    """Along an axis of one row; indices that differ from row to row read the axis in front."""
    axis = at.axis("axis", 0, at.rank(0))
    if at.at(1) is None:
        at.back(at.again(at.front(0), at.operands[1], axis=axis + 1))
        return
    if at.at(0) is None or at.binding.block.opsets[""] < 12:
        raise Refused("rows of the data at indices that differ from row to row")
    data, indices, rank, more = at.front(0), at.front(1), at.rank(0), at.rank(1)
    if axis:
        rest = [i for i in range(rank) if i != axis]
        data = op.Transpose(data, perm=[0, axis + 1, *(i + 1 for i in rest)])
    if indices.dtype != TensorProto.INT64:
        indices = op.Cast(indices, to=TensorProto.INT64)
    made = op.GatherND(data, op.Unsqueeze(indices, np.array([more + 1])), batch_dims=1)
    if axis:  # the axes of the indices are in front, and belong behind those before the axis
        places = [*range(1 + more, 1 + more + axis), *range(1, 1 + more)]
        made = op.Transpose(made, perm=[0, *places, *range(1 + more + axis, rank + more)])
    at.back(made)


@shifted("GatherElements ScatterElements Scatter")
def elements(at: Site) -> None:
    """Along an axis of one row."""
    axis = at.axis("axis", 0, at.rank(0)) + 1
    at.back(at.again(*(_each(at, k) for k in at.present()), axis=axis))


@shifted("GatherND")
def gather_nd(at: Site) -> None:
    """One batch axis more."""
    if at.binding.block.opsets[""] < 12:
        raise Refused("GatherND of an old opset")
    more = int(at.attr("batch_dims", 0)) + 1
    at.back(at.again(*(_each(at, k) for k in (0, 1)), batch_dims=more))


@shifted("ScatterND")
def scatter_nd(at: Site) -> None:
    """One component more in the indices, which counts the rows."""
    if at.version < 11:
        raise Refused("ScatterND of an old opset")
    data, indices, updates = (_each(at, k) for k in (0, 1, 2))
    rank, rows = at.rank(1), at.sizes_at.rows()
    zero, one = np.array(0, np.int64), np.array(1, np.int64)
    count = op.Range(zero, op.Squeeze(rows, [0]), one)
    shape = op.Shape(op.Slice(indices, [0], [1], [rank]))
    numbers = op.Expand(op.Reshape(count, np.array([-1] + [1] * rank)), shape)
    at.back(at.again(data, op.Concat(numbers, indices, axis=rank), updates))


@shifted("MaxPool")
def max_pool(at: Site) -> None:
    """Subtracts the offset of each row, because Indices count through the whole batch."""
    sizes = at.sizes(0)
    size = known(product(sizes))
    at.leading(0)
    made = at.again(at.operand(0))
    ends = [
        op.Reshape(v, at.sizes_at.vector([-1, *at.result(k)]))
        for k, v in enumerate(made if isinstance(made, tuple) else (made,))
    ]
    if len(ends) == 2:
        rows = at.sizes_at.rows()
        zero, one = np.array(0, np.int64), np.array(1, np.int64)
        count = op.Range(zero, op.Squeeze(rows, [0]), one)
        steps = op.Mul(op.Reshape(count, np.array([-1] + [1] * len(sizes))), at.sizes_at.of(size))
        ends[1] = op.Sub(ends[1], steps)
    at.back(tuple(ends))


@shifted("Shape Size")
def shape(at: Site) -> None:
    """The sizes after the axis of the rows, which are those of every row."""
    sizes = op.Slice(op.Shape(at.front(0)), [1], [at.rank(0) + 1], [0])
    if at.op == "Size":
        sizes = op.ReduceProd(sizes, keepdims=0)
    elif "start" in at.binding.attrs or "end" in at.binding.attrs:
        bounds = [at.attr("start", 0)], [at.attr("end", at.rank(0))]
        sizes = op.Slice(sizes, *bounds, [0])
    at.replaced = [(sizes, None)]
