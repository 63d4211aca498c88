"""From TrainingInfoProto back to a training step that runs: of our own files and of others'.

The comments of TrainingInfoProto in onnx.proto say what such a file means: the training graph is
the inference graph and `algorithm` together; the initializers that `update_binding` names are its
variables; they begin as their initializers say, and then as `initialization` does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from onnx import (
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TrainingInfoProto,
    helper,
    numpy_helper,
)

from onnxgrad.errors import InputError
from onnxgrad.grad.opset.raising import OPSET, raise_opset
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.load import ModelLike, load, program_of, proto_of
from onnxgrad.ir.ops import op
from onnxgrad.ir.program import Program
from onnxgrad.ir.save import to_bytes, to_proto
from onnxgrad.ir.types import FLOAT_DTYPES, Array, TensorType
from onnxgrad.ir.var import Var
from onnxgrad.options import known_keywords
from onnxgrad.rewrite.trace import Trace
from onnxgrad.train.export import digest
from onnxgrad.train.manifest import Manifest, Role
from onnxgrad.train.onnx_training.preview_operators import DOMAIN, LowerTraining
from onnxgrad.train.onnx_training.training_info_writer import KEY
from onnxgrad.train.step import TrainingStep
from onnxgrad.train.update.emission import fed_of, returned
from onnxgrad.verify.running.run import run

_OPTIMIZERS = frozenset({"Adam", "Adagrad", "Momentum"})


@dataclass(frozen=True)
class Roles:
    """Names of values. rate, counts: None where the graph takes none from outside."""

    loss: str
    rate: str | None = None
    counts: str | None = None  # updates made before, the T of the standard's optimisers


def roles_of(
    graph: GraphProto,
    algorithm: GraphProto,
    updates: Collection[str],
    loss: str | None,
    rate: str | None,
) -> Roles:
    """What Gradient and the standard's optimisers say of a training graph, and who asks.

    updates: the variables and their new values. Raises InputError where nothing says which the loss
    is, and for a learning rate that is none.
    """
    inputs = {v.name for v in graph.input}
    held = {t.name: t for t in graph.initializer}
    optimizers = [n for n in graph.node if n.domain == DOMAIN and n.op_type in _OPTIMIZERS]
    if rate is None:
        found = {n.input[0] for n in optimizers if n.input[0] not in updates}
        rate = found.pop() if len(found) == 1 and found <= inputs | held.keys() else None
    elif rate in updates or rate not in inputs | held.keys():
        raise InputError(
            f"the learning rate '{rate}' is no input of the training graph, nor an initializer "
            "that stays as it is"
        )
    if rate in held and int(np.prod(held[rate].dims)) != 1:
        raise InputError(f"the learning rate '{rate}' has more than one element")
    counts = {n.input[1] for n in optimizers} & (inputs - held.keys())
    return Roles(
        loss or _loss(graph.node, algorithm, updates),
        rate,
        counts.pop() if len(counts) == 1 else None,
    )


def _loss(nodes: Sequence[NodeProto], algorithm: GraphProto, updates: Collection[str]) -> str:
    of: set[str] = {
        helper.get_attribute_value(a).decode()
        for n in nodes
        if n.domain == DOMAIN and n.op_type == "Gradient"
        for a in n.attribute
        if a.name == "y"
    }
    if len(of) == 1:
        return next(iter(of))
    scalars: list[str] = [
        v.name for v in algorithm.output if v.name not in updates and _is_scalar(v)
    ]
    if len(scalars) == 1:
        return scalars[0]
    listed = ", ".join(sorted(of) or [v.name for v in algorithm.output if v.name not in updates])
    raise InputError(
        f"nothing says which value of the training graph is the loss ({listed or 'no output'}): "
        "name it with loss="
    )


def _is_scalar(v: object) -> bool:
    kind = v.type.tensor_type  # type: ignore[attr-defined]
    sizes = [d.dim_value for d in kind.shape.dim]
    return kind.elem_type in FLOAT_DTYPES and all(size == 1 for size in sizes)


def connect_rate(program: Program, name: str) -> tuple[Var, float | None]:
    """The learning rate as a scalar input, and what the file has for it."""
    block = program.main
    held = block.initializers.get(name)
    if held is None:
        return _scalar(block, _input(block, name), "learning_rate"), None
    tensor = held.initializer
    default = None if tensor is None else float(program.array(tensor).reshape(-1)[0])
    block.ask_for(held)
    return _scalar(block, held, "learning_rate"), default


def connect_step(program: Program, name: str) -> Var:
    """The number of the step, from 1 on, as an input from which the count of former ones comes."""
    block = program.main
    counts = _input(block, name)
    step = block.add_input(program.names.fresh("step"), TensorType(TensorProto.INT64, ()))
    with emitting(block):
        before = op.Cast(step - 1, to=counts.dtype)
        sizes = np.ones(len(counts.shape or ()), np.int64)
        block.replace(counts, op.Reshape(before, sizes) if len(sizes) else before)
    block.inputs = [v for v in block.inputs if v is not counts]
    return step


def _input(block: BindingBlock, name: str) -> Var:
    return next(v for v in block.inputs if v.name == name)


def _scalar(block: BindingBlock, v: Var, hint: str) -> Var:
    """The input itself, or a scalar one in its place where it has axes."""
    if v.shape == ():
        return v
    scalar = block.add_input(block.program.names.fresh(hint), TensorType(v.dtype, ()))
    with emitting(block):
        block.replace(v, op.Reshape(scalar, np.ones(len(v.shape or ()), np.int64)))
    block.inputs = [i for i in block.inputs if i is not v]
    return scalar


def scalar_loss(block: BindingBlock, name: str) -> Var:
    """The loss as a scalar. Raises InputError for what is none."""
    found = next((v for v in block.vars() if v.name == name), None)
    if found is None:
        raise InputError(f"the loss '{name}' is no value of the training graph")
    if found.shape == ():
        return found
    if found.dtype not in FLOAT_DTYPES or any(n != 1 for n in found.shape or ()):
        raise InputError(f"the loss '{name}' is {found.type}, not a number")
    with emitting(block):
        return op.Reshape(found, np.zeros(0, np.int64))


_JOINED = ("input", "output", "initializer", "sparse_initializer", "node", "value_info")


@dataclass(frozen=True)
class _File:
    """A file's training graph, with its variables: name -> the output that is its next value."""

    program: Program
    info: TrainingInfoProto
    updates: Mapping[str, str]
    initial: Mapping[str, Array]
    weights: frozenset[str]  # variables of the inference graph
    returned: tuple[str, ...]  # by the inference graph
    manifest: Manifest | None
    digest: str


