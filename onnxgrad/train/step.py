"""Builds a training step: forward pass, gradient and update of a model as one plain graph.

The loss is emitted after the model's outputs, the gradient after the loss, and the optimiser's
formula after each adjoint. Parameters and states are inputs, and their new values are outputs: the
graph has no memory of its own, so any runtime that can run the model can train it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from onnx import GraphProto

from onnxgrad.errors import InputError
from onnxgrad.grad.checkpointing.choice import Choice
from onnxgrad.grad.differentiation import Gradient, differentiate
from onnxgrad.grad.integer_moves import move_integers
from onnxgrad.grad.opset.raising import raise_opset
from onnxgrad.grad.stops import Stop
from onnxgrad.grad.weights.folded import folded_note, unnamed_note
from onnxgrad.grad.weights.repairs import Note, Repairs, Tied, Ties, doubtful_copies, tie, untie
from onnxgrad.grad.weights.sharing import Findings
from onnxgrad.grad.wrt import Wrt, hoist_requested
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.load import ModelLike, load_in_place, load_own, program_of
from onnxgrad.ir.program import Program
from onnxgrad.ir.protobufs import every_node, keep
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.types import Array
from onnxgrad.ir.var import Var
from onnxgrad.name_lists import names_among
from onnxgrad.passes.convert_opset import hide_weight_inputs
from onnxgrad.results import InNotebooks
from onnxgrad.train.export import digest, inference_note
from onnxgrad.train.frozen_part import check_apart, check_behind, cut
from onnxgrad.train.initialization import Initialization
from onnxgrad.train.integer_weights import check_scales, open_integers, rounding_scales
from onnxgrad.train.losses import Place
from onnxgrad.train.losses.adding import LossLike, emit_loss, loss_of
from onnxgrad.train.losses.base import OLDEST_OPSET, Loss, OverBatch
from onnxgrad.train.losses.sums import Sums, emit_sums, guarded, summed
from onnxgrad.train.manifest import Fed, Manifest, in_order
from onnxgrad.train.modes import Applied, Modes
from onnxgrad.train.standardization import OPTION, as_option, carried, standardize, standardized_of
from onnxgrad.train.update.emission import (
    add_state,
    add_up,
    ask_for,
    emit_update,
    fed_of,
    prune,
    returned,
    update_program,
)
from onnxgrad.train.update.mixed_precision import LossScaling
from onnxgrad.train.update.options import NORM, AccumulateBy, UpdateOptions
from onnxgrad.wording import counted, option, perhaps

DIVISOR = "loss.divisor"


@dataclass(frozen=True)
class TrainingStep(InNotebooks):
    """The graphs of a training step and its initial values.

    `train` reads batch, parameters, states, step and learning rate, and returns loss, metrics, new
    parameters and new states. `evaluation` reads batch and parameters, and returns the model's
    outputs and the loss. `initial` has parameters and states by the names of the inputs. With
    micro-batches, `train` returns sums of gradients, and `update` returns the new parameters.
    `notes` are messages for the user. Gradients stop at the values `stops`.
    """

    train: Program
    evaluation: Program
    initial: Mapping[str, Array]
    manifest: Manifest
    update: Program | None = None
    notes: tuple[str, ...] = ()
    stops: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Returns a text without the graphs and the numbers."""
        weights = len(self.manifest.of_role("parameter"))
        batch = ", ".join(fed.name for fed in self.manifest.of_role("batch"))
        how = self.manifest.optimizer["name"]
        return f"TrainingStep({how} on {counted(weights, 'weight')}; a batch holds {batch})"


