"""Writes a training step as TrainingInfoProto, inside of the model that it trains.

The model computes the same as before. Its training graph is the inference graph together with
`algorithm`, as the comments of TrainingInfoProto in onnx.proto define: `algorithm` reads values of
the inference graph and adds loss, gradient and update; states are initializers of `algorithm`, and
`update_binding` names the next values of states and weights. The forward part is therefore stored
once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any

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
from onnxgrad.grad.opset.raising import raise_opset
from onnxgrad.grad.weights.repairs import apply_tied, apply_untied
from onnxgrad.grad.wrt import hoist_requested
from onnxgrad.ir import domains
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.domains import RANDOM
from onnxgrad.ir.load import ModelLike, load, load_own, program_of, to_kind_of
from onnxgrad.ir.program import Names, Program
from onnxgrad.ir.protobufs import every_graph, graphs_of, keep
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.types import Array
from onnxgrad.options import known_keywords
from onnxgrad.train.export import digest
from onnxgrad.train.losses.sums import summed
from onnxgrad.train.manifest import Fed, Manifest
from onnxgrad.train.step import TrainingStep
from onnxgrad.train.step_folder import drop_notes

# the metadata key of the step's manifest, which records more than the standard defines
KEY = "onnxgrad.training_step"
# the first that has training_info
_IR_VERSION = 7
# dtypes of ConstantOfShape in every opset from 9 on
_FILLED = frozenset({"float16", "float32", "float64", "int32", "int64", "uint8", "bool"})


@known_keywords
def with_training_info(original: ModelLike, step: TrainingStep) -> Any:
    """Returns `original`, from which the step was made, with the step as its training_info, in the
    type you passed in. Paths, bytes and streams return a ModelProto, and so do graphs of
    onnx_graphsurgeon and onnx_ir, which cannot hold training_info.

    Inputs of the training graph are the model's inputs, the labels of the loss, and the learning
    rate, which defaults to the optimiser's. Weights, states and the step's number are initializers
    that update_binding names. `initialization` resets the number, and each state whose elements all
    begin as one number; other states and the weights begin with their initializers. The graph is
    repaired as the step's is (`manifest.repairs`): a tied weight is one initializer. Existing
    training_info is replaced, and an opset that is too old for the gradient is raised. Raises
    InputError for a different model, for a step in micro-batches or with BatchNormalization or
    Dropout in training, and for a weight that cannot be an initializer of the main graph.
    """
    holds = isinstance(original, (Program, BindingBlock, ModelProto))
    return to_kind_of(program_with_training_info(original, step), original if holds else b"")


def program_with_training_info(original: ModelLike, step: TrainingStep) -> Program:
    """Returns the result of `with_training_info` as a Program. Raises the same errors."""
    if step.update is not None:
        raise InputError(
            "TrainingInfoProto has one graph for a step, but this one accumulates micro-batches "
            "in another: build it with accumulate=1"
        )
    if step.manifest.running() or step.manifest.of_role("seed"):
        raise InputError(
            "TrainingInfoProto cannot express a loss that differs in training and evaluation: make "
            'the step with batch_norm="frozen" and dropout="off"'
        )
    _refuse_cut(step, original)
    weights = [fed.name for fed in step.manifest.of_role("parameter")]
    program = _inference(step, original, weights)
    main, train = to_proto(program), to_proto(step.train, weights=True)
    _carry_header(train, main)
    _add_sums(train.graph, step)
    shared = _shared(train.graph, main.graph, program, set(weights))
    taken, own = names_of(main.graph), names_of(train.graph)
    names = Names()
    names.update(taken | own | node_names(main.graph) | node_names(train.graph))
    new = {name: names.fresh(name) for name in sorted((own - shared) & taken)}
    manifest = renamed_manifest(step.manifest, new)
    for name in weights:
        _set(program, main.graph, name, step.initial[name])
    info = main.training_info.add()
    info.algorithm.CopyFrom(
        _algorithm(renamed(train.graph, new), main.graph, shared - new.keys(), manifest, names)
    )
    initial = {new.get(name, name): array for name, array in step.initial.items()}
    _add_variables(info, manifest, initial, names)
    drop_notes(info.algorithm)
    main.metadata_props.add(key=KEY, value=manifest.to_json())
    return program_of(main, program.folder, digests=program.digests)


def _refuse_cut(step: TrainingStep, original: ModelLike) -> None:
    batch = {fed.name for fed in step.manifest.of_role("batch")}
    for v in load(original).main.vars():
        if v.name in batch and v.definition is not None:
            raise InputError(
                f"the step's input '{v.name}' is computed by the model, and the nodes before it "
                "are not part of the step: make the step without inputs_at"
            )


def _inference(step: TrainingStep, original: ModelLike, weights: list[str]) -> Program:
    """Returns the original model with the weights as initializers of its main graph, and repaired:
    its graph reads a tied weight in the place of a copy, which no step would update.
    """
    program = load_own(original)
    if digest(program) != step.manifest.model:
        raise InputError("the training step was made from another model than this one")
    apply_untied(program, step.manifest.repairs.untied)
    apply_tied(program, step.manifest.repairs.tied)
    if program.opset < step.train.opset:
        program, _ = raise_opset(program)
    proto = to_proto(program)
    del proto.training_info[:]
    keep(proto.metadata_props, lambda entry: entry.key != KEY)
    program = program_of(proto, program.folder, digests=program.digests)
    missing = [name for name in weights if name not in program.main.initializers]
    hoist_requested(program, missing)
    for name in missing:
        if name not in program.main.initializers:
            raise InputError(
                f"'{name}' cannot be an initializer of the main graph, as the weights of "
                "training_info are: leave it out of wrt"
            )
    return program


def _carry_header(train: ModelProto, main: ModelProto) -> None:
    """Adds opset imports and functions of the training graph that the model lacks. Raises
    InputError if both define one differently.
    """
    main.ir_version = max(main.ir_version, train.ir_version, _IR_VERSION)
    here = domains.versions(main.opset_import)
    for domain, version in domains.versions(train.opset_import).items():
        if here.setdefault(domain, version) != version:
            raise InputError(
                f"the training step is of opset {version} of '{domain or 'ai.onnx'}', the model of "
                f"{here[domain]}, and one file has one: raise the model's opset and make the step "
                "anew"
            )
    known = domains.versions(main.opset_import)
    main.opset_import.extend(helper.make_opsetid(d, v) for d, v in here.items() if d not in known)
    own = {(f.domain, f.name, f.overload): f for f in main.functions}
    for f in train.functions:
        found = own.get((f.domain, f.name, f.overload))
        if found is None:
            main.functions.add().CopyFrom(f)
        elif found != f:
            raise InputError(
                f"the function '{f.name}' is another one in the training step than in the model, "
                "and one file has one: inline it in the model and make the step anew"
            )


def _add_sums(train: GraphProto, step: TrainingStep) -> None:
    """Adds the sums of the loss, by which an evaluation adds up batches, from the evaluation: a
    value has one name in both graphs. Raises InputError for graphs of two opsets.
    """
    wanted, evaluation = set(summed(step.manifest.sums)), to_proto(step.evaluation, weights=True)
    if wanted and step.evaluation.opset != step.train.opset:
        raise InputError(
            f"the training step is of opset {step.train.opset}, its evaluation of "
            f"{step.evaluation.opset}: raise the model's opset and make the step anew"
        )
    graph = evaluation.graph
    here, returned = names_of(train), {v.name for v in train.output}
    train.output.extend(v for v in graph.output if v.name in wanted - returned)
    found, needed = [], wanted - here
    for node in reversed(graph.node):
        if not needed.isdisjoint(node.output) and here.isdisjoint(node.output):
            found.append(node)
            needed.update(name for name in reads(node) if name not in here)
    train.node.extend(reversed(found))
    train.initializer.extend(t for t in graph.initializer if t.name in needed)


def _shared(train: GraphProto, main: GraphProto, program: Program, weights: set[str]) -> set[str]:
    """Returns the names that mean the same value in both graphs: inputs, weights, equal constants,
    and results of equal nodes over such values.
    """
    inputs = {v.name for v in main.input}
    shared = {v.name for v in train.input if v.name in inputs} | weights
    held = {t.name: t for t in main.initializer}
    for tensor in train.initializer:
        if tensor.name in held and _equal(program, tensor, held[tensor.name]):
            shared.add(tensor.name)
    sparse = {s.values.name: s for s in main.sparse_initializer}
    shared |= {s.values.name for s in train.sparse_initializer if sparse.get(s.values.name) == s}
    made = {node.output[0]: node for node in main.node if node.output}
    for node in train.node:
        same = made.get(node.output[0]) if node.output else None
        if same is not None and _says_more(node, same) and shared.issuperset(reads(node)):
            shared |= set(same.output) - {""}
    return shared


def _says_more(node: NodeProto, same: NodeProto) -> bool:
    """Whether a node equals another, or differs only in more optional results."""
    if _bare(node) == _bare(same):
        return True
    pairs = list(zip(same.output, node.output))
    return (
        _bare(node, "output") == _bare(same, "output")
        and len(pairs) == len(same.output)
        and all(a in ("", b) for a, b in pairs)
        and not _draws(node)
    )


def _draws(node: NodeProto) -> bool:
    """Whether a second node like this one may compute something else."""
    dropout = node.op_type == "Dropout" and len(node.input) > 2
    return bool(node.domain) or dropout or node.op_type in RANDOM or bool(graphs_of(node))


def _equal(program: Program, a: TensorProto, b: TensorProto) -> bool:
    alike = a.data_type == b.data_type and a.dims == b.dims
    return alike and program.array(a).tobytes() == program.array(b).tobytes()


def _bare(node: NodeProto, *more: str) -> NodeProto:
    """Returns the node without fields that do not affect its result, and without the
    fields `more`.
    """
    bare = deepcopy(node)
    for field in ("name", "doc_string", "metadata_props", *more):
        bare.ClearField(field)
    return bare


def _set(program: Program, graph: GraphProto, name: str, value: Array) -> None:
    """Sets a weight to its value at the beginning of training; an equal one stays where it is
    stored.
    """
    tensor = next(t for t in graph.initializer if t.name == name)
    if program.array(tensor).tobytes() != value.tobytes():
        tensor.CopyFrom(_tensor(value, name))


def _algorithm(
    train: GraphProto, main: GraphProto, shared: set[str], manifest: Manifest, names: Names
) -> GraphProto:
    """Returns the part of the training graph that the inference graph lacks; states are not its
    inputs.
    """
    graph = GraphProto(name="training_step")
    variables = {fed.name for fed in manifest.inputs if fed.next is not None or fed.role == "step"}
    taken = node_names(main)
    graph.input.extend(v for v in train.input if v.name not in shared | variables)
    returned = {v.name for v in main.output}
    graph.output.extend(v for v in train.output if v.name not in returned)
    graph.initializer.extend(t for t in train.initializer if t.name not in shared)
    graph.sparse_initializer.extend(
        s for s in train.sparse_initializer if s.values.name not in shared
    )
    graph.value_info.extend(v for v in train.value_info if v.name not in shared)
    for node in train.node:
        if shared.issuperset(filter(None, node.output)):
            continue
        graph.node.add().CopyFrom(node)
        # a node of the inference graph is copied if training needs one more of its results
        graph.node[-1].output[:] = [
            names.fresh(name) if name in shared else name for name in node.output
        ]
        if node.name in taken:
            graph.node[-1].name = names.fresh(node.name)
    return graph


def _add_variables(
    info: TrainingInfoProto, manifest: Manifest, initial: dict[str, Array], names: Names
) -> None:
    """Adds states and the step's number as initializers, with the next values of everything that
    training changes, and the first values.
    """
    graph = info.algorithm
    for fed in manifest.inputs:
        if fed.next is not None:
            info.update_binding.add(key=fed.name, value=fed.next)
        if fed.next is not None and fed.role != "parameter":
            graph.initializer.append(_tensor(initial[fed.name], fed.name))
            _add_reset(info, fed.name, initial[fed.name], names)
        if fed.role == "learning_rate":
            rate = np.array(manifest.optimizer.get("lr", 1e-3), fed.dtype)
            graph.initializer.append(_tensor(rate, fed.name))
        if fed.role == "step":
            _add_counter(info, fed, names)


def _add_counter(info: TrainingInfoProto, fed: Fed, names: Names) -> None:
    """Adds step' = step + 1."""
    graph, one, new = info.algorithm, names.fresh("one"), names.fresh(f"{fed.name}.new")
    first = np.ones((), fed.dtype)
    graph.initializer.extend([_tensor(first, fed.name), _tensor(first, one)])
    graph.node.append(helper.make_node("Add", [fed.name, one], [new], names.fresh("count")))
    kind = helper.np_dtype_to_tensor_dtype(first.dtype)
    graph.output.append(helper.make_tensor_value_info(new, kind, ()))
    info.update_binding.add(key=fed.name, value=new)
    _add_reset(info, fed.name, first, names)