@known_keywords
def step_from_training_info(
    model: ModelLike,
    *,
    number: int | None = None,
    loss: str | None = None,
    learning_rate: str | None = None,
    initialize: bool = True,
) -> TrainingStep:
    """The step that a model's training_info holds, as `training_step` gives it.

    Variables of the inference graph are its parameters, those of `algorithm` its states. Gradient,
    Adam, Adagrad and Momentum of ai.onnx.preview.training are lowered to standard operators.
    number: which of several entries, from 0 on. loss, learning_rate: names of values, where the
    file does not say: by default what Gradient differentiates, or the only scalar returned, and the
    R of the optimisers. A rate that is neither stays as the file computes it. initialize: begin
    where `initialization` says, not where the initializers stand. Raises InputError for a file
    without training_info, one that contradicts itself or the standard, and where nothing says which
    value the loss is.
    """
    file = _read(model, number, initialize)
    own = file.manifest if loss is None and learning_rate is None else None
    graph = file.program.proto.graph
    names = {*file.updates, *file.updates.values()}
    if own is None:
        roles = roles_of(graph, file.info.algorithm, names, loss, learning_rate)
    else:
        rates = own.of_role("learning_rate")
        roles = Roles(own.loss, rates[0].name if rates else None)
    train = load(to_proto(file.program))
    manifest = _train(train, file, roles, own)
    parameters = [fed.name for fed in manifest.of_role("parameter")]
    evaluation = _evaluation(load(to_proto(file.program)), file, roles, parameters)
    carried = {fed.name for fed in manifest.inputs if fed.next is not None}
    initial = {name: a for name, a in file.initial.items() if name in carried}
    train.folder = evaluation.folder = file.program.folder
    return TrainingStep(load(to_proto(train)), evaluation, initial, manifest)


