"""The driver of `edit`, which binds inputs, renames values and removes outputs with a proof."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto

from onnxgrad.errors import InputError
from onnxgrad.ir.load import ModelLike, load_own, program_of
from onnxgrad.ir.model_kinds import settled
from onnxgrad.ir.program import Program
from onnxgrad.ir.protobufs import copy_of, every_node, tensor_of
from onnxgrad.ir.renaming import rename_values, value_names
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.types import Array
from onnxgrad.jobs.constant_values import values_of
from onnxgrad.jobs.extract import remove_what_served
from onnxgrad.jobs.fixed_dims import fix, sizes_bound
from onnxgrad.jobs.kinds import of_known
from onnxgrad.jobs.lift import matching, with_inputs
from onnxgrad.jobs.outcome import Hooks
from onnxgrad.jobs.proving import Proved, original_of, proved, running, write_if_proved
from onnxgrad.jobs.surgery_declarations import EditOptions
from onnxgrad.name_lists import names_among
from onnxgrad.passes.convert_opset import hide_weight_inputs
from onnxgrad.wording import option, perhaps


def edit(model: ModelLike, options: EditOptions, hooks: Hooks) -> Proved:
    """Changes the interface of a model, proves the result against the original, and lets the hooks
    write it. Raises InputError for a name that does not exist or is taken, and for a value of
    another type or shape.
    """
    with hooks.limits(options.timeout, options.max_memory):
        program = load_own(settled(model))
        hooks.on_read(program)
        asked = options.bind, options.free, options.rename, options.drop_output, options.mode
        if not any(asked) and options.loss is None:
            flags = "--bind, --free, --rename, --drop-output, --mode and --loss"
            words = "bind, free, rename, drop_output, mode and loss"
            raise InputError(f"no change is requested: see {option(flags, words)}")
        reference, switched = program, list[str]()
        if options.mode is not None:
            program, reference, switched = _in_inference(program)
        bound = values_of(program.proto, options.bind or {})
        names = of_known(options.rename, [v.name for v in program.main.vars()])
        freed = matching(program.main.initializers, options.free, "free", "initializer")
        made, notes = edited(program, bound, names, options.drop_output, freed)
        report, ends, labels = None, [v.name for v in made.main.outputs], set[str]()
        if options.loss is not None:
            from onnxgrad.train.losses.adding import with_loss

            before = {v.name for v in made.main.inputs}
            added = with_loss(made, options.loss)
            made = added.program
            labels = {v.name for v in made.main.inputs} - before
            notes = [*notes, f"{added.loss} is new: the proof runs it, and compares the others"]
            options = options.having(allow_empty=(*options.allow_empty, added.loss))
        if options.verify:
            back = {new: old for old, new in names.items()}
            # the original whose caller may give these weights other values, also below IR 4
            weights = [*freed, *(n for n in bound if n in reference.main.initializers)]
            original = with_inputs(reference, weights) if weights else reference
            with running(original_of(original), options) as run:

                def expected(feeds: Mapping[str, Any]) -> dict[str, Any]:
                    known = {back.get(n, n): v for n, v in feeds.items() if n not in labels}
                    found = run({**bound, **known})
                    return {name: found[back.get(name, name)] for name in ends}

                report = proved(made, expected, options)
        return write_if_proved(Proved(made, report, notes=[*switched, *notes]), hooks)


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


def edited(
    program: Program,
    bound: Mapping[str, Array],
    names: Mapping[str, str],
    dropped: Sequence[str],
    freed: Sequence[str] = (),
) -> tuple[Program, list[str]]:
    """Returns a Program with these inputs constant, these values renamed, without these outputs and
    with these initializers as inputs, and notes on the consequences. Names are those of `program`,
    which does not change. Raises InputError.
    """
    proto = copy_of(to_proto(program))
    _check_names(proto, names)
    sizes = sizes_bound(proto.graph, bound)
    if sizes:
        fix(proto, sizes)
    made = program_of(proto, program.folder, None, program.digests)
    for name, array in bound.items():
        _bind(made, name, array)
    if freed:
        from onnxgrad.grad.weights.kept import check_replaceable

        check_replaceable(made, freed, "a new value of")
        hide_weight_inputs(made)
    for name in freed:
        made.main.ask_for(made.main.initializers[name])
    if dropped:
        _drop(made, dropped)
    if names:
        proto = to_proto(made)
        rename_values(proto.graph, names)
        made = program_of(proto, program.folder, None, made.digests)
    unread = [v.name for v in made.main.inputs if not v.use_count and v.initializer is None]
    notes = [f"{symbol} is {size} now, by the bound value" for symbol, size in sizes.items()]
    return made, [*notes, *(f"nothing reads the input {name} any more" for name in unread)]


# ---- changes ------------------------------------------------------------------------------------


def _bind(program: Program, name: str, array: Array) -> None:
    block = program.main
    (v,) = [v for v in block.inputs if v.name == name]
    tensor = tensor_of(np.ascontiguousarray(array).reshape(array.shape), name)
    if v.initializer is None:
        v.initializer = tensor
        block.initializers[name] = v
    v.set_constant(tensor)
    if program.ir_version >= 4:  # before IR version 4, initializers are also inputs
        block.inputs = [other for other in block.inputs if other is not v]
        v.is_input = False
    block.touch()


def _drop(program: Program, names: str | Sequence[str]) -> None:
    """Removes outputs, and the nodes, weights and functions that only they need."""
    block = program.main
    outputs = {v.name: v for v in block.outputs}
    names = names_among(names, outputs, "drop_output")
    for name in dict.fromkeys(names):
        if name not in outputs:
            where = option(f"--drop-output {name}", f"drop_output={name!r}")
            raise InputError(
                f"{where}: the model has no output of this name{perhaps(name, outputs, 3)}"
            )
    dropped = [outputs[name] for name in dict.fromkeys(names)]
    if len(dropped) == len(outputs):
        raise InputError("every output would be dropped, but a model needs an output")
    with remove_what_served(program, dropped):
        for v in dropped:
            block.remove_output(v)


def _check_names(model: ModelProto, names: Mapping[str, str]) -> None:
    """Raises InputError unless every value can have its new name."""
    graph, every = model.graph, value_names(model.graph)
    mine = {v.name for v in graph.input} | {t.name for t in graph.initializer}
    mine |= {name for node in graph.node for name in node.output}
    trained = {
        name
        for info in model.training_info
        for part in (info.initialization, info.algorithm)
        for node in every_node(part.node)
        for name in (*node.input, *node.output)
    } | {e for i in model.training_info for b in i.update_binding for e in (b.key, b.value)}
    made = set[str]()
    for old, new in names.items():
        where = option(f"--rename {old}={new}", f"rename={{{old!r}: {new!r}}}")
        if old not in mine:
            hint = perhaps(old, mine, 3)
            raise InputError(f"{where}: the main graph has no value '{old}'{hint}")
        if not new:
            raise InputError(f"{where}: the new name is empty")
        if new in made or (new in every and new not in names):
            raise InputError(f"{where}: the name '{new}' is taken: rename that value as well")
        if old in trained:
            raise InputError(f"{where}: the model's training_info reads '{old}'")
        made.add(new)
