"""MatMul, Gemm, Einsum and Det."""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
from onnx import TensorProto

from onnxgrad.errors import InputError
from onnxgrad.grad.registry import vjp, vjp_all
from onnxgrad.grad.rules._by_blocks import beside_dequantised
from onnxgrad.grad.rules._common import ranked, widened
from onnxgrad.grad.unbroadcast import sum_to
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.arithmetic import in_dtype_of, rank_of, scaled
from onnxgrad.ir.emission.emit import constant, emit_with_blocks, nested
from onnxgrad.ir.emission.fill_and_reshape import expand_like, reshape_like, shape_of
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import Dim, TensorType, broadcast_dim
from onnxgrad.ir.var import Var

_END = np.iinfo(np.int64).max


def _matmul(
    g: Var, y: Var, xs: tuple[Var, Var], binding: Binding, wanted: tuple[bool, bool]
) -> list[Any]:
    """Returns g b' and a' g.

    A rank-1 operand is promoted to a matrix first, and its partial is reduced to rank 1 again.
    """
    a, b = xs
    if None in (a.rank, b.rank):
        beside = b.rank == 2 or (a.rank == 2 and not wanted[0])
        return (_beside_a_matrix if beside else _of_any_ranks)(g, a, b, wanted)
    left = op.Unsqueeze(a, [0]) if a.rank == 1 else a
    right = op.Unsqueeze(b, [1]) if b.rank == 1 else b
    if a.rank == 1 and b.rank == 1:
        return [g * b if wanted[0] else None, g * a if wanted[1] else None]
    if a.rank == 1:
        g = op.Unsqueeze(g, [-2])
    if b.rank == 1:
        g = op.Unsqueeze(g, [-1])
    da = _left(g, left, right) if wanted[0] else None
    db = _right(g, left, right) if wanted[1] else None
    return [
        op.Squeeze(da, [-2]) if da is not None and a.rank == 1 else da,
        op.Squeeze(db, [-1]) if db is not None and b.rank == 1 else db,
    ]


def _beside_a_matrix(g: Var, a: Var, b: Var, wanted: tuple[bool, bool]) -> list[Any]:
    """Returns the partials if one operand is a matrix and the rank of the other is not known: that
    of b if the matrix is a.
    """
    if b.rank == 2:
        rows = [
            op.Reshape(v, op.Concat([-1], op.Shape(b, start=i, end=i + 1), axis=0))
            for i, v in enumerate((a, g))
        ]
        db = op.Gemm(*rows, transA=1) if wanted[1] else None
        return [g @ b.mT if wanted[0] else None, db]
    return [None, a.mT @ g]


def _of_any_ranks(g: Var, a: Var, b: Var, wanted: tuple[bool, bool]) -> list[Any]:
    """Returns the partials of operands whose ranks are known at run time only: g b' and a' g with
    the promoted operands (*A, M, K) and (*B, K, N), summed over broadcast axes.
    """
    (of_a, of_b), end = (op.Shape(v) for v in (a, b)), np.array([_END], np.int64)
    one, more_a, more_b = (
        np.array([1], np.int64),
        *(op.Min(op.Shape(s) - 1, np.array([1], np.int64)) for s in (of_a, of_b)),
    )
    left = op.Slice(op.Concat(one, of_a, axis=0), more_a, end, [0])  # (*A, M, K)
    right = op.Slice(op.Concat(of_b, one, axis=0), [0], op.Max(op.Shape(of_b), 2 * one), [0])
    batch = op.Slice(op.Shape(g), [0], op.Shape(op.Shape(g)) - more_a - more_b, [0])
    rows, columns = op.Slice(left, [-2], [-1], [0]), op.Slice(right, [-1], end, [0])
    full = op.Reshape(g, op.Concat(batch, rows, columns, axis=0), allowzero=1)
    partials: list[Any] = [None, None]
    if wanted[0]:
        partials[0] = op.Reshape(sum_to(op.MatMul(full, _swapped(b, right)), left, None), of_a)
    if wanted[1]:
        partials[1] = op.Reshape(sum_to(op.MatMul(_swapped(a, left), full), right, None), of_b)
    return partials


def _swapped(v: Var, shape: Var) -> Var:
    """Returns v, reshaped to (*B, M, N), with its last two axes swapped."""
    last = op.Slice(shape, [-2], [_END], [0])
    flat = op.Reshape(v, op.Concat(np.array([-1], np.int64), last, axis=0))
    lead = op.Slice(shape, [0], [-2], [0])
    swapped = op.Concat(lead, op.Gather(last, np.array([1, 0], np.int64)), axis=0)
    return op.Reshape(op.Transpose(flat, perm=[0, 2, 1]), swapped)


def _left(g: Var, a: Var, b: Var) -> Var:
    if (by_blocks := beside_dequantised(g, b)) is not None:
        return by_blocks
    if a.rank == 2 and b.rank is not None and b.rank > 2:
        # a' = b g' summed over the batch axes: one product over the joined axes does both
        return op.Gemm(_columns(g), _columns(b), transB=1)
    transposed = b.definition is not None and b.definition.is_op("Transpose")
    if b.rank == 2 and a.rank is not None and a.rank > 2 and not transposed:
        # the weight's gradient needs the flat adjoint as well, and Gemm reads the weight without a
        # transposition
        return reshape_like(op.Gemm(_rows(g), b, transB=1), a)
    return g @ b.mT