# ---- the file ------------------------------------------------------------------------------------


def _read(model: ModelLike, number: int | None, initialize: bool) -> _File:
    proto, folder = proto_of(model)
    info = _chosen(proto, number)
    both = ModelProto()
    both.CopyFrom(proto)
    del both.training_info[:]
    for field in _JOINED:
        getattr(both.graph, field).extend(getattr(info.algorithm, field))
    held = {t.name: t for t in both.graph.initializer}
    updates = _updates(info, held, {v.name for v in both.graph.output})
    if initialize:
        _initialize(both, proto, folder)
    program = program_of(both, folder)
    if program.opset < OPSET:
        program, _ = raise_opset(program)
        program = program_of(to_proto(program), program.folder)
    initial = {name: program.array(held[name]) for name in updates}
    return _File(
        program,
        info,
        updates,
        initial,
        frozenset(updates) & {t.name for t in proto.graph.initializer},
        tuple(v.name for v in proto.graph.output),
        _told(proto, updates),
        digest(program_of(proto, program.folder)),
    )


def _chosen(proto: ModelProto, number: int | None) -> TrainingInfoProto:
    count = len(proto.training_info)
    if not count:
        raise InputError("the model has no training_info: training_step makes a step of it")
    if number is None and count > 1:
        raise InputError(
            f"the model has {count} entries of training_info, each a step of its own: choose one "
            "with number="
        )
    if not 0 <= (number or 0) < count:
        raise InputError(f"number={number}: the model has {count} entries of training_info")
    chosen: TrainingInfoProto = proto.training_info[number or 0]
    return chosen


def _updates(
    info: TrainingInfoProto, held: Mapping[str, TensorProto], outputs: set[str]
) -> dict[str, str]:
    """What update_binding says. Raises InputError for what the standard rules out."""
    found: dict[str, str] = {}
    for entry in info.update_binding:
        if entry.key in found:
            raise InputError(f"update_binding names '{entry.key}' twice")
        if entry.key not in held:
            raise InputError(f"update_binding names '{entry.key}', which is no initializer")
        if entry.value not in outputs:
            raise InputError(
                f"update_binding gives '{entry.key}' the value '{entry.value}', which is no output"
            )
        found[entry.key] = entry.value
    if not found:
        raise InputError("update_binding is empty: the step changes nothing")
    return found


def _initialize(both: ModelProto, proto: ModelProto, folder: Path | None) -> None:
    """Run every initialization graph, and put what comes into the initializers."""
    held = {t.name: t for t in both.graph.initializer}
    for info in proto.training_info:
        wanted = [e for e in info.initialization_binding if e.key in held]
        if not wanted:
            continue
        outputs = {v.name for v in info.initialization.output}
        missing = next((e for e in wanted if e.value not in outputs), None)
        if missing is not None:
            raise InputError(
                f"initialization_binding gives '{missing.key}' the value '{missing.value}', which "
                "is no output of initialization"
            )
        alone = ModelProto()
        alone.CopyFrom(proto)
        del alone.training_info[:]
        alone.graph.CopyFrom(info.initialization)
        found = run(to_bytes(program_of(alone, folder)), {})
        for entry in wanted:
            old, value = held[entry.key], found[entry.value]
            new = numpy_helper.from_array(np.asarray(value), entry.key)
            if new.dims != old.dims or new.data_type != old.data_type:
                raise InputError(
                    f"initialization makes '{entry.key}' of shape {list(new.dims)}, its "
                    f"initializer is {list(old.dims)}, or of another dtype"
                )
            old.CopyFrom(new)