def _add_reset(info: TrainingInfoProto, name: str, value: Array, names: Names) -> None:
    """Adds the initialization of a variable whose elements are all equal."""
    first = value.reshape(-1)[:1]
    if (
        value.dtype.name not in _FILLED
        or not value.size
        or value.tobytes() != (first.tobytes() * value.size)
    ):
        return
    graph, output = info.initialization, names.fresh(f"{name}.initial")
    graph.name = "initial_states"
    make: Callable[..., NodeProto] = helper.make_node
    shape = names.fresh(f"{name}.shape")
    sizes = np.asarray(value.shape, np.int64)
    graph.initializer.append(_tensor(sizes, shape))
    graph.node.append(
        make("ConstantOfShape", [shape], [output], output, value=_tensor(first, "value"))
    )
    kind = helper.np_dtype_to_tensor_dtype(value.dtype)
    graph.output.append(helper.make_tensor_value_info(output, kind, value.shape))
    info.initialization_binding.add(key=name, value=output)


def _tensor(value: Array, name: str) -> TensorProto:
    return numpy_helper.from_array(np.require(value, requirements="C"), name)


def names_of(graph: GraphProto) -> set[str]:
    """Returns the names of all values of a graph, nested graphs included."""
    found: set[str] = set()
    for g in every_graph(graph):
        found |= own_names(g)
    return found - {""}


