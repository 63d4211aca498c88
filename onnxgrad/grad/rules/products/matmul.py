"""MatMul."""

from __future__ import annotations

from typing import Any

from onnxgrad.errors import InputError
from onnxgrad.grad.registry import vjp_all
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.like import reshape_like
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var


def _matmul(
    g: Var, y: Var, xs: tuple[Var, Var], binding: Binding, wanted: tuple[bool, bool]
) -> list[Any]:
    """g b' and a' g; a rank-1 operand is promoted to a matrix first, and its partial comes back
    to rank 1.
    """
    a, b = xs
    if a.rank is None or b.rank is None:
        raise InputError(
            f"the gradient of '{binding}' needs the ranks of its operands, which shape inference "
            "does not know"
        )
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
    if da is not None and a.rank == 1:
        da = op.Squeeze(da, [-2])
    if db is not None and b.rank == 1:
        db = op.Squeeze(db, [-1])
    return [da, db]


def _left(g: Var, a: Var, b: Var) -> Var:
    if a.rank == 2 and b.rank is not None and b.rank > 2:
        # a' = b g': the batch axes are summed over, which one product over the joined axes does
        return op.Gemm(_columns(g), _columns(b), transB=1)
    transposed = b.definition is not None and b.definition.is_op("Transpose")
    if b.rank == 2 and a.rank is not None and a.rank > 2 and not transposed:
        # the flat adjoint is there for the weight's gradient as well, and Gemm reads the weight as
        # it lies
        return reshape_like(op.Gemm(_rows(g), b, transB=1), a)
    return g @ b.mT


def _right(g: Var, a: Var, b: Var) -> Var:
    if b.rank == 2 and a.rank is not None and a.rank > 2:
        # a batched product and a sum over the batch take twice the time of one product over the
        # joined axes
        return op.Gemm(_rows(a), _rows(g), transA=1)
    return a.mT @ g


def _rows(v: Var) -> Var:
    """(..., M, K) as (... M, K)."""
    need_rank(v)
    last = v.shape[-1] if v.shape else None
    if isinstance(last, int) and last > 0:
        return op.Reshape(v, [-1, last])
    return op.Flatten(v, axis=-1)


def _columns(v: Var) -> Var:
    """(..., K, N) as (K, ... N)."""
    rank = v.rank or 0
    moved = op.Transpose(v, perm=[rank - 2, *range(rank - 2), rank - 1])
    return op.Flatten(moved, axis=1)


def need_rank(v: Var) -> None:
    """Raises InputError for a value of unknown rank."""
    if v.rank is None:
        raise InputError(f"the rank of '{v.name}' is not known, and its gradient depends on it")


vjp_all("MatMul", _matmul)
