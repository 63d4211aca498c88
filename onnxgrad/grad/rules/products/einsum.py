"""Einsum: each operand's adjoint is an Einsum of the output's adjoint with the other operands.

What the operand alone has (summed away) is spread over; an index that it repeats (a diagonal) is
put back on the diagonal. An ellipsis becomes letters of its own first. (Laue, Mitterreiter, Giesen:
A Simple and Efficient Tensor Calculus, 2020.)
"""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.grad.registry import vjp_all
from onnxgrad.grad.rules._common import narrowed, widened
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.constant import constant
from onnxgrad.ir.like import shape_of
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var


def _einsum(
    g: Var, y: Var, xs: Sequence[Var], equation: str, binding: Binding, wanted: Sequence[bool]
) -> list[Any]:
    terms, result = explicit(equation, xs, binding)
    wide, factors = widened(g), [widened(x) for x in xs]
    return [
        narrowed(_partial(wide, result, factors, terms, k), xs[k]) if asked else None
        for k, asked in enumerate(wanted)
    ]


def explicit(equation: str, xs: Sequence[Var], binding: Binding) -> tuple[list[str], str]:
    """The letters of every operand and of the result, ellipses and implied results spelled out.

    Raises InputError where an ellipsis stands for an unknown number of axes.
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    free = [c for c in string.ascii_letters if c not in equation]
    counts = []
    for term, x in zip(terms, xs, strict=True):
        if "..." in term:
            if x.rank is None:
                raise InputError(
                    f"the gradient of '{binding}' needs the rank of its operands, "
                    "which is not known"
                )
            counts.append(x.rank - len(term.replace("...", "")))
    most = max(counts, default=0)
    dots = "".join(free[:most])
    if not arrow:
        letters = Counter(left.replace("...", "").replace(",", ""))
        right = ("..." if counts else "") + "".join(sorted(c for c, n in letters.items() if n == 1))
    found = []
    for term, x in zip(terms, xs, strict=True):
        own = (x.rank or 0) - len(term.replace("...", ""))
        found.append(term.replace("...", dots[most - own :] if own else ""))
    return found, right.replace("...", dots)


def _partial(g: Var, result: str, xs: Sequence[Var], terms: Sequence[str], k: int) -> Var:
    x, own = xs[k], terms[k]
    others = [(t, v) for i, (t, v) in enumerate(zip(terms, xs, strict=True)) if i != k]
    factors = [(t, v) for t, v in [(result, g), *others]]
    reached = set(result).union(*(t for t, _ in others)) if others else set(result)
    unique = "".join(dict.fromkeys(own))
    kept = "".join(c for c in unique if c in reached)
    v = _contract(factors, kept)
    missing = [i for i, c in enumerate(unique) if c not in reached]
    if missing:
        v = op.Unsqueeze(v, missing)
    if len(unique) < len(own):
        v = _on_diagonals(v, own, x)
    return op.Expand(v, shape_of(x)) if missing else v


def _contract(factors: Sequence[tuple[str, Var]], kept: str) -> Var:
    """The Einsum of the factors; scalars multiply, and a lone factor that stays as it is needs
    none.
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
    """Axes for the repetitions of an index: `v` where all its positions agree, 0 elsewhere."""
    rank = len(own)
    repeats = [(own.index(c), i) for i, c in enumerate(own) if own.index(c) != i]
    v = op.Unsqueeze(v, [i for _, i in repeats])
    for first, later in repeats:
        mask = op.Equal(_positions(x, later, first, rank), _positions(x, later, later, rank))
        v = op.Where(mask, v, 0.0)
    return v


def _positions(x: Var, size_of: int, axis: int, rank: int) -> Var:
    """0, 1, ... along `axis`, as many as `x` has along `size_of`."""
    size = x.shape[size_of] if x.shape is not None else None
    others = [i for i in range(rank) if i != axis]
    if isinstance(size, int):
        shape = [1] * rank
        shape[axis] = size
        return constant(np.arange(size, dtype=np.int64).reshape(shape))
    end = op.Squeeze(op.Shape(x, start=size_of, end=size_of + 1), [0])
    return op.Unsqueeze(op.Range(constant(np.int64(0)), end, constant(np.int64(1))), others)


vjp_all("Einsum", _einsum, broadcasts=True)