def _told(proto: ModelProto, updates: Mapping[str, str]) -> Manifest | None:
    """The manifest that `with_training_info` left, where it still speaks of this graph."""
    text = next((e.value for e in proto.metadata_props if e.key == KEY), None)
    if text is None:
        return None
    manifest = Manifest.from_json(text, f"the model's metadata '{KEY}'")
    carried = {fed.name: fed.next for fed in manifest.inputs if fed.next is not None}
    counters = {fed.name for fed in manifest.of_role("step")}
    said = {name: value for name, value in updates.items() if name not in counters}
    return manifest if said == carried and counters <= updates.keys() else None


# ---- the graphs ----------------------------------------------------------------------------------


def _train(program: Program, file: _File, roles: Roles, own: Manifest | None) -> Manifest:
    """Make the training graph one whose variables are inputs and outputs, and say what they are."""
    block = program.main
    batch = [v.name for v in block.inputs if v.initializer is None]
    for name in file.updates:
        block.ask_for(block.initializers[name])
    rate, lr = (None, None) if roles.rate is None else connect_rate(program, roles.rate)
    step = None if roles.counts is None else connect_step(program, roles.counts)
    LowerTraining().run(program, Trace())
    values = {v.name: v for v in block.vars()}
    for v in dict.fromkeys(block.outputs):
        block.remove_output(v)
    target = scalar_loss(block, roles.loss)
    block.add_output(target)
    for name in () if own is None else (*own.metrics, *filter(None, [own.gradient_norm])):
        if not values[name].returned:
            block.add_output(values[name])
    counters = set() if own is None else {fed.name for fed in own.of_role("step")}
    carried = []
    for name, value in file.updates.items():
        if name not in counters:
            role: Role = "parameter" if name in file.weights else "state"
            v = values[value]
            if v.returned or v.definition is None:
                value = returned(block, v, f"{name}.new")
            else:
                block.add_output(v)
            carried.append(fed_of(values[name], role, value))
    _clean(block)
    if own is not None:
        place = {fed.name: i for i, fed in enumerate(own.inputs)}
        block.inputs.sort(key=lambda v: place.get(v.name, -1))
        return own
    names = {v.name for v in (rate, step) if v is not None} | {roles.rate, roles.counts}
    fed = [fed_of(values[name], "batch") for name in batch if name not in names]
    fed += [*carried, *([] if step is None else [fed_of(step, "step")])]
    fed += [] if rate is None else [fed_of(rate, "learning_rate")]
    optimizer = {"name": "training_info", **({} if lr is None else {"lr": lr})}
    return Manifest(tuple(fed), target.name, optimizer=optimizer, model=file.digest)


def _evaluation(program: Program, file: _File, roles: Roles, parameters: list[str]) -> Program:
    """Batch and parameters in, the model's outputs and the loss out. Raises InputError for a loss
    that reads states.
    """
    block = program.main
    states = {*file.updates, *filter(None, [roles.rate, roles.counts])} - set(parameters)
    for name in parameters:
        block.ask_for(block.initializers[name])
    for v in dict.fromkeys(block.outputs):
        if v.name not in file.returned:
            block.remove_output(v)
    target = scalar_loss(block, roles.loss)
    if not target.returned:
        block.add_output(target)
    LowerTraining().run(program, Trace())
    _clean(block)
    read = [v for v in block.vars() if v.name in states and v.use_count]
    if read:
        raise InputError(
            f"the loss '{roles.loss}' or an output reads '{read[0].name}', which is no weight and "
            "changes in training: it cannot be evaluated by itself"
        )
    block.inputs = [v for v in block.inputs if v.name not in states]
    for v in [v for v in block.initializers.values() if v.name in states]:
        v.is_input = False  # the learning rate with its default
        block.remove_initializer(v)
    return load(to_proto(program))


def _clean(block: BindingBlock) -> None:
    """Without what nothing reads."""
    block.remove_unused()
    for v in list(block.initializers.values()):
        if not v.use_count and not v.is_input:
            block.remove_initializer(v)
