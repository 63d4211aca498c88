"""Adds a loss to a model: its labels become inputs, and its value an output."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from onnxgrad.errors import InputError
from onnxgrad.grad.opset.raising import raise_opset
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.program import Program
from onnxgrad.ir.var import Var
from onnxgrad.train.losses.base import OLDEST_OPSET, Custom, Loss, Output
from onnxgrad.train.losses.place import Place
from onnxgrad.train.losses.registry import LOSSES, parse_loss
from onnxgrad.wording import perhaps

LossLike: TypeAlias = "Loss | str | Callable[..., Var] | None"


@dataclass(frozen=True)
class WithLoss:
    """A program that computes a loss, the output's name, and the values at which gradients stop:
    copies of values of the model that are targets.
    """

    program: Program
    loss: str
    detached: tuple[str, ...]


def with_loss(program: Program, loss: LossLike) -> WithLoss:
    """Adds the loss to a Program, which is changed, or replaced if its opset has to be raised.
    Raises InputError.
    """
    if program.opset < OLDEST_OPSET:
        program, _ = raise_opset(program)
    place = Place(program.main)
    value = emit_loss(place, loss_of(loss, place))
    return WithLoss(program, value.name, tuple(place.detached))


def loss_of(given: LossLike, place: Place) -> Loss:
    """Returns the loss for a Loss, its text, the name of a value, a function of values, or None
    (the only output). Raises InputError for anything else.
    """
    if isinstance(given, Loss):
        return given
    if isinstance(given, str):
        if given.isidentifier() and given not in place.own and given not in LOSSES:
            raise InputError(
                f"'{given}' is neither a loss{perhaps(given, LOSSES)} nor a value of the model; "
                f"losses are {', '.join(sorted(LOSSES))}"
            )
        return Output(given) if given in place.own else parse_loss(given)
    if isinstance(given, type):
        raise InputError(f"the loss {given.__name__} is a class: write {given.__name__}()")
    if given is None:
        return Output()
    if not callable(given):
        raise InputError(f"loss must be a Loss, text or a function, not {repr(given)[:80]}")
    return Custom(given)


def emit_loss(place: Place, loss: Loss) -> Var:
    """Emits the loss as an output, called `loss` if it is a new value."""
    block = place.block
    with emitting(block, share=True, made_by="loss"):
        value = loss.emit(place)
    if any(v is value for v in block.outputs):
        return value
    if value.name not in place.own and not value.is_input:
        value.rename(block.program.names.fresh("loss"))
    block.add_output(value)
    return value
