"""The driver of `edit`: binds inputs, replaces weights, renames, adds and removes outputs, with a
proof.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto
from onnx.helper import make_node

from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.ir import domains
from onnxgrad.ir.load import ModelLike, load_own, program_of
from onnxgrad.ir.model_kinds import settled
from onnxgrad.ir.program import Names, Program
from onnxgrad.ir.protobufs import copy_of, keep, tensor_of
from onnxgrad.ir.renaming import (
    node_names,
    rename_nodes,
    rename_symbols,
    rename_values,
    value_names,
)
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.storage.shared_weights import sharing
from onnxgrad.ir.types import Array, numpy_dtype
from onnxgrad.jobs.hooks import Hooks, Proved, write_if_proved
from onnxgrad.jobs.proving import proved, running
from onnxgrad.jobs.surgery.constant_values import Fill, values_of, weights_of
from onnxgrad.jobs.surgery.declarations import EditOptions
from onnxgrad.jobs.surgery.extract import computed, declare, remove_what_served
from onnxgrad.jobs.surgery.fixed_dims import fix, sizes_bound
from onnxgrad.jobs.surgery.lift import with_inputs
from onnxgrad.jobs.surgery.new_names import names_of_nodes, names_of_symbols, names_of_values
from onnxgrad.jobs.surgery.preprocess import with_steps
from onnxgrad.name_lists import matching, names_among
from onnxgrad.passes.convert_opset import hide_weight_inputs
from onnxgrad.wording import counted, first_of, option


@frozen(kw_only=True)
class Changes:
    """The changes of `edit`. All names are those before the change, but the new names in `values`,
    `nodes` and `symbols`.
    """

    bound: Mapping[str, Array | Fill] = field(default_factory=dict)
    weights: Mapping[str, Array] = field(default_factory=dict)
    freed: Sequence[str] = ()
    added: Sequence[str] = ()
    dropped: Sequence[str] = ()
    values: Mapping[str, str] = field(default_factory=dict)
    nodes: Mapping[str, str] = field(default_factory=dict)
    symbols: Mapping[str, str] = field(default_factory=dict)

    @property
    def arrays(self) -> dict[str, Array]:
        """The bound inputs whose values are known."""
        return {n: value for n, value in self.bound.items() if not isinstance(value, Fill)}

    @property
    def fills(self) -> dict[str, Fill]:
        """The bound inputs whose sizes are those of other inputs."""
        return {n: value for n, value in self.bound.items() if isinstance(value, Fill)}

    def outputs(self, program: Program) -> list[str]:
        """Returns the names of the outputs of a program after the changes."""
        kept = [v.name for v in program.main.outputs if v.name not in self.dropped]
        return [self.values.get(name, name) for name in (*kept, *self.added)]


_SHOWN = 8  # new outputs in a note
# options that request a change, as Python names them
_CHANGES = (
    "bind", "set", "free", "rename", "rename_node", "rename_dim", "add_output", "drop_output",
    "mode", "loss", "before", "config", "after",
)  # fmt: skip


def edit(model: ModelLike, options: EditOptions, hooks: Hooks) -> Proved:
    """Changes the interface of a model, proves the result against the original, and lets the hooks
    write it. Raises InputError for a name that does not exist or is taken, and for a value of
    another type or shape.
    """
    with hooks.limits(options.timeout, options.max_memory):
        program = load_own(settled(model))
        hooks.on_read(program)
        if not any(getattr(options, name) for name in _CHANGES):
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in _CHANGES)
            found = option(flags, ", ".join(_CHANGES))
            raise InputError(f"no change is requested: see {found}")
        reference, switched = program, list[str]()
        if options.mode is not None:
            program, reference, switched = _in_inference(program)
        changes, left = changes_of(program, options)
        made, notes = edited(program, changes)
        notes = [*switched, *left, *notes]
        report, ends, labels = None, [v.name for v in made.main.outputs], set[str]()
        if options.loss is not None:
            from onnxgrad.train.losses.adding import with_loss

            before = {v.name for v in made.main.inputs}
            added = with_loss(made, options.loss)
            made = added.program
            labels = {v.name for v in made.main.inputs} - before
            notes = [*notes, f"{added.loss} is new: the proof runs it, and compares the others"]
            options = options.having(allow_empty=(*options.allow_empty, added.loss))
        stepped = None
        if options.before or options.config or options.after:
            stepped = with_steps(made, options)
            made, notes = stepped.program, [*notes, *stepped.notes]
        if options.verify:
            back = {new: old for old, new in changes.values.items()}
            shown = [v for v in made.main.outputs if back.get(v.name, v.name) in changes.added]
            with sharing() as files:
                run = running(files.original(_reference(reference, changes)), options)

                def expected(feeds: Mapping[str, Any]) -> dict[str, Any]:
                    known = {back.get(n, n): v for n, v in feeds.items() if n not in labels}
                    known |= {**changes.arrays, **changes.weights}
                    known |= {n: f.at(known) for n, f in changes.fills.items()}
                    found = run(known)
                    for v in shown:
                        declare(v, found[back.get(v.name, v.name)])
                    return {name: found[back.get(name, name)] for name in ends}

                if stepped is None:
                    report = proved(made, expected, options, files)
                else:
                    report = stepped.proved(stepped.expected(expected), options, files)
        return write_if_proved(Proved(made, report, notes=notes), hooks)


def changes_of(program: Program, options: EditOptions) -> tuple[Changes, list[str]]:
    """Returns the changes of a program that options mean, and notes. Raises InputError for a name
    that does not exist or is taken, and for a value of another type or shape.
    """
    proto, block = to_proto(program), program.main
    added, notes = _added(program, options.add_output)
    outputs = [v.name for v in block.outputs]
    no_output, no_weight = "the model has no output", "the model has no initializer"
    inputs = {v.name for v in block.inputs}
    for name in names_among(options.free, [*inputs, *block.initializers], "free"):
        if name in inputs and name not in block.initializers:
            where = option(f"--free {name}", f"free={name!r}")
            raise InputError(f"{where}: it is an input already")
    changes = Changes(
        bound=values_of(proto, options.bind or {}),
        weights=weights_of(program, options.set or {}),
        freed=matching(block.initializers, options.free, "free", no_weight),
        added=added,
        dropped=matching(outputs, options.drop_output, "drop-output", no_output),
        values=names_of_values(proto, options.rename),
        nodes=names_of_nodes(proto.graph, options.rename_node),
        symbols=names_of_symbols(proto.graph, options.rename_dim),
    )
    for name in changes.freed:
        if name in changes.weights:
            both = option(f"--set {name} and --free {name}", f"set and free of {name!r}")
            raise InputError(f"{both}: one weight cannot both be constant and an input")
    return changes, notes


def _added(program: Program, given: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the values that become outputs, and notes. Raises InputError for a value that does
    not exist, is an output or is of unknown type.
    """
    values = {v.name: v for v in program.main.vars()}
    asked = names_among(given, values, "add_output")
    outputs = {v.name for v in program.main.outputs}
    hidden = [n for n in computed(program) if n not in outputs]
    globs = ["*" if name == "all" and name not in values else name for name in asked]
    missing = "the main graph has no value"
    found, notes = [], list[str]()
    for name in matching(values, globs, "add-output", missing, hidden):
        where = option(f"--add-output {name}", f"add_output={name!r}")
        if name in outputs:
            raise InputError(f"{where}: it is an output already")
        if values[name].type is not None:
            found.append(name)
        elif name in asked:
            raise InputError(f"{where}: its type is unknown, and an output must have one")
        else:
            notes.append(f"{name} is of unknown type, and is not made an output")
    return found, notes


