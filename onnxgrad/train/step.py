"""`training_step`: forward, backward and update of a model as one plain graph, in three acts.

Behind the model's outputs comes its loss, behind that the gradient, and behind each adjoint the
optimiser's formula. Parameters and their states are inputs, and what they become are outputs: the
graph has no memory of its own, so that any runtime that can run the model can train it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from onnx import TensorProto, helper

from onnxgrad.errors import InputError
from onnxgrad.grad.differentiation import differentiate
from onnxgrad.grad.opset import raise_opset
from onnxgrad.grad.request import Wrt
from onnxgrad.grad.segments import Choice
from onnxgrad.grad.stops import Stop
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.load import ModelLike, load, load_own
from onnxgrad.ir.names import rename
from onnxgrad.ir.ops import op
from onnxgrad.ir.program import Program
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.types import Array, TensorType, numpy_dtype
from onnxgrad.ir.var import Var
from onnxgrad.train.losses import LOSSES, Custom, Loss, Output, Place, parse_loss
from onnxgrad.train.losses.base import OLDEST_OPSET
from onnxgrad.train.manifest import Fed, Manifest, Role
from onnxgrad.train.optimizers.adam import AdamW
from onnxgrad.train.optimizers.base import Moment, Optimizer
from onnxgrad.train.optimizers.master import in_float32
from onnxgrad.train.written import close


@dataclass(frozen=True)
class TrainingStep:
    """A step's two graphs, and the values with which training begins.

    train: batch, parameters, states, step and learning rate in; loss, metrics, new parameters and
    states out. evaluation: batch and parameters in; the model's outputs and the loss out. initial:
    parameters and states by the names of `train`'s inputs.
    """

    train: Program
    evaluation: Program
    initial: Mapping[str, Array]
    manifest: Manifest


def training_step(
    model: ModelLike,
    loss: Loss | str | Callable[[dict[str, Var]], Var] | None = None,
    optimizer: Optimizer | None = None,
    wrt: Wrt = "params",
    *,
    metrics: Sequence[str] = (),
    stop: Stop = None,
    checkpoint: Choice = None,
) -> TrainingStep:
    """One step of training as a graph, for any model whose gradient can be formed.

    loss: a Loss, its text as `parse_loss` reads it, the name of a scalar value, a function of the
    model's values by name, or None for the only output. optimizer: AdamW by default; weights
    narrower than float32 follow master weights, which are states. wrt: the weights to train, as
    `gradient` takes them. metrics: values of the model that the step returns beside the loss. stop:
    values at which gradients stop; the weights before them are frozen. Raises InputError for a loss
    that does not fit, and for a weight that the file does not hold as floating-point numbers.
    """
    optimizer = optimizer or AdamW()
    program = load_own(model)
    digest = hashlib.sha256(to_proto(program).SerializeToString(deterministic=True)).hexdigest()
    if program.opset < OLDEST_OPSET:
        program, _ = raise_opset(program)
    block = program.main
    own_outputs, place = list(block.outputs), Place(block)
    target = _emit_loss(place, _loss(loss, place))
    of_loss = {v.name for v in block.vars()}.difference(place.own)
    evaluation = load(to_proto(program, weights=True))
    for v in own_outputs:
        if v.name not in metrics and v is not target:
            block.remove_output(v)
    found = differentiate(
        program, wrt, target.name, stop=stop, checkpoint=checkpoint, names="{}.grad", aside=of_loss
    )
    program, block = found.program, found.program.main
    values = {v.name: v for v in block.vars()}
    parameters = [_parameter(values[name]) for name in found.adjoints]
    initial = {p.name: np.array(p.const) for p in parameters}
    batch = list(block.inputs)
    adjoints = [values[name] for name in found.adjoints.values()]
    with emitting(block, share=True, made_by=optimizer.name):
        fed = _update(block, optimizer, parameters, adjoints, initial)
    for g in adjoints:
        block.remove_output(g)
    for p in parameters:
        block.ask_for(p)
    block.remove_unused()
    kept = [v.name for v in own_outputs if v.name in metrics]
    manifest = Manifest(
        (*(_batch(v, place) for v in batch), *fed),
        target.name,
        tuple(kept),
        optimizer.to_dict(),
        digest,
    )
    _ask_for(evaluation.main, [p.name for p in parameters])
    return TrainingStep(program, evaluation, initial, manifest)


def _loss(given: Loss | str | Callable[[dict[str, Var]], Var] | None, place: Place) -> Loss:
    if isinstance(given, Loss):
        return given
    if isinstance(given, str):
        if given.isidentifier() and given not in place.own and given not in LOSSES:
            raise InputError(
                f"'{given}' is neither a loss{close(given, LOSSES)} nor a value of the model; "
                "losses "
                f"are {', '.join(sorted(LOSSES))}"
            )
        return Output(given) if given in place.own else parse_loss(given)
    return Output() if given is None else Custom(given)


def _emit_loss(place: Place, loss: Loss) -> Var:
    """The loss as an output, called `loss` where it is a new value."""
    block = place.block
    with emitting(block, share=True, made_by="loss"):
        value = loss.emit(place)
    if any(v is value for v in block.outputs):
        return value
    if value.name not in place.own and not value.is_input:
        rename(value, block.program.names.fresh("loss"))
    block.add_output(value)
    return value


def _parameter(v: Var) -> Var:
    """A weight as an initializer of the main graph. Raises InputError for one that is not in the
    file as floats.
    """
    if v.initializer is None:
        raise InputError(
            f"'{v.name}' is no weight that the file holds as floating-point numbers: "
            "leave it out of wrt"
        )
    return v


def _update(
    block: BindingBlock,
    optimizer: Optimizer,
    parameters: Sequence[Var],
    adjoints: Sequence[Var],
    initial: dict[str, Array],
) -> list[Fed]:
    """The optimiser's formula for each parameter; what it needs is asked for, what it gives is
    returned.
    """
    names = block.program.names
    rate = block.add_input(names.fresh("learning_rate"), TensorType(TensorProto.FLOAT, ()))
    step = block.add_input(names.fresh("step"), TensorType(TensorProto.INT64, ()))
    number = op.Cast(step, to=TensorProto.DOUBLE)
    fed: list[Fed] = []
    states: list[Fed] = []
    for p, g in zip(parameters, adjoints, strict=True):
        at, rule = Moment(rate, number, op, p.dtype), in_float32(optimizer, p.dtype)
        held: dict[str, Var] = {}
        for slot, value in rule.state(initial[p.name]).items():
            type_ = TensorType(helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
            held[slot] = block.add_input(names.fresh(f"{p.name}.{slot}"), type_)
            initial[held[slot].name] = value
        new, kept = rule.update(p, g, held, at)
        fed.append(_fed(p, "parameter", _return(block, new, f"{p.name}.new"), gradient=g.name))
        for slot, v in held.items():
            states.append(_fed(v, "state", _return(block, kept[slot], f"{v.name}.new"), p.name))
    return [*fed, *states, _fed(step, "step"), _fed(rate, "learning_rate")]


def _return(block: BindingBlock, v: Var, name: str) -> str:
    """Make a value an output under a name of its own."""
    name = block.program.names.fresh(name)
    if v.returned or v.definition is None:
        with emitting(block):
            v = op.Identity(v)
    rename(v, name)
    block.add_output(v)
    return name


def _fed(
    v: Var,
    role: Role,
    following: str | None = None,
    of: str | None = None,
    gradient: str | None = None,
) -> Fed:
    return Fed(v.name, role, numpy_dtype(v.dtype).name, v.shape, following, of, gradient)


def _batch(v: Var, place: Place) -> Fed:
    """A part of the batch; of labels, what they may be."""
    classes, ignored = place.classes.get(v.name, (None, None))
    return replace(_fed(v, "batch"), classes=classes, ignored=ignored)


def _ask_for(block: BindingBlock, names: Sequence[str]) -> None:
    for name in names:
        block.ask_for(block.initializers[name])
