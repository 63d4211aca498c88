"""`gradient`: a model with the adjoints of the requested values as further outputs."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.grad.checkpoint import Recomputation
from onnxgrad.grad.engine import AsKept, View, backward, influenced, open_calls, reaching
from onnxgrad.grad.integer_paths import why_zero
from onnxgrad.grad.loop import type_states
from onnxgrad.grad.marks import Written, take
from onnxgrad.grad.opset import raise_opset
from onnxgrad.grad.order import sinks_last
from onnxgrad.grad.request import Target, Wrt, find_targets, find_wrt, hoist_requested
from onnxgrad.grad.segments import Choice, choose
from onnxgrad.grad.sequences import zeros_of
from onnxgrad.grad.simplify import simplify as simplify_program
from onnxgrad.grad.straight_through import close_rounding, open_rounding
from onnxgrad.ir.anchor import lift
from onnxgrad.ir.block import Binding, BindingBlock, Var
from onnxgrad.ir.collector import collector_paused
from onnxgrad.ir.emission.constant import constant
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.fault import blaming
from onnxgrad.ir.interop.given_back import check_room, like
from onnxgrad.ir.load import ModelLike, load_own
from onnxgrad.ir.names import rename
from onnxgrad.ir.ops import op
from onnxgrad.ir.program import Program
from onnxgrad.limits import limited
from onnxgrad.passes.remove_unused_functions import reachable

Seed = Literal["ones", "input"]

_log = logging.getLogger("onnxgrad")


@dataclass(frozen=True)
class Gradient:
    """A program with its adjoints, and what to tell the user about it."""

    program: Program
    targets: tuple[str, ...]
    # requested value -> output that holds its adjoint, in the order asked
    adjoints: Mapping[str, str]
    # target -> graph input for its adjoint, with seed="input"
    seeds: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def gradient(
    model: ModelLike,
    wrt: Wrt = None,
    target: Target = None,
    *,
    seed: Seed = "ones",
    checkpoint: Choice = None,
    ste: bool = False,
    simplify: bool = True,
    names: str = "{}_grad",
    timeout: float | None = None,
    max_memory: int | str | None = None,
) -> Any:
    """The model with one more output per requested value: the adjoint of that value, named by `names`.

    `model` is a path, bytes, ModelProto or another object that `load` takes, and is not changed; what has no kind to
    come back as gives a ModelProto, everything else its own kind. `wrt`: names or globs of inputs, initializers,
    intermediate values, which may be sequences of tensors; None: every floating-point input; "params": every weight
    with an axis that reaches the target, those of nested graphs too, which then move to the main graph. `target`: an
    output's name or index, any value's name, or a list, whose adjoints add up; None: the only output. `seed="ones"`:
    targets are scalars; `seed="input"`: any shape, with a new graph input `<target>_grad` of the target's type.
    `checkpoint`: a `Checkpoint`, value names, "auto" or a memory budget such as "512MB" (see
    `onnxgrad.grad.segments.choose`); None: the marks in the file, if any. `ste`: rounding by QuantizeLinear and
    DequantizeLinear passes adjoints straight through, an estimate; without it nothing passes, for the derivative of
    rounding is zero. Raises InputError for a request that the model cannot answer: an unknown name, a value that is not
    floating-point, no unique target. Warns when no requested value reaches the target, and when `wrt` holds a target
    with `seed="input"`: `y_grad` is then the new input, so that the adjoint of `y` is returned as `y_grad_2`.
    """
    with limited(timeout, max_memory):
        program = load_own(model)
        check_room(program, model)
        found = differentiate(
            program, wrt, target, seed=seed, checkpoint=checkpoint, ste=ste, simplify=simplify, names=names
        )
    for note in found.notes:
        _log.info(note)
    for value in found.seeds:  # the input of that name is ours: nobody can have seen it coming
        if value in found.adjoints:
            warnings.warn(_renamed(value, found.adjoints[value], names), stacklevel=2)
    return like(found.program, model)


def differentiate(
    program: Program,
    wrt: Wrt = None,
    target: Target = None,
    *,
    seed: Seed = "ones",
    checkpoint: Choice = None,
    ste: bool = False,
    simplify: bool = True,
    names: str = "{}_grad",
) -> Gradient:
    """`gradient` on a Program, which is changed (or replaced, when its opset has to be raised); see there."""
    with collector_paused(), blaming(program.proto):
        return _differentiate(program, wrt, target, seed, checkpoint, ste, simplify, names)


def _differentiate(
    program: Program,
    wrt: Wrt,
    target: Target,
    seed: Seed,
    checkpoint: Choice,
    ste: bool,
    simplify: bool,
    names: str,
) -> Gradient:
    if seed not in ("ones", "input"):
        raise InputError(f'seed must be "ones" or "input", not {seed!r}')
    if names.count("{}") != 1:
        raise InputError(f"names must hold {{}} once, for the value's name; it is {names!r}")
    given_names = set(program.names)
    program, note = raise_opset(program)
    # a constant of a function that raising opened is none of the model's values, as it is none where nothing is raised
    made = {v.name for b in program.blocks() for v in b.vars() if v.name not in given_names} if note else set()
    own_names, called = set(program.names), reachable(program)
    notes = [note] if note else []
    block = program.main
    block.schedule()
    written = take(block)
    targets = find_targets(block, target, scalar=seed == "ones")
    hoist_requested(program, wrt)
    own_values = {v.name: v for v in block.vars() if v.name not in made}
    target_names = [v.name for v in targets]
    anchors: list[Binding] = []
    if ste:
        anchors, count = open_rounding(program)
        many = f"{count} quantisation{'' if count == 1 else 's'}"
        notes.append(f"straight through {many}: an estimate, not a derivative")
    block.schedule()
    asked = find_wrt(block, wrt, targets, own_values, ste=ste)
    anchors += open_calls(block, targets, asked, () if written is None else written.values)
    type_states(block, asked)
    before = {t.name for t in program.proto.graph.initializer}
    forward = set(block.bindings).difference(anchors)
    view = _view(block, checkpoint, targets, asked, written)
    with emitting(block, share=True, made_by="gradient"):
        seeds = {v: _seed(v, seed, names) for v in targets}
        found = backward(block, seeds, asked, view=view)
        if not found:
            text = f"no requested value reaches {_listed(target_names)}: all gradients are zero"
            if reason := why_zero(block, asked, targets, ste=ste):
                text += f" ({reason})"
            notes.append(text)
            warnings.warn(text, stacklevel=4)  # gradient's caller, past the decorator
        outputs = {v.name: _return(block, v, found.get(v), names, forward) for v in asked}
    for value, output in outputs.items():
        if output != names.format(value):
            notes.append(_renamed(value, output, names))
    if ste:
        close_rounding(program)
    for identity in anchors:
        lift(identity, own_names)
    block.remove_unused()
    if simplify:
        simplify_program(program, asked, forward)
    for v in [v for v in block.initializers.values() if v.use_count == 0 and v.name not in before]:
        block.remove_initializer(v)
    # functions whose every call was opened; what nothing called before is none of our business
    for key in called - reachable(program):
        del program.functions[key]
    sinks_last(block, forward)
    # a target that a call gave is another value now that the call is open
    given = {name: seeds[v].name for name, v in zip(target_names, targets, strict=True)} if seed == "input" else {}
    return Gradient(program, tuple(target_names), outputs, given, tuple(notes))


def _view(
    block: BindingBlock, checkpoint: Choice, targets: Sequence[Var], asked: Sequence[Var], written: Written | None
) -> View:
    """What the backward walk reads: the forward bindings, or with checkpointing recomputed ones.

    The marks of the file count where none are given.
    """
    if checkpoint is None:
        return AsKept() if written is None else Recomputation(block, written.now())
    block.schedule()
    passed = influenced(block, asked) & reaching(block, targets)
    marks = choose(block, checkpoint, [b for b in block.bindings if any(v in passed for v in b.outputs)])
    return Recomputation(block, marks)


def _seed(target: Var, seed: Seed, names: str) -> Var:
    if seed == "input":
        return target.block.add_input(target.block.program.names.fresh(names.format(target.name)), target.type)
    return constant(np.ones(()), target.dtype, name="one")


def _return(block: BindingBlock, value: Var, adjoint: Var | None, names: str, forward: set[Binding]) -> str:
    """Make the adjoint an output under its name; an Identity only where the value cannot carry that name itself."""
    if adjoint is None:
        adjoint = zeros_of(value)
    name = block.program.names.fresh(names.format(value.name))
    # what the forward part defines, a constant, and what is an output already keep their names
    if adjoint.returned or adjoint.definition is None or adjoint.definition in forward:
        with emitting(block, made_by="gradient"):  # not shared: each of several values with one adjoint has its own
            adjoint = op.Identity(adjoint)
    rename(adjoint, name)
    block.add_output(adjoint)
    return name


def _renamed(value: str, output: str, names: str) -> str:
    return f"'{names.format(value)}' is taken: the gradient of '{value}' is '{output}'"


def _listed(names: Sequence[str]) -> str:
    return ("target " if len(names) == 1 else "targets ") + ", ".join(f"'{n}'" for n in names)
