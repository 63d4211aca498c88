"""The driver of `edit`, which binds inputs, renames values and removes outputs with a proof, and
the changes of a model before and after the passes of `optimize`.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, TensorProto, ValueInfoProto

from onnxgrad.errors import InputError, OnnxgradError
from onnxgrad.ir.load import ModelLike, load_own, program_of
from onnxgrad.ir.model_kinds import settled
from onnxgrad.ir.program import Program
from onnxgrad.ir.protobufs import copy_of, every_node, stats_of, tensor_of
from onnxgrad.ir.renaming import rename_values, value_names
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.types import Array, dtype_name, numpy_dtype
from onnxgrad.jobs.declarations import EDIT, HALF, JOIN, OPEN, OptimizeOptions
from onnxgrad.jobs.extract import remove_what_served
from onnxgrad.jobs.fixed_dims import fix, sizes_bound
from onnxgrad.jobs.join import join
from onnxgrad.jobs.kinds import of_known
from onnxgrad.jobs.lift import lift, matching, named_inputs, with_inputs
from onnxgrad.jobs.metadata import change as set_metadata
from onnxgrad.jobs.outcome import Change, Hooks, Outcome
from onnxgrad.jobs.proving import Proved, original_of, proved, running, write_if_proved
from onnxgrad.jobs.row_declarations import OpenBatchOptions
from onnxgrad.jobs.surgery_declarations import EditOptions, LiftOptions
from onnxgrad.name_lists import names_among
from onnxgrad.passes.convert_opset import hide_weight_inputs
from onnxgrad.verify import load_inputs
from onnxgrad.verify.feeds.dims import roles, shape_of
from onnxgrad.verify.feeds.proof_cases import sets_of
from onnxgrad.wording import counted, in_a_recipe, option, perhaps

_FILES = (".npy", ".npz", ".pb")
_SHOWN = 80  # characters of a value in a message


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
            # the original whose caller may give the freed weights other values
            original = with_inputs(reference, freed) if freed else reference
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


# ---- values -------------------------------------------------------------------------------------


def values_of(model: ModelProto, given: Mapping[str, Any]) -> dict[str, Array]:
    """Returns the arrays for inputs of a model. Raises InputError for an input that does not exist
    or is not a tensor, and for a value of another type or shape.
    """
    inputs = {v.name: v for v in model.graph.input}
    found = {}
    for name, value in of_known(given, inputs).items():
        where = option(f"--bind {name}", f"bind={{{name!r}: ...}}")
        if name not in inputs:
            raise InputError(
                f"{where}: the model has no input of this name{perhaps(name, inputs, 3)}"
            )
        if not inputs[name].type.HasField("tensor_type"):
            raise InputError(f"{where}: it is not a tensor, and only tensors can be constant")
        found[name] = _array(where, inputs[name], value)
    return found


def _array(where: str, declared: ValueInfoProto, value: Any) -> Array:
    kind = declared.type.tensor_type
    dtype = numpy_dtype(kind.elem_type)
    if isinstance(value, (str, os.PathLike)):
        value = _read(where, declared, os.fspath(value))
    shape = shape_of(declared.name, kind)
    if not isinstance(value, (np.ndarray, np.generic)):
        value = _converted(where, value, kind.elem_type, dtype)
        if value.ndim == 0 and shape and all(isinstance(d, int) for d in shape):
            value = np.full(shape, value)  # a number fills a tensor of fixed shape
    array = np.asarray(value)
    texts = kind.elem_type == TensorProto.STRING and array.dtype.kind in "OUS"
    if array.dtype != dtype and not texts:
        wanted = dtype_name(kind.elem_type)
        raise InputError(
            f"{where}: the model requires {wanted}, but the value is {array.dtype.name}"
        )
    if shape is not None and (
        len(shape) != array.ndim
        or any(isinstance(d, int) and d != s for d, s in zip(shape, array.shape, strict=True))
    ):
        raise InputError(
            f"{where}: the model requires shape [{', '.join(map(str, shape))}], but the value has "
            f"{list(array.shape)}"
        )
    return array.astype(object) if texts else array


def is_file(value: Any) -> bool:
    """Whether the value of an input is the name of a file."""
    return isinstance(value, str) and Path(value).suffix in _FILES


def _read(where: str, declared: ValueInfoProto, text: str) -> Any:
    """Returns the value in a file, or the value of a JSON text; any other word is itself."""
    if is_file(text):
        found = load_inputs(text, ModelProto(graph=GraphProto(input=[declared])))
        if declared.name not in found and len(found) > 1:
            raise InputError(f"{where}: {text} has {', '.join(found)}, but not {declared.name}")
        return found.get(declared.name, next(iter(found.values())))
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        if declared.type.tensor_type.elem_type == TensorProto.STRING:
            return text
    raise InputError(
        f"{where}: {text[:_SHOWN]!r} is neither a number, a list such as [1,2], true or false, nor "
        "a file (.npy, .npz, .pb)"
    )


def _converted(where: str, value: Any, code: int, dtype: np.dtype[Any]) -> Array:
    """Returns Python numbers as an array with the input's type. Raises InputError if it cannot
    represent them.
    """
    try:
        plain = np.asarray(value)
    except ValueError as error:
        raise InputError(f"{where}: {str(value)[:_SHOWN]} is not an array: {error}") from None
    kinds = "US" if code == TensorProto.STRING else "b" if dtype == np.bool_ else "iuf"
    empty = plain.size == 0
    made: Array | None = None
    if empty or plain.dtype.kind in kinds:
        with np.errstate(all="ignore"):
            made = plain.astype(object if kinds == "US" else dtype)
        if kinds == "iuf" and not empty and not _holds(plain, made):
            made = None
    if made is None:
        raise InputError(
            f"{where}: {str(value)[:_SHOWN]} is not a value of {dtype_name(code)}, the input's type"
        )
    return made


def _holds(plain: Array, made: Array) -> bool:
    """Whether whole numbers are unchanged and floats finite."""
    if made.dtype.kind in "iu" or plain.dtype.kind in "iu":
        return all(
            a == b for a, b in zip(made.ravel().tolist(), plain.ravel().tolist(), strict=True)
        )
    finite = zip(plain.ravel().tolist(), made.astype(np.float64).ravel().tolist(), strict=True)
    return all(math.isfinite(a) == math.isfinite(b) for a, b in finite)


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


# ---- around the passes of `optimize` ------------------------------------------------------------

# options of a proof that also apply to changes of the interface, which are exact
_PROOF = frozenset({"provider", "threads", "seeds", "checks", "inputs", "dims", "allow_empty"})


def changed_before(model: Program, options: OptimizeOptions, outcome: Outcome) -> Program:
    """Returns the model for the passes: joined, edited, with open dimensions, and with the weights
    of `lift` as inputs. Raises InputError and NotProved.
    """
    proof = _proof_of(options)
    if options.join:
        other = options.join["model"]
        with _in_table("join"):
            joined = join(model, other, JOIN.options(options.join, **proof), Hooks())
        model = _recorded(outcome, f"joined with {other}", joined)
    if has_edits(options.before):
        with _in_table("before"):
            made = edit(model, EDIT.options(options.before or {}, **proof), Hooks())
        model = _recorded(outcome, "edited before the passes", made)
    model = _opened(model, options, options.before, "before", outcome)
    return model if isinstance(options.lift, bool) else with_inputs(model, options.lift)


def changed_after(options: OptimizeOptions, outcome: Outcome) -> None:
    """Converts, edits and splits the result of the passes. Raises InputError and NotProved."""
    if options.float16 is not False:
        _halve(options, outcome)
    proof, weights = _proof_of(options), named_inputs(outcome.program, options.lift)
    if options.after is not None and has_edits(options.after):
        after: EditOptions = EDIT.options(options.after)
        new, bound = after.rename or {}, after.bind or {}
        weights = [new.get(name, name) for name in weights if name not in bound]
        with _in_table("after"):
            proof = _for_edited(outcome.program, after, proof)
            made = edit(outcome.program, EDIT.options(options.after, **proof), Hooks())
        outcome.changed = _recorded(outcome, "edited after the passes", made)
    opened = _opened(outcome.program, options, options.after, "after", outcome)
    if opened is not outcome.program:
        outcome.changed = opened
    if options.metadata:
        set_metadata(outcome.program, options.metadata, (), {})
    if options.lift is not False:
        settings = LiftOptions.from_settings({**proof, "weights": weights})
        divided = lift(outcome.program, settings, Hooks(), paying=True)
        parts = (stats_of(to_proto(p)).nodes for p in (divided.prepare, divided.program))
        once, each = (counted(nodes, "node") for nodes in parts)
        outcome.prepare = divided.prepare
        outcome.changed = _recorded(outcome, f"{once} once at load, {each} in each run", divided)


def _halve(options: OptimizeOptions, outcome: Outcome) -> None:
    """Converts the result of the passes to float16 and proves that, within bounds of its own."""
    from onnxgrad.jobs.float16 import float16

    table = options.float16 if isinstance(options.float16, Mapping) else {}
    with _in_table("float16"):
        done = float16(outcome.program, HALF.options(table, **_proof_of(options)))
        if done.error is not None:
            raise done.error
    summary = "" if done.report is None else done.report.summary
    notes = tuple(done.trace.notes)
    outcome.changes.append(Change("converted to float16 after the passes", notes, summary))
    outcome.halved, outcome.changed = done, done.program


def has_edits(table: Mapping[str, Any] | None) -> bool:
    """Whether a table has options of `edit`, in addition to those of other jobs."""
    return bool(table) and not (table or {}).keys() <= EDIT.parts.keys()


def _opened(
    model: Program,
    options: OptimizeOptions,
    table: Mapping[str, Any] | None,
    when: str,
    outcome: Outcome,
) -> Program:
    """Returns the model with the dimensions of the table made dynamic, or the model itself."""
    if table is None or "open_batch" not in table:
        return model
    from onnxgrad.jobs.open_batch import open_batch, open_sizes

    known = roles(to_proto(model).graph)
    proof = {
        "provider": options.provider,
        "verify": options.proves,
        "seed": (options.seeds or (0,))[0],
        "dims": {name: size for name, size in (options.dims or {}).items() if name in known},
    }
    with _in_table(f"{when}: open_batch"):
        opening: OpenBatchOptions = OPEN.options(table["open_batch"], **proof)
        job = open_batch if opening.open is None else open_sizes
        found = job(model, opening, Hooks())
    what = "batch" if opening.open is None else ", ".join(opening.open)
    return _recorded(outcome, f"{what} opened {when} the passes", found)


def _recorded(outcome: Outcome, what: str, found: Proved) -> Program:
    """Returns the result of a change, which is added to the outcome. Raises NotProved."""
    summary = "" if found.report is None else found.report.summary
    outcome.changes.append(Change(what, tuple(found.notes), summary))
    return found.proved(what)


@contextlib.contextmanager
def _in_table(name: str) -> Iterator[None]:
    """Errors inside this context name the options in this table of a recipe."""
    try:
        with in_a_recipe():
            yield
    except OnnxgradError as error:
        error.args = (f"{name}: {error}", *error.args[1:])
        raise


def _proof_of(options: OptimizeOptions) -> dict[str, Any]:
    """Returns the options of the proof for edits: those of the passes, without bounds."""
    given = {k: v for k, v in options.proof().items() if k in _PROOF}
    return {**given, "verify": options.proves}


def _for_edited(program: Program, options: EditOptions, proof: Mapping[str, Any]) -> dict[str, Any]:
    """Returns options of a proof of a program in terms of the edited program."""
    graph, names = to_proto(program).graph, options.rename or {}
    bound = values_of(program.proto, options.bind or {})
    made = dict(proof)
    if "inputs" in made:
        made["inputs"] = [
            {names.get(n, n): v for n, v in each.items() if n not in bound}
            for each in sets_of(made["inputs"], program.proto)
        ]
    if "dims" in made:
        gone = sizes_bound(graph, bound)
        made["dims"] = {n: size for n, size in made["dims"].items() if n not in gone}
    if "allow_empty" in made:
        outputs = [v.name for v in program.main.outputs]
        allowed = names_among(made["allow_empty"], outputs, "allow_empty")
        made["allow_empty"] = [names.get(n, n) for n in allowed]
    return made
