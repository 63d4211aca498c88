"""`gradient` and `differentiate`: a program and its adjoints, in three acts: prepare the forward
part, walk back over it, finish the graph.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from onnxgrad.grad.backward_walk import backward
from onnxgrad.grad.checkpointing.choice import Choice
from onnxgrad.grad.finish import finish, variable
from onnxgrad.grad.prepare import Adjoint, GradientRequest, Prepared, prepare
from onnxgrad.grad.sequences import zeros_of
from onnxgrad.grad.stops import Stop, cut_off
from onnxgrad.grad.straight_through import why_zero
from onnxgrad.grad.targets import Target
from onnxgrad.grad.wrt import Wrt
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.emission.emit import constant, emitting
from onnxgrad.ir.load import ModelLike, check_room, collector_paused, load_own, to_kind_of
from onnxgrad.ir.ops import op
from onnxgrad.ir.preflight.invalid_models import blaming
from onnxgrad.ir.program import Program
from onnxgrad.ir.var import Var
from onnxgrad.limits import limited
from onnxgrad.options import known_keywords

_log = logging.getLogger("onnxgrad")


@dataclass(frozen=True)
class Gradient:
    """A program with its adjoints, and what to tell the user about it."""

    program: Program
    targets: tuple[str, ...]
    # requested value -> output that holds its adjoint, in the order requested
    adjoints: Mapping[str, str]
    # target -> graph input for its adjoint, where that is no constant
    seeds: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    # where gradients stop
    stops: tuple[str, ...] = ()


@known_keywords
def gradient(
    model: ModelLike,
    wrt: Wrt = None,
    target: Target = None,
    *,
    adjoint: Adjoint = "ones",
    checkpoint: Choice = None,
    ste: bool = False,
    stop: Stop = None,
    simplify: bool = True,
    names: str = "{}_grad",
    timeout: float | None = None,
    max_memory: int | str | None = None,
) -> Any:
    """Returns the model with one more output per requested value: its adjoint, named by `names`.

    `model` is a path, bytes, ModelProto or any other object that `load` accepts. It is not changed,
    and the result has its type; paths, bytes and streams return a ModelProto.
    `wrt`: names or globs of inputs, initializers and intermediate values, sequences of tensors
    among them. None: every floating-point input. "params": every weight that reaches the target;
    weights of nested graphs move to the main graph. "!GLOB" removes from the names before it.
    `onnxgrad inspect --weights` lists which constants are weights, and why.
    `target`: an output's name or index, any value's name, a part of one such as "logits[:,7]", or a
    list, whose adjoints add up. None: the only output.
    `adjoint`: "ones": targets are scalars, and a part is summed. "input": targets have any shape,
    and each adds a graph input `<target>_grad` of its type. "auto": "ones" if all are scalars.
    `checkpoint`: a `Checkpoint`, value names, "auto" or a memory budget such as "512MB" (see
    `onnxgrad.grad.checkpointing.choice`). None: the marks in the file, if any.
    `ste`: if true, QuantizeLinear and DequantizeLinear pass adjoints straight through, which is an
    estimate; the derivative of rounding is zero.
    `stop`: names or globs of computed values that are treated as constants (stop-gradient).

    Raises InputError for an unknown name, a value that is not floating-point, or no unique target.
    Warns if no requested value reaches the target, and if `wrt` holds a target with
    `adjoint="input"`: `y_grad` is then the new input, and the adjoint of `y` is `y_grad_2`.

    >>> model = onnxgrad.gradient("models/training/mlp.onnx", "params,!*.bias", "loss")
    >>> [v.name for v in model.graph.output]
    ['loss', '0.weight_grad', '2.weight_grad', '4.weight_grad']
    """
    with limited(timeout, max_memory), collector_paused():
        program = load_own(model)
        check_room(program, model)
        found = differentiate(
            program,
            wrt,
            target,
            adjoint=adjoint,
            checkpoint=checkpoint,
            ste=ste,
            stop=stop,
            simplify=simplify,
            names=names,
        )
    for note in found.notes:
        _log.info(note)
    for value in found.seeds:  # the input of that name is ours: nobody can have seen it coming
        if value in found.adjoints:
            warnings.warn(renamed(value, found.adjoints[value], names), stacklevel=3)
    with collector_paused():
        return to_kind_of(found.program, model)


def differentiate(
    program: Program, wrt: Wrt = None, target: Target = None, **options: Any
) -> Gradient:
    """`gradient` on a Program, which is changed, or replaced if its opset has to be raised.

    options: the other fields of `GradientRequest`.
    """
    with collector_paused(), blaming(program.proto):
        task = prepare(program, GradientRequest(wrt, target, **options))
        # rules may compute ahead of time from a weight only if it stays what it is
        with variable(task.requested if task.request.replaced else ()):
            answer = _walk(task)
        finish(task)
        return answer


def _walk(task: Prepared) -> Gradient:
    """Act two: from the targets' adjoints back to those requested for, each of them an output."""
    request, block = task.request, task.block
    notes = list(task.notes)
    with emitting(block, share=True, made_by="gradient"):
        named = zip(task.targets, task.seed_names, strict=True)
        seeds = {v: _seed(v, request.adjoint, request.names.format(name)) for v, name in named}
        found = backward(block, seeds, task.requested, view=task.view)
        if not found:
            names = ", ".join(f"'{name}'" for name in task.target_names)
            which = "target" if len(task.target_names) == 1 else "targets"
            text = f"no requested value reaches {which} {names}: all gradients are zero"
            if reason := why_zero(block, task.requested, task.targets, ste=request.ste):
                text += f" ({reason})"
            notes.append(text)
            warnings.warn(text, stacklevel=5)  # the caller of gradient, behind `known_keywords`
        requested = dict(zip(task.requested_names, task.requested, strict=True))
        if found:
            notes += cut_off(
                block, {n: v for n, v in requested.items() if v not in found}, task.stops
            )
        outputs = {
            name: _return(block, v, found.get(v), request.names.format(name), task.forward)
            for name, v in requested.items()
        }
    called = request.names.format
    notes += [renamed(v, o, request.names) for v, o in outputs.items() if o != called(v)]
    # a target that a call gave is another value now that the call is open
    by_name = dict(zip(task.target_names, task.targets, strict=True))
    given = (
        {name: seeds[v].name for name, v in by_name.items()} if request.adjoint == "input" else {}
    )
    return Gradient(
        task.program,
        tuple(task.target_names),
        outputs,
        given,
        tuple(notes),
        tuple(v.name for v in task.stops),
    )


def _seed(target: Var, adjoint: Adjoint, name: str) -> Var:
    return (
        target.block.add_input(target.block.program.names.fresh(name), target.type)
        if adjoint == "input"
        else constant(np.ones(()), target.dtype, name="one")
    )


def _return(
    block: BindingBlock, value: Var, adjoint: Var | None, name: str, forward: Collection[Binding]
) -> str:
    """Make the adjoint an output under `name` or one like it; an Identity only where it cannot
    carry that itself.
    """
    if adjoint is None:
        adjoint = zeros_of(value)
    name = block.program.names.fresh(name)
    # what the forward part defines, a constant, and what is an output already keep their names
    if adjoint.returned or adjoint.definition is None or adjoint.definition in forward:
        # not shared: each of several values with one adjoint has its own
        with emitting(block, made_by="gradient"):
            adjoint = op.Identity(adjoint)
    adjoint.rename(name)
    block.add_output(adjoint)
    return name


def renamed(value: str, output: str, names: str) -> str:
    """The note for an adjoint whose name is taken."""
    return f"'{names.format(value)}' is taken: the gradient of '{value}' is '{output}'"
