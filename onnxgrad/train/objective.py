"""What a step makes small: the loss behind the model, and what of it is differentiated."""

from __future__ import annotations

from collections.abc import Callable

from onnxgrad.errors import InputError
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.var import Var
from onnxgrad.train.loss_scaling import LossScaling
from onnxgrad.train.losses import LOSSES, Custom, Loss, Output, Place, parse_loss
from onnxgrad.train.update import add_state
from onnxgrad.wording import perhaps


def loss_of(given: Loss | str | Callable[[dict[str, Var]], Var] | None, place: Place) -> Loss:
    """A loss, its text, the name of a value, a function of values, or None for the only output.
    Raises InputError for a text that is none of these.
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
    return Output() if given is None else Custom(given)


def emit_loss(place: Place, loss: Loss) -> Var:
    """The loss as an output, called `loss` where it is a new value."""
    block = place.block
    with emitting(block, share=True, made_by="loss"):
        value = loss.emit(place)
    if any(v is value for v in block.outputs):
        return value
    if value.name not in place.own and not value.is_input:
        value.rename(block.program.names.fresh("loss"))
    block.add_output(value)
    return value


def scaled(
    block: BindingBlock, scaling: LossScaling | None, loss: Var
) -> tuple[Var, dict[str, str]]:
    """What is differentiated: the loss, or its product with the scale; the names of the scaling's
    inputs by those of its states.
    """
    if scaling is None:
        return loss, {}
    state = {k: add_state(block, f"loss.{k}", a) for k, a in scaling.state().items()}
    with emitting(block, share=True, made_by="loss_scaling"):
        product = scaling.scaled(loss, state)
    return product, {slot: v.name for slot, v in state.items()}