def _right(g: Var, a: Var, b: Var) -> Var:
    if b.rank == 2 and a.rank is not None and a.rank > 2:
        # a batched product and a sum over the batch take twice the time of one product over the
        # joined axes
        return op.Gemm(_rows(a), _rows(g), transA=1)
    return a.mT @ g


def _rows(v: Var) -> Var:
    """Reshapes (..., M, K) to (... M, K)."""
    if v.rank is None:
        raise InputError(f"the rank of '{v.name}' is not known, and its gradient depends on it")
    last = v.shape[-1] if v.shape else None
    if isinstance(last, int) and last > 0:
        return op.Reshape(v, [-1, last])
    return op.Flatten(v, axis=-1)


def _columns(v: Var) -> Var:
    """Reshapes (..., K, N) to (K, ... N)."""
    rank = v.rank or 0
    moved = op.Transpose(v, perm=[rank - 2, *range(rank - 2), rank - 1])
    return op.Flatten(moved, axis=1)


vjp_all("MatMul", _matmul)


def _gemm(a: Var, b: Var, alpha: float, transA: int, transB: int) -> Var:
    return op.Gemm(
        a, b, alpha=None if alpha == 1.0 else alpha, transA=transA or None, transB=transB or None
    )


def _gemm_left(g: Var, y: Var, a: Var, b: Var, alpha: float, transA: int, transB: int) -> Var:
    if transA:
        return _gemm(b, g, alpha, transB, 1)
    by_blocks = beside_dequantised(g, b, bool(transB))
    if by_blocks is not None:
        return scaled(by_blocks, alpha)
    return _gemm(g, b, alpha, 0, 1 - transB)


# y = alpha a b + beta c: da = alpha g b', db = alpha a' g
vjp(
    "Gemm",
    _gemm_left,
    lambda g, y, a, b, alpha, transA, transB: (
        _gemm(g, a, alpha, 1, transA) if transB else _gemm(a, g, alpha, 1 - transA, 0)
    ),
    lambda g, y, a, b, c, beta: scaled(g, beta),
)


def _einsum(
    g: Var, y: Var, xs: Sequence[Var], equation: str, binding: Binding, wanted: Sequence[bool]
) -> list[Any]:
    terms, result = explicit(equation, xs, binding)
    wide, factors = widened(g), [widened(x) for x in xs]
    return [
        in_dtype_of(_partial(wide, result, factors, terms, k), xs[k]) if needed else None
        for k, needed in enumerate(wanted)
    ]


