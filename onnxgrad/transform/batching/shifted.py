"""Rules that compute a node with the rows on their own axis in front."""

from __future__ import annotations

import string

import numpy as np

from onnxgrad.ir.domains import BROADCASTING
from onnxgrad.ir.ops import op
from onnxgrad.ir.sizes import product
from onnxgrad.ir.var import Var
from onnxgrad.transform.batching.along_axes import OVER_AXES, axes_of, flattens
from onnxgrad.transform.batching.elementwise_and_products import UNARY, indices_of
from onnxgrad.transform.batching.layout import Refused, Size, known
from onnxgrad.transform.batching.registry import shifted
from onnxgrad.transform.batching.site import Site


@shifted(f"{UNARY} Trilu")
def unary(at: Site) -> None:
    """Elementwise, or on the last two axes."""
    at.only_first()
    at.back(at.again(at.front(0), *at.operands[1:]))


@shifted(" ".join(BROADCASTING))
def broadcasting(at: Site) -> None:
    """Rows broadcast against shared operands."""
    if at.version < 7:
        raise Refused("it broadcasts by attributes")
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
    at.back(at.again(*operands, equation=f"{','.join(wider)}->{free}{right}"))


@shifted(OVER_AXES)
def reduction(at: Site) -> None:
    """Over the axes of one row."""
    at.only_first()
    axes = [a + 1 for a in axes_of(at)]
    x = at.front(0)
    if at.op.startswith("Arg"):
        at.back(at.again(x, axis=axes[0]))
    elif not axes:
        at.back(op.Identity(x))
    elif at.version >= (13 if at.op == "ReduceSum" else 18):
        at.back(at.again(x, np.array(axes, np.int64), axes=None))
    else:
        at.back(at.again(x, axes=axes))


@shifted("Softmax LogSoftmax Hardmax")
def softmax(at: Site) -> None:
    """Along an axis of one row."""
    at.only_first()
    rank = at.rank(0)
    axis = at.axis("axis", 1 if flattens(at) else -1, rank)
    if not flattens(at) or axis == rank - 1:
        at.back(at.again(at.front(0), axis=axis + 1))
        return
    sizes = at.sizes(0)
    x = at.reshape(at.front(0), [-1, *sizes[:axis], known(product(sizes[axis:]))])
    at.back(at.reshape(at.again(x, axis=axis + 1), [-1, *sizes]))


@shifted("CumSum")
def cum_sum(at: Site) -> None:
    """Along an axis of one row."""
    at.only_first()
    axis = (at.ints(1) or [0])[0] % at.rank(0) + 1
    at.back(at.again(at.front(0), np.array(axis, np.int64)))


@shifted(
    "TopK Split LpNormalization LayerNormalization RMSNormalization SimplifiedLayerNormalization"
)
def along(at: Site) -> None:
    """Along an axis of one row, or from one on."""
    at.only_first()
    axis = at.axis("axis", 0 if at.op == "Split" else -1, at.rank(0)) + 1
    at.back(at.again(at.front(0), *at.operands[1:], axis=axis))


@shifted("Reshape Flatten Squeeze Unsqueeze")
def reshape(at: Site) -> None:
    """Each row in its new shape."""
    at.only_first()
    at.back(at.reshape(at.front(0), [-1, *at.result()]))


@shifted("Transpose")
def transpose(at: Site) -> None:
    """The axes of one row."""
    perm = at.binding.attrs.get("perm", range(at.rank(0))[::-1])
    at.back(at.again(at.front(0), perm=[0, *(p + 1 for p in perm)]))


@shifted("Expand")
def expand(at: Site) -> None:
    """Each row to its new shape."""
    at.only_first()
    target = [1, *at.result()]
    at.back(op.Expand(at.front(0, len(target) - 1), at.sizes_at.vector(target)))


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
    starts, ends = at.ints(1, "starts") or [], at.ints(2, "ends") or []
    axes = [a % rank + 1 for a in at.ints(3, "axes") or range(len(starts))]
    if at.version < 10:
        at.back(at.again(at.front(0), axes=axes))
        return
    steps = at.ints(4) or [1] * len(axes)
    bounds = [np.array(numbers, np.int64) for numbers in (starts, ends, axes, steps)]
    at.back(op.Slice(at.front(0), *bounds))


@shifted("Pad")
def pad(at: Site) -> None:
    """Along the axes of one row."""
    at.only_first()
    rank = at.rank(0)
    if at.version < 11 or at.operand(3) is not None:
        raise Refused("Pad with axes, or of an old opset")
    pads = at.ints(1) or []
    wider = np.array([0, *pads[:rank], 0, *pads[rank:]], np.int64)
    at.back(at.again(at.front(0), wider, *at.operands[2:]))


@shifted("Tile")
def tile(at: Site) -> None:
    """Along the axes of one row."""
    at.only_first()
    at.back(op.Tile(at.front(0), np.array([1, *(at.ints(1) or [])], np.int64)))


@shifted("Gather")
def gather(at: Site) -> None:
    """Along an axis of one row; indices that differ from row to row count from axis 0."""
    axis = at.axis("axis", 0, at.rank(0))
    if at.at(1) is None:
        at.back(at.again(at.front(0), at.operands[1], axis=axis + 1))
        return
    if axis or at.at(0) is None or at.binding.block.opsets[""] < 12:
        raise Refused("rows of the data at indices that differ from row to row")
    data, indices = at.front(0), at.front(1)
    wide = op.Unsqueeze(indices, np.array([at.rank(1) + 1], np.int64))
    at.back(op.GatherND(data, wide, batch_dims=1))


@shifted("GatherElements ScatterElements")
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