def build_step(
    model: ModelLike,
    loss: LossLike,
    update: UpdateOptions,
    wrt: Wrt,
    *,
    metrics: Sequence[str],
    stop: Stop,
    checkpoint: Choice,
    modes: Modes,
    inputs_at: Sequence[str],
    ties: Ties,
    standardized: Sequence[str] = (),
    floats: ModelLike | None = None,
    init: Initialization | None = None,
) -> TrainingStep:
    """Returns the training step of a model; `onnxgrad.training_step` describes the options. Large
    weights of a model file stay in it. floats: the model of which this one was quantised. Raises
    InputError.
    """
    program = load_own(model, in_place=True)
    original, earlier = digest(program), inference_note(program)
    hide_weight_inputs(program, overridable=True)  # the step itself feeds the weights
    if floats is not None and not modes.ste:
        raise InputError(
            f"{option('--original', 'original=')} is the float model of a quantised one, whose "
            f"weights train with {option('--ste', 'ste=True')}"
        )
    opened = (
        open_integers(program, None if floats is None else load_in_place(floats))
        if modes.ste
        else []
    )
    untied, doubts, notes = untie(program, ties.untie)
    before: set[str] = set()
    values = {v.name for v in program.main.vars()}
    inputs_at = names_among(inputs_at, values, "inputs_at")
    standardized = standardized_of(program, standardized)
    metrics = names_among(metrics, [v.name for v in program.main.outputs], "metrics")
    if inputs_at:
        before = cut(program, inputs_at)
        check_behind(program, wrt, before, inputs_at)
    program, wrt, tied, more = _with_ties(program, wrt, stop, modes, ties, doubts)
    notes += [*more, *doubtful_copies(doubts, ties.tie)]
    if standardized and inputs_at:
        where = option("--inputs-at", "inputs_at")
        raise InputError(f"{where}: the inputs are not part of the step, and not standardised")
    standardize(program, standardized)
    ahead = _with_loss(program, loss, metrics, update, modes, standardized)
    update = replace(update, accumulate_by=_by(update, ahead))
    found = differentiate(
        ahead.program,
        wrt,
        ahead.goal,
        stop=stop,
        checkpoint=checkpoint,
        names="{}.grad",
        excluded=ahead.of_loss,
        replaced=True,
        detached=ahead.place.detached,
        form=modes.form,
        ste=modes.ste,
    )
    if inputs_at:
        check_apart(found.adjoints, before, inputs_at)
    trained = {*found.adjoints, *(s.name for s in ahead.applied.statistics)}
    if modes.ste:
        check_scales(found.program, trained)
    drawn = [] if init is None else init.set_zeros(found.program, found.adjoints, ahead.evaluation)
    texts = (note.text for note in notes if note.about & trained)
    found = replace(
        found,
        notes=(
            *earlier,
            *opened,
            *drawn,
            *texts,
            *folded_note(found.program, trained),
            *unnamed_note(found.program, trained),
            *found.notes,
        ),
    )
    step = _with_update(found, ahead, update, original, Repairs(tied, untied).of(trained))
    chosen = {
        "batch_norm": modes.batch_norm,
        "dropout": modes.dropout,
        "autocast": modes.autocast,
        "ste": "true" if modes.ste else None,
        "stop": ", ".join(found.stops),
        "inputs_at": ", ".join(inputs_at),
        OPTION: as_option(standardized),
    }
    options = {k: str(v) for k, v in chosen.items() if v not in (None, "")}
    return replace(step, manifest=replace(step.manifest, options=options or None))


def _with_ties(
    program: Program, wrt: Wrt, stop: Stop, modes: Modes, ties: Ties, found: Findings
) -> tuple[Program, Wrt, tuple[Tied, ...], list[Note]]:
    """Returns the program with tied weights, at an opset that has the operators of losses, and with
    the weights moved out of nested graphs; then the new `wrt`, the ties and notes.
    """
    if program.opset < OLDEST_OPSET:
        program, _ = raise_opset(program)
    program = modes.prepare(program)
    hoist_requested(program, wrt)  # evaluation is fed the same weights
    return program, *tie(program, ties.tie, wrt, stop, found)


def _by(update: UpdateOptions, ahead: _Forward) -> AccumulateBy:
    """Returns by what micro-batches count. Raises InputError for labels of a loss that is no mean
    over labels.
    """
    if update.accumulate_by == "labels" and ahead.over_batch != "labels":
        raise InputError(
            f"{option('--accumulate-by labels', 'accumulate_by=')}: the loss {ahead.objective} is "
            "not one mean over labels, as cross_entropy is: choose batches"
        )
    by_labels = ahead.uneven and ahead.over_batch == "labels"
    return update.accumulate_by or ("labels" if by_labels else "batches")


@dataclass(frozen=True)
class _Forward:
    """A program whose last value is the loss, with the facts that gradient and update need.

    goal: the value to differentiate, the loss or a multiple of it. scales: the inputs of loss
    scaling, by slot. of_loss: the names of values that the loss added. evaluation: the program
    before anything was removed, in inference mode. target: the loss, which is 0 if no label counts.
    """

    program: Program
    place: Place
    target: str
    goal: str
    scales: Mapping[str, str]
    of_loss: set[str]
    over_batch: OverBatch | None
    uneven: bool
    objective: str
    sums: tuple[Sums, ...]
    divisor: str | None
    metrics: Sequence[str]
    evaluation: Program
    applied: Applied


