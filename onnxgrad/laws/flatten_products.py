"""Turns products with an addend into Gemms: of two matrices, or of all rows of a batch at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import TensorProto

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.domains import ACTIVATIONS
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import Shape, same_shape
from onnxgrad.ir.var import Var
from onnxgrad.laws.fold_scale_axis.scale import again
from onnxgrad.rewrite.pattern import P, capture
from onnxgrad.rewrite.trace import decline, decline_if
from onnxgrad.rewrite.worklist import count, rewrite

x, w, c, t, y = capture("x w c t y")
matrix = x.where(lambda v: v.rank == 2)

_BINARY = frozenset({"Add", "Sub", "Mul", "Div", "Pow"})
# the most bindings of an activation; the tanh form of Gelu has eight
_MOST = 16

# the dtypes for which onnxruntime has kernels of Gemm
GEMM_DTYPES = frozenset({TensorProto.FLOAT, TensorProto.DOUBLE})


@rewrite(P.Add(P.MatMul(x, w).only, c), shrinks=count("MatMul", "Add"))
def gemm_of_rows(x: Var, w: Var, c: Var, root: Binding) -> Any:
    """x @ w + c = reshape(Gemm(reshape(x, (-1, K)), w, c), (..., N)), x in a batch, w and c
    constant
    """
    decline_if(
        root.out.dtype not in GEMM_DTYPES or not (w.is_constant and c.is_constant),
        "the weight or the bias is not constant, or onnxruntime has no Gemm of the dtype",
    )
    if w.shape is None or len(w.shape) != 2 or c.shape != w.shape[1:]:
        return decline("the weight is not a matrix (K, N), or the addend is not a row (N,)")
    if x.shape is None or len(x.shape) < 3 or root.version < 13:
        return decline("there is no batch of matrices")
    k, n = w.shape
    sizes = _target((*x.shape[:-1], n))
    if not (isinstance(k, int) and k > 0):
        return decline("the inner size is unknown")
    rows = op.Reshape(x, np.array([-1, k], np.int64))
    return op.Reshape(op.Gemm(rows, w, c), sizes)


@rewrite(P.Add(P.MatMul(matrix, w).only, c), shrinks=count("MatMul", "Add"))
def gemm_of_matrices(x: Var, w: Var, c: Var, root: Binding) -> Any:
    """x @ w + c = Gemm(x, w, c), for matrices x and w, and c a row or a number

    onnxruntime makes the same Gemm of a row when it loads the model, so it returns the same bits.
    With a number the Gemm takes 0.85 to 1.01 of the time (1 to 512 rows, 16 to 1024 columns, one
    thread). A matrix c stays: onnxruntime adds it in the Gemm itself, and other rules know the sum.
    """
    if root.out.dtype not in GEMM_DTYPES or root.version < 7:
        return None
    if w.shape is None or len(w.shape) != 2:
        return decline("the right operand is not a matrix (K, N)")
    if c.shape not in (w.shape[1:], (1, *w.shape[1:]), (), (1,), (1, 1)):
        return decline("the addend is not a row (N,) or a number")
    if not (isinstance(w.shape[0], int) and w.shape[0] > 0 and isinstance(w.shape[1], int)):
        return decline("the sizes of the right operand are unknown")
    return op.Gemm(x, w, c)


def _target(shape: Shape) -> Any:
    """The shape as a target of Reshape, with -1 for at most one unknown size. Raises Decline."""
    unknown = [d for d in shape if not isinstance(d, int)]
    decline_if(
        len(unknown) > 1 or 0 in shape,
        "several sizes are unknown: their product would be computed at every run",
    )
    return np.array([d if isinstance(d, int) else -1 for d in shape], np.int64)


def _is_elementwise(b: Binding | None) -> bool:
    return b is not None and b.domain == "" and not b.has_refs and b.op in {*ACTIVATIONS, *_BINARY}


@rewrite(P.Reshape(y.where(lambda v: _is_elementwise(v.definition)), t), shrinks=count("Reshape"))
def elementwise_of_rows(y: Var, t: Var, root: Binding) -> Any:
    """reshape(f(reshape(x, s)), t) = f(x), f element by element, where t is the shape of x, a
    matrix

    f may consist of several bindings (an activation as exporters write it) and read several x.
    """
    if t.ints is None or len(t.ints) != 2:
        return None
    region, leaves = _region(y)
    inner = [*leaves, *(b.out for b in region)]
    readers = {*region, root}
    if not leaves or any(v.returned or not readers.issuperset(v.users) for v in inner):
        return None
    found = {r: _matrix(r, t) for r in leaves}
    first = next(iter(leaves))
    if None in found.values() or not all(same_shape(r.shape, first.shape) for r in leaves):
        return None
    columns = (first.shape or ())[-1:], t.ints[1:]
    decline_if(
        not all(_fits(v, found, *columns) for b in region for v in b.inputs),
        "an operand is broadcast along the rows",
    )
    for b in reversed(region):
        found[b.out] = again(b, [v if v is None else found.get(v, v) for v in b.inputs])
    return found[y]


def _region(y: Var) -> tuple[list[Binding], dict[Var, None]]:
    """The elementwise bindings that compute `y`, readers first, and the results of Reshape that
    they read. Both are empty if they read anything else.
    """
    region: dict[Binding, None] = {}
    leaves: dict[Var, None] = {}
    work = [y]
    while work and len(region) <= _MOST:
        v = work.pop()
        b = v.definition
        if b is not None and b.is_op("Reshape"):
            leaves[v] = None
        elif b is not None and _is_elementwise(b):
            region.pop(b, None)  # move it after all its readers
            region[b] = None
            work.extend(u for u in b.inputs if u is not None and not u.is_constant)
        else:
            return [], {}
    return ([], {}) if work else (list(region), leaves)


def _matrix(r: Var, t: Var) -> Var | None:
    """The value that is reshaped to `r` if it is a matrix of shape `t`, else None."""
    x = None if r.definition is None else r.definition.inputs[0]
    return x if x is not None and _is_rows(x, t) and r.block is x.block else None


def _fits(v: Var | None, found: Mapping[Var, Any], last: Shape, columns: Shape) -> bool:
    """Whether an operand broadcasts alike to the matrices with `columns` and to their reshaped
    forms with the last axis `last`. It may be a value of the region, a number, or a row of both.
    """
    if v is None or not v.is_constant or v in found:
        return True
    return v.shape in ((), (1,)) or (v.shape == last == columns)


@rewrite(P.Reshape(matrix, t), shrinks=count("Reshape"))
def rows_of_rows(x: Var, t: Var, root: Binding) -> Any:
    """reshape(x, (-1, K)) = x, where x is a matrix of K columns"""
    return x if _is_rows(x, t) else None


@rewrite(P.Reshape(P.MatMul(P.Reshape(x, t).only, w).only, y), shrinks=count("Reshape"))
def product_of_rows(x: Var, w: Var, root: Binding) -> Any:
    """reshape(reshape(x, (M, K)) @ w, (..., N)) = x @ w, where x is (..., K) and w a matrix

    w may be reshaped to (1, K, N). onnxruntime multiplies all rows at once in both forms.
    """
    w = _unwidened(w)
    product = None if root.inputs[0] is None else root.inputs[0].definition
    rows = None if product is None or product.inputs[0] is None else product.inputs[0].shape
    if not x.shape or len(x.shape) < 2 or not rows or w.shape is None or len(w.shape) != 2:
        return decline("an operand's rank is unknown, or the right one is not a matrix")
    decline_if(not isinstance(x.shape[-1], int) or rows[-1] != x.shape[-1], "the columns change")
    # the number of elements determines one unknown size
    sizes = [d if isinstance(d, int) else None for d in (*x.shape[:-1], w.shape[1])]
    decline_if(
        sizes != [d if isinstance(d, int) else None for d in root.out.shape or ()]
        or 0 in sizes
        or sizes.count(None) > 1,
        "the result does not have the rows of x, or several sizes are unknown",
    )
    return x @ w


def _unwidened(w: Var) -> Var:
    """The matrix (K, N) that was reshaped to `w` of shape (1, ..., 1, K, N), else `w`."""
    made = w.definition
    inner = None if made is None or not made.is_op("Reshape") else made.inputs[0]
    if inner is None or inner.rank != 2 or w.shape is None or len(w.shape) < 2:
        return w
    return inner if {*w.shape[:-2]} <= {1} and same_shape(w.shape[-2:], inner.shape) else w


def _is_rows(x: Var, t: Var) -> bool:
    """Whether `t` is (-1, K) or (M, K) and `x` a matrix of that shape."""
    target = t.ints
    if x.shape is None or target is None or len(x.shape) != 2 or len(target) != 2:
        return False
    return target[1] > 0 and x.shape[1] == target[1] and target[0] in (-1, x.shape[0])
