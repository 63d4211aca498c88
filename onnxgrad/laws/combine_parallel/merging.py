"""Concatenates branches and splits them again, by the static rule of `merge=auto`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.emit import constant
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import Dim, element_count
from onnxgrad.ir.var import Var


def concat(values: Sequence[Var], axis: int) -> Var:
    """Concat(values), computed at once if all are constants."""
    axis = _from_front(values[0], axis)
    arrays = [v.const for v in values]
    if all(a is not None for a in arrays):
        return constant(
            np.concatenate([a for a in arrays if a is not None], axis=axis),
            name=f"{values[0].name}_merged",
        )
    return op.Concat(*values, axis=axis)


def stack(values: Sequence[Var], rank: int) -> Var:
    """Stacks values of one shape along a new axis 0 in front of `rank` others; computed at once if
    all are constants.
    """
    known = [v.const for v in values]
    arrays = [a.reshape(*[1] * (rank - a.ndim), *a.shape) for a in known if a is not None]
    if len(arrays) == len(values):
        return constant(np.stack(arrays), name=f"{values[0].name}_stacked")
    # a value that occurs several times gets its new axis once
    lifted = {
        v: op.Unsqueeze(v, list(range(rank + 1 - (v.rank or 0)))) for v in dict.fromkeys(values)
    }
    return op.Concat(*(lifted[v] for v in values), axis=0)


def split(
    value: Var, sizes: Sequence[Dim], sources: Sequence[Var], source_axis: int, axis: int
) -> tuple[Var, ...]:
    """Splits `value` along `axis` into parts that are as long as the sources along `source_axis`.
    Unknown sizes are computed at run time.
    """
    known = [d for d in sizes if isinstance(d, int)]
    parts: Any
    if len(known) == len(sizes):
        parts = known
    else:
        parts = op.Concat(*(_size(v, source_axis) for v in sources), axis=0)
    return op.Split(value, parts, axis=_from_front(value, axis), outputs=len(sources))


def known_size(v: Var, axis: int) -> Dim:
    """The size along one axis; None if it is unknown."""
    return None if v.shape is None else v.shape[axis]


def _from_front(v: Var, axis: int) -> int:
    """The axis counted from the front if the rank is known: operators before opset 11 require
    that.
    """
    return axis + v.rank if axis < 0 and v.rank is not None else axis


def _size(v: Var, axis: int) -> Var:
    """The size of `v` along `axis` as a one-element vector, by operators that every opset has."""
    return op.Gather(op.Shape(v), np.array([_from_front(v, axis)]), axis=0)


def reason_not_to_split(value_rank: int | None, sizes: Sequence[Dim], opset: int) -> str | None:
    """Why this opset has no Split into these parts along the last axes; None if it has one."""
    if opset < 7:
        return "before opset 7 Add and Gemm broadcast by an attribute"
    if opset < 11 and value_rank is None:
        return "before opset 11 Split counts its axis from the front, and the rank is unknown"
    if opset < 13 and any(not isinstance(d, int) for d in sizes):
        return "before opset 13 Split has fixed sizes, and one is unknown"
    return None


def reason_of_weights(weights: Sequence[Var], provider: str) -> str | None:
    """Why `auto` does not merge products with these weights: the file would grow, or on CPU every
    run would join them again. None if neither is the case.

    Weights that are inputs, single rows, merged over separate on onnxruntime 1.31: 1.6 for 2 of
    (512, 64), 1.3 for 16 of (64, 64), 3.7 to 4.3 for 3 of (1024, 1024).
    """
    if any(v.is_constant and v.use_count > 1 for v in weights):
        return "a weight has another reader, so the file would hold it twice"
    if provider != "cuda" and not all(v.is_constant for v in weights):
        return "a weight is not constant: on CPU joining them at each run costs more than it saves"
    return None


def rows(x: Var) -> int | None:
    """The number of rows of a product's left operand over all batch axes; None if unknown."""
    return None if x.shape is None else element_count(x.shape[:-1])


def is_narrow(columns: Sequence[Dim], k: Dim, *, biased: bool) -> bool:
    """Whether products of so many columns each, with inner size `k`, are faster merged for any
    number of rows. Separate kernels use little of their width, and each reads the left operand.

    `biased`: an Add of a constant follows each product; these are merged as well. Time merged over
    separate, 2 and 3 branches, 1 to 2048 rows (scripts/bench_products.py, onnxruntime 1.32):

        columns   biased, k 16 to 1024   without, k 256, 1024   without, k 16, 64
        4, 8      0.36 to 0.98           0.35 to 0.99           0.50 to 1.15
        16, 32    0.81 to 1.01           0.82 to 1.07           0.99 to 1.35
        48, 96    0.90 to 1.10           0.94 to 1.34           0.99 to 1.30
    """
    known = [n for n in columns if isinstance(n, int)]
    if len(known) < len(columns):
        return False
    widest = max(known)
    return widest <= 32 if biased else widest <= 8 and isinstance(k, int) and k >= 256


INT8 = "onnxruntime fuses it and its DequantizeLinears to one int8 kernel, and not if merged"


def is_int8(product: Binding) -> bool:
    """Whether both operands are dequantised. A Split behind the merged product, and a Concat of its
    weights, are not part of the pattern that onnxruntime fuses.
    """
    operands = [v.definition for v in product.inputs[:2] if v is not None]
    return all(made is not None and made.is_op("DequantizeLinear") for made in operands)


def reason_not_to_merge(
    merge: str, provider: str, branches: int, m: int | None, k: Dim, *, narrow: bool = False
) -> str | None:
    """Why a group of products should not be merged; None if it should.

    The rule for `auto` comes from measurements on onnxruntime. On CPU the Split copies each result.
    Merging still pays for `narrow` products (see `is_narrow`) and for single rows with 12 or more
    branches or at least 512 columns. On CUDA all are merged, for one launch instead of many; this
    is not measured.
    """
    if merge == "never":
        return "merging is switched off"
    if merge == "always" or provider == "cuda" or narrow:
        return None
    if m is None:
        return "the number of rows is unknown, and on CPU merging pays for a single row only"
    if m > 1:
        return f"{m} rows: on CPU the Split copies more than the merged product saves"
    if branches < 12 and not (isinstance(k, int) and k >= 512):
        return f"{branches} branches of {k} columns: too small to pay on CPU"
    return None