def _with_loss(
    program: Program,
    loss: LossLike,
    metrics: Sequence[str],
    options: UpdateOptions,
    modes: Modes,
    standardized: Sequence[str],
) -> _Forward:
    """Emits the loss after the model's outputs, and keeps only the outputs that are metrics."""
    block = program.main
    own_outputs, place = list(block.outputs), Place(block)
    chosen = loss_of(loss, place)
    target = emit_loss(place, chosen)
    count = len(block.outputs)
    with emitting(block, share=True, made_by="loss"):
        sums = emit_sums(place, chosen, target)
    evaluation = modes.infer(load_own(program))
    for v in block.outputs[count:]:
        block.remove_output(v)
    goal, scales = scaled(block, options.scaling, target)
    target, divisor = _guarded(place, chosen, target)
    of_loss = {v.name for v in block.vars()}.difference(place.own)
    for v in dict.fromkeys(own_outputs):
        if v.name not in metrics and v is not target:
            block.remove_output(v)
    kept = _metrics(metrics, [v.name for v in own_outputs])
    applied = modes.apply(program)
    fixed = carried(program, standardized)
    applied = replace(applied, statistics=[*applied.statistics, *fixed])
    return _Forward(
        program,
        place,
        target.name,
        goal.name,
        scales,
        of_loss,
        chosen.over_batch,
        chosen.uneven,
        str(chosen),
        sums,
        divisor,
        kept,
        evaluation,
        applied,
    )


def _guarded(place: Place, loss: Loss, target: Var) -> tuple[Var, str | None]:
    """Replaces the output of a loss by one that is 0 if no label counts, and adds the number of
    labels that count as an output. Gradients do not need this: they are 0 then.
    """
    block = place.block
    with emitting(block, share=True, made_by="loss"):
        value, divisor = guarded(place, loss, target)
    if divisor is None:
        return target, None
    block.remove_output(target)
    target.swap_names(value)
    block.add_output(value)
    return value, returned(block, divisor, DIVISOR)


def scaled(
    block: BindingBlock, scaling: LossScaling | None, loss: Var
) -> tuple[Var, dict[str, str]]:
    """Returns the value to differentiate (the loss, or its product with the scale) and the inputs
    of the scaling by the slots of its states.
    """
    if scaling is None:
        return loss, {}
    state = {k: add_state(block, f"loss.{k}", a) for k, a in scaling.state().items()}
    with emitting(block, share=True, made_by="loss_scaling"):
        product = scaling.scaled(loss, state)
    return product, {slot: v.name for slot, v in state.items()}


def _not_trained(name: str, is_sparse: bool) -> InputError:
    if is_sparse:
        left = option(f"--wrt 'params,!{name}'", f"wrt='params,!{name}'")
        return InputError(
            f"'{name}' is a sparse weight, which no step trains: store it as a dense one, or leave "
            f"it out by {left}"
        )
    return InputError(
        f"'{name}' is not a weight that the file holds as floating-point numbers: leave it out of "
        f"wrt, or train adapters beside it (`onnxgrad lora`); {option('--ste', 'ste=True')} trains "
        "stored integers if they have one scale per tensor or axis"
    )


