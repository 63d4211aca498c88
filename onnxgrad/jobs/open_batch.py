"""The driver of `open_batch`: makes a fixed batch, or another fixed dimension, dynamic."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from onnx import ModelProto

from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.ir.load import ModelLike, load_own, read
from onnxgrad.ir.model_kinds import settled
from onnxgrad.ir.program import Program
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.storage.shared_weights import Files, sharing
from onnxgrad.jobs.declared import DIGITS
from onnxgrad.jobs.hooks import Hooks, Proved, write_if_proved
from onnxgrad.jobs.kinds import Sizes
from onnxgrad.jobs.row_declarations import OpenBatchOptions, RowsProof, VmapOptions
from onnxgrad.name_lists import names_among
from onnxgrad.options import providers_of, several
from onnxgrad.transform.open_batch import Opened, open_rows
from onnxgrad.transform.open_sizes import OpenedSizes, open_dimensions, other_sizes
from onnxgrad.transform.vmap import as_inputs, map_inputs
from onnxgrad.verify import Report, verify
from onnxgrad.verify.feeds.dims import shape_of
from onnxgrad.verify.feeds.proof_cases import Inputs
from onnxgrad.verify.proof_model import Model, proof_model
from onnxgrad.verify.rows.other_sizes import at_other_sizes
from onnxgrad.verify.rows.proof import RowProof
from onnxgrad.wording import option, what_there_is


@frozen
class OpenedModel(Proved):
    """An opened model, the report of its proof, and the changes."""

    opened: Opened


@frozen
class SizedModel(Proved):
    """A model with other open dimensions, the report of its proof, and the changes; `rows` if its
    batch was opened too.
    """

    opened: OpenedSizes
    rows: Opened | None = None


def open_batch(model: ModelLike, options: OpenBatchOptions, hooks: Hooks) -> OpenedModel:
    """Opens the batch, proves every row, and lets the hooks write the result. Raises InputError
    that names the node if rows depend on each other or no rule applies.
    """
    for name in ("follow", "extend", "reference"):
        if getattr(options, name):
            flag = option(f"--{name}", name)
            raise InputError(f"{flag} is for {option('--open', 'open')}, which is missing")
    with hooks.limits(options.timeout, options.max_memory):
        program = load_own(settled(model))
        hooks.on_read(program)
        names = _names(program, options.inputs)
        opened = open_rows(
            program, names, batch=options.batch, symbol=options.symbol, along=options.along
        )
        return _proved_rows(program, opened, options, hooks)


def vmap(model: ModelLike, options: VmapOptions, hooks: Hooks) -> OpenedModel:
    """Maps the model over a new axis of inputs, proves every row, and lets the hooks write the
    result. Raises InputError that names the node if no rule applies.
    """
    with hooks.limits(options.timeout, options.max_memory):
        program = load_own(settled(model))
        hooks.on_read(program)
        chosen = _axes(program, options.inputs)
        if as_inputs(program, chosen):  # compare with weights as inputs
            program = load_own(program)
        mapped = map_inputs(program, chosen, axis=options.axis, symbol=options.symbol)
        return _proved_rows(program, mapped, options, hooks)


def _names(program: Program, given: Sequence[str] | str | None) -> list[str] | None:
    """Returns the names in a text or list: a value's own name, or several separated by commas."""
    if given is None:
        return None
    return [*names_among(given, {v.name for v in program.main.vars()}, "inputs")]


@frozen
class _Placed:
    """The texts NAME and NAME=AXIS of known names."""

    known: Container[str]

    def __contains__(self, text: object) -> bool:
        return isinstance(text, str) and self.of(text)[0] in self.known

    def of(self, text: str) -> tuple[str, int | None]:
        """Returns the name and the axis in a text."""
        name, _, number = text.rpartition("=")
        placed = bool(name) and number.isdecimal() and len(number) < DIGITS
        return (name, int(number)) if placed and text not in self.known else (text, None)