def explicit(equation: str, xs: Sequence[Var], binding: Binding) -> tuple[list[str], str]:
    """Returns the letters of every operand and of the result.

    Ellipses and an implied result are spelled out. Raises InputError if an ellipsis stands for an
    unknown number of axes.
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    free = [c for c in string.ascii_letters if c not in equation]
    pairs = list(zip(terms, xs, strict=True))
    counts = [rank_of(x, binding) - len(t.replace("...", "")) for t, x in pairs if "..." in t]
    most = max(counts, default=0)
    dots = "".join(free[:most])
    if not arrow:
        letters = Counter(left.replace("...", "").replace(",", ""))
        right = ("..." if counts else "") + "".join(sorted(c for c, n in letters.items() if n == 1))
    found = []
    for term, x in pairs:
        rest = (x.rank or 0) - len(term.replace("...", ""))
        found.append(term.replace("...", dots[most - rest :] if rest else ""))
    return found, right.replace("...", dots)


def _partial(g: Var, result: str, xs: Sequence[Var], terms: Sequence[str], k: int) -> Var:
    x, own = xs[k], terms[k]
    others = [(t, v) for i, (t, v) in enumerate(zip(terms, xs, strict=True)) if i != k]
    reached = set(result).union(*(t for t, _ in others))
    unique = "".join(dict.fromkeys(own))
    kept = "".join(c for c in unique if c in reached)
    v = _contract([(result, g), *others], kept)
    if v.shape is not None:
        v.type = TensorType(v.dtype or 0, tuple(_broadcast(c, own, x, others) for c in kept))
    missing = [i for i, c in enumerate(unique) if c not in reached]
    if missing:
        v = op.Unsqueeze(v, missing)
    if len(unique) < len(own):
        v = _on_diagonals(v, own, x)
    return op.Expand(v, shape_of(x)) if missing else v


def _broadcast(c: str, own: str, x: Var, others: Sequence[tuple[str, Var]]) -> Dim:
    """Returns the size of the partial along an index of `x`, which other operands may broadcast.

    onnx infers the symbol of one operand, whose size may be 1 at run time.
    """
    terms = [(own, x), *((t, v) for t, v in others if c in t)]
    sizes = [None if v.shape is None else v.shape[t.index(c)] for t, v in terms]
    return reduce(broadcast_dim, sizes)


def _contract(factors: Sequence[tuple[str, Var]], kept: str) -> Var:
    """Returns the Einsum of the factors.

    Scalars multiply the result, and a single factor that stays unchanged needs no Einsum.
    """
    scalars = [v for t, v in factors if not t]
    tensors = [(t, v) for t, v in factors if t]
    if not tensors:
        v = scalars.pop()
    elif len(tensors) == 1 and tensors[0][0] == kept:
        v = tensors[0][1]
    else:
        v = op.Einsum(
            *(v for _, v in tensors), equation=",".join(t for t, _ in tensors) + "->" + kept
        )
    for factor in scalars:
        v = v * factor
    return v


def _on_diagonals(v: Var, own: str, x: Var) -> Var:
    """Adds axes for the repetitions of an index: `v` on the diagonal of these axes, 0 elsewhere."""
    rank = len(own)
    repeats = [(own.index(c), i) for i, c in enumerate(own) if own.index(c) != i]
    v = op.Unsqueeze(v, [i for _, i in repeats])
    for first, later in repeats:
        mask = op.Equal(_positions(x, later, first, rank), _positions(x, later, later, rank))
        v = op.Where(mask, v, 0.0)
    return v


def _positions(x: Var, size_of: int, axis: int, rank: int) -> Var:
    """Returns 0, 1, ... along `axis`; their number is the size of `x` along `size_of`."""
    size = x.shape[size_of] if x.shape is not None else None
    others = [i for i in range(rank) if i != axis]
    if isinstance(size, int):
        shape = [1] * rank
        shape[axis] = size
        return constant(np.arange(size, dtype=np.int64).reshape(shape))
    end = op.Squeeze(op.Shape(x, start=size_of, end=size_of + 1), [0])
    return op.Unsqueeze(op.Range(constant(np.int64(0)), end, constant(np.int64(1))), others)


vjp_all("Einsum", _einsum, broadcasts=True)


def _det(g: Var, y: Var, x: Var) -> Var:
    if x.rank is None:
        rows = op.Reshape(x, op.Concat([-1], op.Shape(x, start=-2), axis=0))
        return reshape_like(_det(op.Reshape(g, [-1]), y, ranked(rows, 3)), x)
    lead = x.rank - 2
    adjoint = op.Unsqueeze(g, [-2, -1])
    n = x.shape[-1] if x.shape is not None and isinstance(x.shape[-1], int) else None
    if n == 1:
        return expand_like(adjoint, x)
    rows, signs = _minor_indices(x, n)
    if n is None or n > _MOST_AT_ONCE:
        return adjoint * (_row_by_row(x, rows, lead) * signs)
    minors = op.Gather(op.Gather(x, rows, axis=lead), rows, axis=lead + 2)
    minors = op.Transpose(minors, perm=[*range(lead), lead, lead + 2, lead + 1, lead + 3])
    return adjoint * (op.Det(minors) * signs)


# minors of larger matrices take n^4 numbers, so they are formed row by row
_MOST_AT_ONCE = 6


def _row_by_row(x: Var, rows: Var, lead: int) -> Var:
    """Returns the minors of x (*B, n, n) by a Scan over the removed rows: n^3 numbers at a time."""
    with nested("minors") as block:
        kept = block.add_input(block.program.names.fresh("rows"), TensorType(rows.dtype, (None,)))
        minors = op.Gather(op.Gather(x, kept, axis=lead), rows, axis=lead + 1)
        order = [*range(lead), lead + 1, lead, lead + 2]
        block.add_output(op.Det(op.Transpose(minors, perm=order)))
    sizes = (None,) * (lead + 2) if x.shape is None else x.shape
    result = TensorType(x.dtype, (sizes[-1], *sizes[:lead], sizes[-1]))
    [stacked] = emit_with_blocks("Scan", [rows], {"body": block}, [result], num_scan_inputs=1)
    return op.Transpose(stacked, perm=[*range(1, lead + 1), 0, lead + 1])


def _minor_indices(x: Var, n: int | None) -> tuple[Var, Var]:
    """Returns (n, n - 1): the rows left without row i, and (n, n): the checkerboard of signs."""
    if n is not None:
        i, k = np.arange(n)[:, None], np.arange(n - 1)[None, :]
        signs = np.where((np.arange(n)[:, None] + np.arange(n)) % 2, -1.0, 1.0)
        return constant((k + (k >= i)).astype(np.int64)), constant(signs, x.dtype)
    size = op.Squeeze(op.Shape(x, start=-1), [0])
    zero, one = constant(np.int64(0)), constant(np.int64(1))
    row = op.Unsqueeze(op.Range(zero, size, one), [1])
    column = op.Unsqueeze(op.Range(zero, op.Sub(size, one), one), [0])
    left = op.Add(column, op.Cast(op.GreaterOrEqual(column, row), to=TensorProto.INT64))
    odd = op.Mod(op.Add(row, op.Transpose(row, perm=[1, 0])), constant(np.int64(2)))
    return left, 1.0 - 2.0 * op.Cast(odd, to=x.dtype)


vjp("Det", _det, notes="by cofactors, also for singular matrices; n^3 numbers at a time")