def _with_update(
    found: Gradient, ahead: _Forward, options: UpdateOptions, original: str, repairs: Repairs
) -> TrainingStep:
    """Emits the optimiser's formula after each adjoint, and makes weights and states inputs."""
    program, block, applied = found.program, found.program.main, ahead.applied
    values = {v.name: v for v in block.vars()}
    parameters = [values[name] for name in found.adjoints]
    if absent := [p.name for p in parameters if p.initializer is None]:
        raise _not_trained(absent[0], absent[0] in {v.name for v in block.sparse})
    adjoints = [values[name] for name in found.adjoints.values()]
    initial = {p.name: np.array(p.const) for p in parameters}
    initial |= {s.name: s.initial for s in applied.statistics}
    if options.scaling is not None:
        initial |= {ahead.scales[slot]: a for slot, a in options.scaling.state().items()}
    scale = {slot: values[name] for slot, name in ahead.scales.items()}
    others = {*ahead.scales.values(), *applied.inputs}
    anchored = ahead.place.anchors.values()
    if fixed := [name for name in anchored if name not in found.adjoints]:
        raise InputError(f"'{fixed[0]}' is not trained: leave it out of the proximal penalty")
    batch = [_batch(v, ahead.place) for v in block.inputs if v.name not in others]
    update = None
    with emitting(block, share=True, made_by=options.optimizer.name):
        if options.accumulate == 1:
            made = emit_update(
                block, options, parameters, adjoints, scale, initial, rounding_scales(program)
            )
        else:
            labels = values[ahead.divisor or ""] if options.accumulate_by == "labels" else None
            sums = add_up(block, parameters, adjoints, initial, labels)
    if options.accumulate > 1:
        update, made = update_program(program, options, sums, scale, initial)
        made.fed.extend(sums)
    fed = [replace(f, adjoint=found.adjoints.get(f.name)) for f in made.fed]
    for g in adjoints:
        block.remove_output(g)
    for p in parameters:
        block.ask_for(p)
    block.remove_unused()
    # inputs that only update.onnx reads
    scales = ahead.scales.values()
    block.inputs = [v for v in block.inputs if v.use_count or v.name not in scales]
    trained = [*(p.name for p in parameters), *(s.name for s in applied.statistics)]
    for graph in (program, ahead.evaluation):
        move_integers(graph)
    of_loss = 1 + len(summed(ahead.sums))
    ask_for(ahead.evaluation.main, trained)
    running = [fed_of(values[s.name], "statistic", s.next) for s in applied.statistics]
    seed = [fed_of(values[applied.seed], "seed")] if applied.seed else []
    manifest = Manifest(
        in_order((*batch, *fed, *running, *seed)),
        ahead.target,
        tuple(ahead.metrics),
        options.optimizer.to_dict(),
        original,
        gradient_norm=made.norm,
        over_batch=ahead.over_batch,
        objective=ahead.objective,
        sums=ahead.sums,
        divisor=ahead.divisor,
        repairs=repairs,
        predict="predict.onnx" if len(ahead.evaluation.main.outputs) > of_loss else None,
        **options.to_dict(),
    )
    notes = (*found.notes, *applied.notes)
    return TrainingStep(program, ahead.evaluation, initial, manifest, update, notes, found.stops)


def _metrics(wanted: Sequence[str], outputs: Sequence[str]) -> list[str]:
    """Returns the requested outputs of the model. Raises InputError for any other name."""
    for name in wanted:
        if name not in (*outputs, NORM):
            raise InputError(
                f"metric '{name}' is not an output of the model{perhaps(name, outputs)}: choose "
                f"from {', '.join((*outputs, NORM))}"
            )
    return [name for name in outputs if name in wanted]


def _batch(v: Var, place: Place) -> Fed:
    """Returns the manifest's entry of an input of the batch; for labels, with their range."""
    classes, ignored = place.classes.get(v.name, (None, None))
    unread, of = place.unread.get(v.name), place.anchors.get(v.name)
    found = replace(fed_of(v, "batch"), classes=classes, ignored=ignored, unread=unread, of=of)
    return replace(found, weights=place.weights.get(v.name))


def forward(step: TrainingStep) -> Program:
    """Returns the part of `train` that computes the loss, with BatchNormalization and Dropout in
    their modes of training. Its inputs are the batch and what the loss reads.
    """
    program, manifest = load_own(step.train), step.manifest
    block = program.main
    for v in [v for v in dict.fromkeys(block.outputs) if v.name != manifest.loss]:
        block.remove_output(v)
    batch = {fed.name for fed in manifest.of_role("batch")}
    prune(block, lambda v: v.use_count or v.name in batch)
    return program


def prediction(step: TrainingStep) -> Program:
    """Returns the model in inference with its trained weights as inputs: `evaluation` without the
    loss.
    """
    model, source = to_proto(step.evaluation), step.evaluation
    drop_loss(model.graph, step.manifest)
    return program_of(model, source.folder, digests=source.digests)


def drop_loss(graph: GraphProto, manifest: Manifest) -> None:
    """Removes the outputs of the loss, and the nodes, weights and inputs that only it reads."""
    of_loss = {manifest.loss, *summed(manifest.sums)}
    keep(graph.output, lambda v: v.name not in of_loss)
    needed = {v.name for v in graph.output}
    for node in reversed(graph.node):
        if not needed.isdisjoint(node.output):
            needed.update(name for each in every_node([node]) for name in each.input)
    keep(graph.node, lambda node: not needed.isdisjoint(node.output))
    made = {name for node in graph.node for name in node.output}
    for values in (graph.input, graph.initializer):
        keep(values, lambda v: v.name in needed)
    keep(graph.sparse_initializer, lambda v: v.values.name in needed)
    keep(graph.value_info, lambda v: v.name in made)