def own_names(graph: GraphProto) -> set[str]:
    """Returns the names of the values that a graph itself defines."""
    return {
        *(v.name for v in graph.input),
        *(t.name for t in graph.initializer),
        *(s.values.name for s in graph.sparse_initializer),
        *(name for node in graph.node for name in node.output),
    }


def node_names(graph: GraphProto) -> set[str]:
    """Returns the names of all nodes of a graph, nested graphs included."""
    return {node.name for g in every_graph(graph) for node in g.node}


def reads(node: NodeProto) -> Iterator[str]:
    """Yields the names of the values that a node reads from outside, nested graphs included."""
    yield from (name for name in node.input if name)
    for graph in graphs_of(node):
        inside = own_names(graph)
        used = (name for n in graph.node for name in reads(n))
        yield from (name for name in used if name not in inside)
        yield from (v.name for v in graph.output if v.name not in inside)


def renamed(graph: GraphProto, new: Mapping[str, str]) -> GraphProto:
    """Returns a copy in which values have their new names, also in nested graphs."""
    copy = deepcopy(graph)
    for g in every_graph(copy):
        for named in (*g.input, *g.output, *g.value_info, *g.initializer):
            named.name = new.get(named.name, named.name)
        for sparse in g.sparse_initializer:
            sparse.values.name = new.get(sparse.values.name, sparse.values.name)
        for node in g.node:
            for names in (node.input, node.output):
                names[:] = [new.get(name, name) for name in names]
    return copy


def renamed_manifest(manifest: Manifest, new: Mapping[str, str]) -> Manifest:
    """Returns the manifest with its values under new names."""

    def other(name: str | None) -> str | None:
        return None if name is None else new.get(name, name)

    return replace(
        manifest,
        inputs=tuple(
            replace(
                fed,
                name=new.get(fed.name, fed.name),
                next=other(fed.next),
                of=other(fed.of),
                gradient=other(fed.gradient),
                adjoint=other(fed.adjoint),
            )
            for fed in manifest.inputs
        ),
        loss=new.get(manifest.loss, manifest.loss),
        metrics=tuple(new.get(name, name) for name in manifest.metrics),
        gradient_norm=other(manifest.gradient_norm),
        divisor=other(manifest.divisor),
        sums=tuple(
            replace(
                s, numerator=new.get(s.numerator, s.numerator), denominator=other(s.denominator)
            )
            for s in manifest.sums
        ),
    )