def _reference(program: Program, changes: Changes) -> Program:
    """Returns the original whose caller gives the freed, replaced and bound weights values, also
    below IR 4, and sees the values that become outputs. Raises InputError if a value does not exist
    in it.
    """
    bound = [n for n in changes.bound if n in program.main.initializers]
    given = [*changes.freed, *changes.weights, *bound]
    made = with_inputs(program, given) if given else program
    if not changes.added:
        return made
    made = load_own(made)
    values = {v.name: v for v in made.main.vars()}
    for name in changes.added:
        if name not in values:
            where = option(f"--add-output {name}", f"add_output={name!r}")
            raise InputError(f"{where}: without training mode, nothing computes it")
        made.main.add_output(values[name])
    return load_own(made)


def _in_inference(program: Program) -> tuple[Program, Program, list[str]]:
    """Returns a model in inference mode, the reference of its proof, made by the rules with which
    training steps evaluate, and a note. Raises InputError if nothing is in training mode.
    """
    from onnxgrad.train.modes import Modes
    from onnxgrad.transform.inference_mode import described, in_training_mode, to_inference

    found = in_training_mode(to_proto(program))
    if not found:
        what = "mode: no BatchNormalization and no Dropout of the file is in training mode"
        raise InputError(what)
    made, gone = to_inference(program)
    reference = load_own(program)
    for v in [v for v in reference.main.outputs if v.name in gone]:
        reference.main.remove_output(v)
    note = f"{described(found)} switched to inference, by which the proof runs the original too"
    lost = [f"the output {name} was a running statistic and is gone" for name in gone]
    expected = to_proto(Modes().infer(reference))
    reference = program_of(expected, program.folder, digests=program.digests)
    return made, reference, [note, *lost]