def _axes(
    program: Program, given: str | Sequence[str] | Mapping[str, int | None] | None
) -> Mapping[str, int | None] | None:
    """Returns the axes by name of a text or list of NAME and NAME=AXIS. Raises InputError."""
    if given is None or isinstance(given, Mapping):
        return given
    placed, axes = _Placed({v.name for v in program.main.vars()}), dict[str, int | None]()
    for name, axis in map(placed.of, names_among(given, placed, "inputs")):
        if name in axes:
            raise InputError(f"{option('--map', 'inputs')} names '{name}' twice")
        axes[name] = axis
    return axes


def _proved_rows(program: Program, opened: Opened, options: RowsProof, hooks: Hooks) -> OpenedModel:
    """Proves `opened`, which came of `program`, and lets the hooks write it."""
    report = None
    if options.verify:
        hooks.on_stage("prove")
        with sharing() as files:
            original, made = files.original(program), files.of(opened.program)
            report = _row_proof(original, made, opened, options, options.dims, options.feeds)
    remarks = (*opened.warnings, *opened.notes)
    found = OpenedModel(opened.program, report, opened, notes=remarks)
    return write_if_proved(found, hooks)


def _row_proof(
    original: Model,
    made: Model,
    opened: Opened,
    options: RowsProof,
    dims: Sizes | None,
    feeds: Inputs | None,
) -> Report:
    outputs = [v.name for v in opened.program.main.outputs]
    same = names_among(options.allow_same, outputs, "allow_same")
    strange = [name for name in same if name not in outputs]
    if strange:
        flag = option("--allow-same", "allow_same:")
        raise InputError(f"{flag} '{strange[0]}' is not an output{what_there_is(outputs)}")
    return RowProof(
        original,
        made,
        opened.rows,
        providers_of(options.provider),
        dims,
        options.seed,
        feeds,
        (*same, *opened.repeated),
    ).report()


def open_sizes(model: ModelLike, options: OpenBatchOptions, hooks: Hooks) -> SizedModel:
    """Opens sizes other than the batch (with `inputs` or `batch` the batch too), proves the result
    at the sizes of the file and of references, runs it at others, and lets the hooks write it.
    Raises InputError that names the node at which a size cannot be followed with certainty.
    """
    with hooks.limits(options.timeout, options.max_memory):
        program = load_own(settled(model))
        hooks.on_read(program)
        axes = {f"{v.name}.{axis}" for v in program.main.inputs for axis in range(v.rank or 0)}
        wanted = {
            name: [*names_among(places, axes, "open")]
            for name, places in (options.open or {}).items()
        }
        references = [read(m) for m in several(options.reference, "")]
        others = [reference.proto for reference in references]
        compared = _compared(program.proto, others, wanted) if options.verify else {}
        extend = options.extend if isinstance(options.extend, Mapping) else {}
        opened = open_dimensions(program, wanted, options.follow, compared, extend)
        rows = None
        if options.inputs is not None or options.batch is not None:
            names = _names(program, options.inputs)
            rows = open_rows(
                load_own(opened.program),
                names,
                batch=options.batch,
                symbol=options.symbol,
                along=options.along,
            )
        report = None
        if options.verify:
            hooks.on_stage("prove")
            with sharing() as files:
                report = _at_sizes(files, [program, *references], opened, rows, options)
        notes = opened.notes if references else (*opened.notes, _unknown(opened))
        if rows is not None:
            notes = (*notes, *rows.warnings, *rows.notes)
        made = opened.program if rows is None else rows.program
        return write_if_proved(SizedModel(made, report, opened, rows, notes=notes), hooks)


