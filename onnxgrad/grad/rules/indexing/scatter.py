"""ScatterND and ScatterElements, with each reduction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from onnxgrad.grad.registry import vjp
from onnxgrad.grad.rules._common import ZEROS, as_number, beside_zeros, where
from onnxgrad.grad.rules.indexing._scatter import scatter_elements, scatter_nd
from onnxgrad.ir.like import zeros_like
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var


@dataclass(frozen=True)
class _Places:
    """The places that a scatter writes: how to write there (with a reduction) and how to read
    there.
    """

    write: Callable[[Var, Var, str], Var]
    read: Callable[[Var], Var]


def _nd(indices: Var) -> _Places:
    return _Places(
        lambda data, updates, reduction: scatter_nd(data, indices, updates, reduction=reduction),
        lambda data: op.GatherND(data, indices),
    )


def _elements(indices: Var, axis: int) -> _Places:
    return _Places(
        lambda data, updates, reduction: scatter_elements(
            data, indices, updates, axis=axis, reduction=reduction
        ),
        lambda data: op.GatherElements(data, indices, axis=axis),
    )


def _d_data(g: Var, y: Var, data: Var, updates: Var, at: _Places, reduction: str) -> Var:
    """none: g, zero where written; add: g; mul: g times what was multiplied in; max, min: an
    even share of ties.
    """
    if reduction == "none":
        return at.write(g, zeros_like(updates), "none")
    if reduction == "add":
        return g
    if reduction == "mul":
        return at.write(g, updates, "mul")
    return where(op.Equal(data, y), g / _winners(y, data, updates, at), 0.0)


def _d_updates(g: Var, y: Var, data: Var, updates: Var, at: _Places, reduction: str) -> Var:
    """none, add: g there; mul: g times the product of the others; max, min: an
    even share of ties.
    """
    if reduction in ("none", "add"):
        return at.read(g)
    if reduction == "mul":
        is_zero = op.Equal(updates, 0.0)
        nonzero = where(is_zero, 1.0, updates)
        zeros = at.write(zeros_like(data), nonzero - updates, "add")
        a, b = (at.read(v) for v in beside_zeros(g * at.write(data, nonzero, "mul"), zeros))
        return where(is_zero, a * (b - updates), at.read(g * y) / nonzero)
    wins = op.Equal(updates, at.read(y))
    return where(wins, at.read(g / _winners(y, data, updates, at)), 0.0)


def _winners(y: Var, data: Var, updates: Var, at: _Places) -> Var:
    """How many of the datum and its updates equal the result."""
    own = as_number(op.Equal(data, y), y)
    return at.write(own, as_number(op.Equal(updates, at.read(y)), y), "add")


_NOTES = f"max, min: ties share evenly; none: several writers are undefined; mul, {ZEROS}"

vjp(
    "ScatterND",
    lambda g, y, data, indices, updates, reduction: _d_data(
        g, y, data, updates, _nd(indices), reduction
    ),
    None,
    lambda g, y, data, indices, updates, reduction: _d_updates(
        g, y, data, updates, _nd(indices), reduction
    ),
    notes=_NOTES,
    compares=True,
)
vjp(
    "ScatterElements",
    lambda g, y, data, indices, updates, axis, reduction: _d_data(
        g, y, data, updates, _elements(indices, axis), reduction
    ),
    None,
    lambda g, y, data, indices, updates, axis, reduction: _d_updates(
        g, y, data, updates, _elements(indices, axis), reduction
    ),
    notes=_NOTES,
    compares=True,
)