def edited(program: Program, changes: Changes) -> tuple[Program, list[str]]:
    """Returns a changed Program, and notes on the consequences; `program` stays. Raises InputError
    if sizes of bound values differ, a weight may not change, and if no output would be left.
    """
    proto = copy_of(to_proto(program))
    sizes = sizes_bound(proto.graph, changes.arrays)
    if sizes:
        fix(proto, sizes)
    for name, value in changes.fills.items():
        _fill(proto, name, value)
    made = program_of(proto, program.folder, None, program.digests)
    for name, array in changes.arrays.items():
        _bind(made, name, array)
    _replace_weights(made, changes)
    notes = [f"{symbol} is {size} now, by the bound value" for symbol, size in sizes.items()]
    notes += [
        f"{name} is {fill.value} in the sizes of {', '.join({n for n, _ in fill.sources.values()})}"
        for name, fill in changes.fills.items()
    ]
    notes += _change_outputs(made, changes)
    made = _renamed(made, changes)
    unread = [v.name for v in made.main.inputs if not v.use_count and v.initializer is None]
    return made, [*notes, *(f"nothing reads the input {name} any more" for name in unread)]


def _renamed(program: Program, changes: Changes) -> Program:
    if not (changes.values or changes.nodes or changes.symbols):
        return program
    proto = to_proto(program)
    rename_values(proto.graph, changes.values)
    rename_nodes(proto.graph, changes.nodes)
    rename_symbols(proto.graph, changes.symbols)
    return program_of(proto, program.folder, None, program.digests)


# ---- changes ------------------------------------------------------------------------------------

_FIRST_FILL = 9  # the opset of ConstantOfShape


def _fill(proto: ModelProto, name: str, value: Fill) -> None:
    """Replaces an input by nodes that fill the sizes of other inputs with a value. Raises
    InputError below opset 9.
    """
    graph, opset = proto.graph, domains.versions(proto.opset_import).get("", 0)
    if opset < _FIRST_FILL:
        newer = option(f"convert-opset {_FIRST_FILL}", f"convert_opset(model, {_FIRST_FILL})")
        raise InputError(f"filling '{name}' needs opset {_FIRST_FILL}, not {opset}: first {newer}")
    names = Names()
    names.update(value_names(graph), node_names(graph))

    def node(op: str, *inputs: str, out: str = "", **attributes: Any) -> str:
        end = out or names.fresh(f"{name}_{op.lower()}")
        label = names.fresh(f"{name}_{op.lower()}")
        made.append(make_node(op, inputs, [end], label, **attributes))
        return end

    made = list[NodeProto]()
    if value.like is not None:
        shape = node("Shape", value.like)
    else:
        parts = []
        for d in value.shape:
            size = np.array([d if isinstance(d, int) else value.sources[d][1]], np.int64)
            place = node("Constant", value=tensor_of(size, ""))
            whole = None if isinstance(d, int) else node("Shape", value.sources[d][0])
            parts.append(place if whole is None else node("Gather", whole, place))
        shape = node("Concat", *parts, axis=0)
    element = np.array([value.value]).astype(numpy_dtype(value.dtype))
    node("ConstantOfShape", shape, out=name, value=tensor_of(element, ""))
    declared = next(v for v in graph.input if v.name == name)
    if all(v.name != name for v in graph.output):
        graph.value_info.add().CopyFrom(declared)
    keep(graph.input, lambda v: v.name != name)
    keep(graph.initializer, lambda t: t.name != name)
    made += graph.node
    del graph.node[:]
    graph.node.extend(made)


def _bind(program: Program, name: str, array: Array) -> None:
    block = program.main
    (v,) = [v for v in block.inputs if v.name == name]
    block.fix(v, tensor_of(np.ascontiguousarray(array).reshape(array.shape), name))


def _replace_weights(program: Program, changes: Changes) -> None:
    """Gives initializers other values, or makes them inputs. Raises InputError if the value of one
    decided the form of the file.
    """
    replaced = [*changes.weights, *changes.freed]
    if not replaced:
        return
    from onnxgrad.grad.weights.kept import check_replaceable

    check_replaceable(program, replaced, "a new value of")
    initializers = program.main.initializers
    for name, array in changes.weights.items():
        initializers[name].set_constant(tensor_of(np.ascontiguousarray(array), name))
    if changes.freed:
        hide_weight_inputs(program)
    for name in changes.freed:
        program.main.ask_for(initializers[name])


def _change_outputs(program: Program, changes: Changes) -> list[str]:
    """Adds outputs, and removes others with the nodes, weights and functions that only they need.
    Returns notes. Raises InputError if no output would be left.
    """
    block = program.main
    values = {v.name: v for v in block.vars()}
    added = [values[name] for name in changes.added]
    for v in added:
        block.add_output(v)
    dropped = [values[name] for name in changes.dropped]
    if dropped and len(dropped) == len(block.outputs):
        where = option("--drop-output", "drop_output")
        raise InputError(f"{where}: every output would be dropped, but a model needs an output")
    with remove_what_served(program, dropped):
        for v in dropped:
            block.remove_output(v)
    names = [changes.values.get(name, name) for name in changes.added]
    return [f"{counted(len(names), 'new output')}: {first_of(names, _SHOWN)}"] if names else []