def _compared(
    model: ModelProto, references: Sequence[ModelProto], wanted: Mapping[str, Sequence[str]]
) -> dict[str, int]:
    """Returns the new sizes for which a reference has another number than the file, used for no
    other size, and the largest such number.
    """
    places = {v.name: i for i, v in enumerate(model.graph.input)}
    axes = {
        name: (places.get(place, 0), int(axis[:4]) if axis.isdecimal() else 0)
        for name, texts in wanted.items()
        for place, _, axis in (texts[0].rpartition("."),)
    }
    file, *others = [{n: _size(m, *at) for n, at in axes.items()} for m in (model, *references)]
    found = dict[str, int]()
    for name in axes:
        for s in others:
            size = s[name]
            if isinstance(size, int) and size != file[name] and [*s.values()].count(size) == 1:
                found[name] = max(size, found.get(name, 0))
    return found


def _size(model: ModelProto, place: int, axis: int) -> object:
    inputs = model.graph.input[place : place + 1]
    shapes = [shape_of(v.name, v.type.tensor_type) or () for v in inputs]
    return next((s[axis] for s in shapes if axis < len(s)), None)


def _unknown(opened: OpenedSizes) -> str:
    sizes = ", ".join(f"{name}={size}" for name, size in opened.sizes.items())
    return (
        f"proved at {sizes}; at other sizes it runs and its shapes are right, but its numbers "
        f"are not compared: {option('--reference FILE', 'reference=')} compares them with another "
        "export"
    )


def _at_sizes(
    files: Files,
    programs: Sequence[Program],
    opened: OpenedSizes,
    rows: Opened | None,
    options: OpenBatchOptions,
) -> Report:
    """Proves the model at the sizes of the file and of each reference, runs it at other sizes, and
    proves its rows.
    """
    originals = [proof_model(files.original(program)) for program in programs]
    made, ours = files.of(opened.program), to_proto(opened.program)
    reports = [
        verify(
            original.source, made, provider=options.provider, seeds=(options.seed,),
            dims=options.dims, inputs=None if i or rows else options.feeds,
            map=_by_place(original.proto, ours),
        )
        for i, original in enumerate(originals)
    ]  # fmt: skip
    at = [_sizes_of(original.proto, ours, opened) for original in originals]
    report = Report.merge(reports, at, "at")
    others = list(other_sizes(opened))
    report = at_other_sizes(
        report, made, others, dims=options.dims, seed=options.seed,
        provider=providers_of(options.provider)[0],
    )  # fmt: skip
    if rows is None or not report.ok:
        return report
    by_rows = files.of(rows.program)
    found = [
        _row_proof(original, by_rows, rows, options, dims, feeds)
        for original, dims, feeds in (
            (originals[0].source, options.dims, options.feeds),
            (made, {**(options.dims or {}), **others[0]}, None),
        )
    ]
    at = [
        ", ".join(f"{n}={size}" for n, size in plan.items()) for plan in (opened.sizes, others[0])
    ]
    return Report.merge([report, *found], ["", *at], "by rows at")


def _by_place(original: ModelProto, made: ModelProto) -> dict[str, str]:
    """Pairs inputs and outputs by position, because exporters invent different names at each
    export.
    """
    return {
        ours.name: theirs.name
        for a, b in (
            (original.graph.input, made.graph.input),
            (original.graph.output, made.graph.output),
        )
        for ours, theirs in zip(a, b, strict=False)
        if len(a) == len(b) and ours.name != theirs.name
    }


def _sizes_of(original: ModelProto, made: ModelProto, opened: OpenedSizes) -> str:
    """Returns the sizes that a model fixes, by the opened model's names for them."""
    fixed = {v.name: shape_of(v.name, v.type.tensor_type) for v in original.graph.input}
    found: dict[str, object] = {}
    for v in made.graph.input:
        for axis, size in enumerate(shape_of(v.name, v.type.tensor_type) or ()):
            shape = fixed.get(v.name) or ()
            if size in opened.sizes and axis < len(shape):
                found[str(size)] = shape[axis]
    return ", ".join(f"{name}={size}" for name, size in found.items())
