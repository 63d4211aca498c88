"""Act one of `differentiate`: changes the forward part until the backward walk can read it, and
resolves targets and `wrt`.

The order of the steps matters. The opset comes first, because raising it returns another program.
Checkpoint marks are taken out before a step replaces their readers. Targets are found before
requested weights of nested graphs move to the main graph. Quantisations are opened before `wrt` is
resolved, because "params" includes the weights in front of them. Calls are opened last, only on
paths between `wrt` and the targets; the bindings to recompute are chosen afterwards.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Literal

from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.grad.autocast import Narrow, autocast
from onnxgrad.grad.backward_walk import AsKept, Intact, View
from onnxgrad.grad.checkpointing.choice import Choice, choose
from onnxgrad.grad.checkpointing.marks import FileMarks, drop, settle, take, write
from onnxgrad.grad.checkpointing.recomputation import Recomputation
from onnxgrad.grad.control_flow.branches import open_decided
from onnxgrad.grad.control_flow.loop import type_states
from onnxgrad.grad.inlining import open_calls
from onnxgrad.grad.kernel_types import learn_types, share_dtypes
from onnxgrad.grad.opset.raising import raise_opset
from onnxgrad.grad.paths import influenced, reaching
from onnxgrad.grad.registry import Form
from onnxgrad.grad.stops import Stop, find_stops, stop_at
from onnxgrad.grad.straight_through import open_rounding, rounded_weights
from onnxgrad.grad.targets import Target, cut, find_targets, part_of
from onnxgrad.grad.weights.folded import unnamed_note
from onnxgrad.grad.weights.kept import nested_weights
from onnxgrad.grad.wrt import (
    PARAMS,
    Wrt,
    entries_of,
    find_wrt,
    hoist,
    hoist_requested,
    is_float_constant,
)
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.program import Program
from onnxgrad.ir.var import Var
from onnxgrad.options import Declared
from onnxgrad.passes.remove_unused import reachable
from onnxgrad.wording import counted, option

Adjoint = Literal["auto", "ones", "input"]


@frozen
class GradientRequest(metaclass=Declared):
    """The options of a gradient: see `gradient`. Raises InputError for a wrong adjoint or `names`.

    excluded: names that `wrt` does not match, such as the constants of a loss.
    autocast: the dtype of products of float32 values.
    safe: if true, use 0 in place of NaN at roots of squares and in branches of a Where.
    stop: values that are treated as constants (stop-gradient). detached: names among `excluded`
    that are treated as constants too.
    intact: if true, no rule replaces an operator of the forward part, such as an LSTM by a Scan.
    replaced: if true, requested values are fed at run time, so Constant nodes among them become
    initializers.
    """

    wrt: Wrt = None
    target: Target = None
    adjoint: Adjoint = "ones"
    checkpoint: Choice = None
    ste: bool = False
    simplify: bool = True
    safe: bool = True
    form: Form = "fast"
    autocast: Narrow | None = None
    names: str = "{}_grad"
    excluded: Collection[str] = ()
    stop: Stop = None
    replaced: bool = False
    detached: Collection[str] = ()
    intact: bool = False

    def __post_init__(self) -> None:
        if self.adjoint not in ("auto", "ones", "input"):
            raise InputError(f'adjoint must be "auto", "ones" or "input", not {self.adjoint!r}')
        if self.form not in ("fast", "small"):
            raise InputError(f'form must be "fast" or "small", not {self.form!r}')
        check_names(self.names)


def check_names(names: str, count: int = 1) -> None:
    """Raises InputError for a pattern without a place for each name."""
    if names.count("{}") != count:
        places = "once, for the value's name" if count == 1 else "twice, for target and value"
        raise InputError(f"names must hold {{}} {places}; it is {names!r}")


@frozen
class Prepared:
    """A program whose forward part can be walked back.

    targets, requested: the values in the prepared program. target_names, requested_names: their
    names in the model. seed_names: the names from which the targets' adjoints get theirs. stops:
    values at which gradients stop. view: returns the binding that a rule reads. anchors: Identities
    that define values of the model in place of an opened binding, until `finish`. forward: the
    model's bindings. model_names, weights: the names of its values and initializers. functions: the
    functions that it called.
    """

    program: Program
    request: GradientRequest
    targets: Sequence[Var]
    target_names: Sequence[str]
    seed_names: Sequence[str]
    requested: Sequence[Var]
    requested_names: Sequence[str]
    stops: Sequence[Var]
    view: View
    anchors: Sequence[Binding]
    forward: Collection[Binding]
    model_names: Collection[str]
    weights: Collection[str]
    functions: Collection[tuple[str, str, str]]
    notes: Sequence[str]

    @property
    def block(self) -> BindingBlock:
        return self.program.main


def prepare(program: Program, request: GradientRequest) -> Prepared:
    """Changes `program` until it can be walked back; a new program replaces it if the opset has to
    be raised.

    Raises InputError for a request that does not fit the program.
    """
    given_names = set(program.names)
    program, raised = raise_opset(program)
    notes = [raised] if raised else []
    if request.autocast is not None:
        notes.append(autocast(program, request.autocast))
    # raising the opset may open functions: their constants are no values of the model, as they are
    # none if nothing is raised
    made = (
        {v.name for b in program.blocks() for v in b.vars() if v.name not in given_names}
        if notes
        else set()
    )
    learn_types(program.main)
    model_names, called = set(program.names), reachable(program)
    block = program.main
    file_marks = take(block)
    parts = cut(block, request.target, summed=request.adjoint != "input")
    notes += parts.notes
    targets = find_targets(block, parts.target, scalar=request.adjoint == "ones")
    if request.adjoint == "auto":
        request = replace(request, adjoint=_fitting(targets, notes))
    target_names = [parts.labels.get(v.name, v.name) for v in targets]
    seed_names = [v.name for v in targets]
    not_meant = {
        *made,
        *request.excluded,
        *(v.name for v in block.vars() if v.name not in model_names),
    }
    hoist_requested(program, request.wrt)
    hoist(program, nested_weights(program))
    model_values = {v.name: v for v in block.vars() if v.name not in not_meant}
    stops = find_stops(block, request.stop, model_values)
    stops += [v for v in block.vars() if v.name in request.detached]
    stopped = stop_at(block, stops)
    targets = [stopped.get(v, v) for v in targets]
    anchors: list[Binding] = []
    if request.ste:
        anchors, count = open_rounding(program)
        many = counted(count, "quantisation")
        notes.append(
            f"straight through {many}: an estimate, not a derivative"
            if count
            else f"{option('--ste', 'ste=True')} changes nothing: the model has no QuantizeLinear "
            "whose integers a DequantizeLinear by the same scale reads"
        )
    requested = find_wrt(block, request.wrt, targets, model_values, ste=request.ste)
    if request.replaced:
        hoist(program, [v for v in requested if is_float_constant(v) and v.definition is not None])
        requested = [block.initializers.get(v.name, v) for v in requested]
    elif PARAMS in entries_of(request.wrt, model_values):  # a training step adds its notes itself
        notes += unnamed_note(program, [v.name for v in requested])
    if PARAMS in entries_of(request.wrt, model_values) and not request.ste:
        notes += rounded_weights(block, requested)
    requested_names = [v.name for v in requested]
    requested = [stopped.get(v, v) for v in requested]
    others = () if file_marks is None else file_marks.values
    anchors += open_decided(block, targets, requested, others)
    anchors += open_calls(block, targets, requested, others)
    learn_types(block)
    share_dtypes(block)
    type_states(block, requested)
    return Prepared(
        program,
        request,
        targets,
        target_names,
        seed_names,
        requested,
        requested_names,
        stops,
        view=_view(block, request, targets, requested, file_marks),
        anchors=anchors,
        forward=set(block.bindings).difference(anchors),
        model_names=model_names,
        weights={t.name for t in program.proto.graph.initializer},
        functions=called,
        notes=notes,
    )


def _fitting(targets: Sequence[Var], notes: list[str]) -> Adjoint:
    """Returns the kind of adjoint for these targets: an input if one has several elements."""
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
    request: GradientRequest,
    targets: Sequence[Var],
    requested: Sequence[Var],
    file_marks: FileMarks | None,
) -> View:
    """Returns the view for the backward walk: of forward bindings, or with checkpointing of
    recomputed ones.

    The marks in the file apply if the request has none.
    """
    checkpoint = request.checkpoint
    nested = [b for b in block.program.blocks() if b is not block]
    if request.intact or checkpoint is not None:
        drop(nested)
    if request.intact:
        return Intact()
    if checkpoint is None:
        settle(nested)
        return AsKept() if file_marks is None else Recomputation(block, file_marks.now())
    passed = influenced(block, requested) & reaching(block, targets)
    marks = choose(
        block, checkpoint, [b for b in block.bindings if any(v in passed for v in b.outputs)]
    )
    write(marks.of(block, nested=True), named=False)
    here = marks.of(block)
    return Recomputation(block, here) if here.start or here.end else AsKept()
