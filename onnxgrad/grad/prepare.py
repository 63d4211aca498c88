"""Act one of `differentiate`: the forward part as the backward walk needs it, and what is asked of
it.

The order of the steps is not free. The opset comes first, because raising it makes another program.
Marks of checkpoints come off before anything follows an edge: they stand between a value and its
readers. Targets are found before requested weights of nested graphs move out, which needs to know
what reaches them. Rounding is opened before `wrt` is read: "params" means the weights in front of
it. Calls are opened last, on the paths between what is asked and the targets only, and what the
walk reads is chosen among the bindings that are there then.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from onnxgrad.errors import InputError
from onnxgrad.grad.backward_walk import AsKept, View
from onnxgrad.grad.checkpointing.choice import Choice, choose
from onnxgrad.grad.checkpointing.marks import Written, take
from onnxgrad.grad.checkpointing.recomputation import Recomputation
from onnxgrad.grad.control_flow.branches import open_decided
from onnxgrad.grad.control_flow.loop import type_states
from onnxgrad.grad.kernel_types import learn_types
from onnxgrad.grad.opening import open_calls
from onnxgrad.grad.opset.raising import raise_opset
from onnxgrad.grad.paths import influenced, reaching
from onnxgrad.grad.stops import Stop, find_stops, stop_at
from onnxgrad.grad.straight_through import open_rounding
from onnxgrad.grad.targets import Target, cut, find_targets, part_of
from onnxgrad.grad.wrt import Wrt, find_wrt, hoist, hoist_requested, is_float_constant
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.program import Program
from onnxgrad.ir.var import Var
from onnxgrad.passes.remove_unused import reachable
from onnxgrad.wording import counted

Adjoint = Literal["auto", "ones", "input"]


@dataclass(frozen=True)
class Question:
    """What is asked of a program: see `gradient`. Raises InputError for an adjoint or names that
    cannot be.

    aside: values that `wrt` cannot mean, such as the constants of a loss; detached: those of them
    at which gradients stop. stop: where gradients stop. replaced: others will give the values of
    what is asked for, so that Constants among it become initializers.
    """

    wrt: Wrt
    target: Target
    adjoint: Adjoint
    checkpoint: Choice
    ste: bool
    simplify: bool
    names: str
    aside: Collection[str] = ()
    stop: Stop = None
    replaced: bool = False
    detached: Collection[str] = ()

    def __post_init__(self) -> None:
        if self.adjoint not in ("auto", "ones", "input"):
            raise InputError(f'adjoint must be "auto", "ones" or "input", not {self.adjoint!r}')
        if self.names.count("{}") != 1:
            raise InputError(
                f"names must hold {{}} once, for the value's name; it is {self.names!r}"
            )


@dataclass(frozen=True)
class Prepared:
    """A program whose forward part can be walked back.

    targets, asked: the values, as they are now; target_names, asked_names: as they were called;
    seed_names: what the targets' adjoints are called after. stops: where gradients stop. view: what
    the walk reads. anchors: Identities that hold a place until the end. forward: the bindings that
    are none of ours. weights, functions: the names of those that were there, and the functions that
    were called.
    """

    program: Program
    question: Question
    targets: Sequence[Var]
    target_names: Sequence[str]
    seed_names: Sequence[str]
    asked: Sequence[Var]
    asked_names: Sequence[str]
    stops: Sequence[Var]
    view: View
    anchors: Sequence[Binding]
    forward: Collection[Binding]
    own_names: Collection[str]
    weights: Collection[str]
    functions: Collection[tuple[str, str, str]]
    notes: Sequence[str]

    @property
    def block(self) -> BindingBlock:
        return self.program.main


def prepare(program: Program, question: Question) -> Prepared:
    """Change `program`, or another in its place where the opset has to be raised, until it can be
    walked back.

    Raises InputError for a question that the program cannot answer.
    """
    given_names = set(program.names)
    program, raised = raise_opset(program)
    # a constant of a function that raising opened is none of the model's values, as it is none
    # where nothing is raised
    made = (
        {v.name for b in program.blocks() for v in b.vars() if v.name not in given_names}
        if raised
        else set()
    )
    learn_types(program.main)
    own_names, called = set(program.names), reachable(program)
    notes = [raised] if raised else []
    block = program.main
    written = take(block)
    parts = cut(block, question.target, summed=question.adjoint != "input")
    notes += parts.notes
    targets = find_targets(block, parts.target, scalar=question.adjoint == "ones")
    if question.adjoint == "auto":
        question = replace(question, adjoint=_fitting(targets, notes))
    target_names = [parts.labels.get(v.name, v.name) for v in targets]
    seed_names = [v.name for v in targets]
    not_meant = {*made, *question.aside, *(v.name for v in block.vars() if v.name not in own_names)}
    hoist_requested(program, question.wrt)
    own_values = {v.name: v for v in block.vars() if v.name not in not_meant}
    stops = find_stops(block, question.stop, own_values)
    stops += [v for v in block.vars() if v.name in question.detached]
    stopped = stop_at(block, stops)
    targets = [stopped.get(v, v) for v in targets]
    anchors: list[Binding] = []
    if question.ste:
        anchors, count = open_rounding(program)
        many = counted(count, "quantisation")
        notes.append(f"straight through {many}: an estimate, not a derivative")
    asked = find_wrt(block, question.wrt, targets, own_values, ste=question.ste)
    if question.replaced:
        hoist(program, [v for v in asked if is_float_constant(v) and v.definition is not None])
        asked = [block.initializers.get(v.name, v) for v in asked]
    asked_names = [v.name for v in asked]
    asked = [stopped.get(v, v) for v in asked]
    others = () if written is None else written.values
    anchors += open_decided(block, targets, asked, others)
    anchors += open_calls(block, targets, asked, others)
    learn_types(block)
    type_states(block, asked)
    return Prepared(
        program,
        question,
        targets,
        target_names,
        seed_names,
        asked,
        asked_names,
        stops,
        view=_view(block, question.checkpoint, targets, asked, written),
        anchors=anchors,
        forward=set(block.bindings).difference(anchors),
        own_names=own_names,
        weights={t.name for t in program.proto.graph.initializer},
        functions=called,
        notes=notes,
    )


def _fitting(targets: Sequence[Var], notes: list[str]) -> Adjoint:
    """The adjoint that these targets can have: one of several elements has none by itself."""
    several = next((v for v in targets if v.shape != ()), None)
    if several is None:
        return "ones"
    notes.append(
        f"target '{several.name}' is {several.type}, not a scalar: its adjoint is an input; "
        f"or {part_of(several)}"
    )
    return "input"


def _view(
    block: BindingBlock,
    checkpoint: Choice,
    targets: Sequence[Var],
    asked: Sequence[Var],
    written: Written | None,
) -> View:
    """What the backward walk reads: the forward bindings, or with checkpointing recomputed ones.

    The marks of the file count where none are given.
    """
    if checkpoint is None:
        return AsKept() if written is None else Recomputation(block, written.now())
    passed = influenced(block, asked) & reaching(block, targets)
    marks = choose(
        block, checkpoint, [b for b in block.bindings if any(v in passed for v in b.outputs)]
    )
    return Recomputation(block, marks)
