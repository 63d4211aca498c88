"""The loss over several batches, as sums that a client adds up, and the loss of a batch in which no
label counts.

A mean over labels is not the mean of the means over batches: batches differ in the labels that
count, and in the weights of their classes. Each mean is therefore also returned as a numerator and
a denominator.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from onnxgrad.ir.emission.emit import constant
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var
from onnxgrad.train.losses.base import Loss, Sum, weighted_sum
from onnxgrad.train.losses.place import Place


@dataclass(frozen=True)
class Sums:
    """The names of two outputs of the evaluation. The loss over several batches is the sum of the
    numerators over the sum of the denominators, added up over all `Sums` of a loss. Without a
    denominator, it is the sum of the numerators.
    """

    numerator: str
    denominator: str | None = None


def summed(sums: Iterable[Sums]) -> list[str]:
    """Returns the names of all outputs of the sums."""
    return [name for s in sums for name in (s.numerator, s.denominator) if name is not None]


def emit_sums(place: Place, loss: Loss, value: Var) -> tuple[Sums, ...]:
    """Emits numerators and denominators of an emitted loss as outputs of the block.

    A loss that does not declare its mean counts as a mean over the examples of the batch.
    """
    parts: dict[Var | None, list[tuple[float, Var]]] = {}
    constants: list[tuple[float, Var]] = []
    for weight, term, v in _terms(place, loss, value):
        if term.over_batch == "constant":
            constants.append((weight, v))
            continue
        divisor = _divisor(place, term, v)
        if divisor is not None:
            v = (_or_zero(v, divisor) if term.over_batch == "labels" else v) * divisor
        parts.setdefault(divisor, []).append((weight, v))
    if constants:
        same = weighted_sum(constants)
        first = next((d for d in parts if d is not None), None)
        one = constant(1.0, same.dtype) if first is None else first
        parts.setdefault(one, []).append((1.0, same if first is None else _times(same, one)))
    found = []
    for divisor, terms in parts.items():
        numerator = _output(place, weighted_sum(terms), "loss.numerator")
        below = None if divisor is None else _output(place, divisor, "loss.denominator")
        found.append(Sums(numerator, below))
    return tuple(found)


def guarded(place: Place, loss: Loss, value: Var) -> tuple[Var, Var | None]:
    """Returns an emitted loss in which a mean over no labels is 0 instead of NaN, and the number of
    labels that count, or the sum of their weights: the smallest among the terms, None if there is
    no such mean.
    """
    labels = {
        v: place.divisors[v]()
        for _, term, v in _terms(place, loss, value)
        if term.over_batch == "labels" and v in place.divisors
    }
    if not labels:
        return value, None
    first, *others = dict.fromkeys(labels.values())
    return _rebuilt(place, loss, value, labels), op.Min(first, *others) if others else first


def _rebuilt(place: Place, loss: Loss, value: Var, labels: dict[Var, Var]) -> Var:
    if not isinstance(loss, Sum):
        return _or_zero(value, labels[value]) if value in labels else value
    pairs = zip(loss.terms, place.terms[id(loss)], strict=True)
    return weighted_sum([(w, _rebuilt(place, term, v, labels)) for (w, term), v in pairs])


def _terms(
    place: Place, loss: Loss, value: Var, weight: float = 1.0
) -> Iterator[tuple[float, Loss, Var]]:
    """Yields the terms of a loss that are no sums, with their weights and values."""
    if not isinstance(loss, Sum):
        yield weight, loss, value
        return
    for (factor, term), v in zip(loss.terms, place.terms[id(loss)], strict=True):
        yield from _terms(place, term, v, weight * factor)


def _divisor(place: Place, loss: Loss, value: Var) -> Var | None:
    """Returns the number by which a mean divides; None for a sum."""
    if value in place.divisors:
        return place.divisors[value]()
    if "sum" in (loss.over_batch, getattr(loss, "reduction", None)):
        return None
    batch = next((v for v in place.block.inputs if v.rank), None)
    if batch is None:
        return constant(1.0, value.dtype)
    return op.Cast(op.Gather(op.Shape(batch), np.int64(0)), to=value.dtype)


def _or_zero(value: Var, divisor: Var) -> Var:
    return op.Where(op.Equal(divisor, 0.0), 0.0, value)


def _times(value: Var, divisor: Var) -> Var:
    same = divisor if divisor.dtype == value.dtype else op.Cast(divisor, to=value.dtype)
    return value * same


def _output(place: Place, v: Var, name: str) -> str:
    """Makes a value an output under a name of its own."""
    if v.returned or v.definition is None:
        v = op.Identity(v)
    v.rename(place.block.program.names.fresh(name))
    place.block.add_output(v)
    return v.name
