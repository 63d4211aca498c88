"""The driver of `open_batch`: makes a fixed batch, or another fixed dimension, dynamic."""

from __future__ import annotations

from dataclasses import dataclass

from onnx import ModelProto

from onnxgrad.errors import InputError
from onnxgrad.ir.load import ModelLike, load, load_own
from onnxgrad.ir.model_kinds import settled
from onnxgrad.ir.save import to_proto
from onnxgrad.jobs.outcome import Hooks
from onnxgrad.jobs.proving import Proved, write_if_proved
from onnxgrad.jobs.surgery_declarations import OpenBatchOptions, RowsProof, VmapOptions
from onnxgrad.options import providers_of, several
from onnxgrad.transform.open_batch import Opened, open_rows
from onnxgrad.transform.open_sizes import OpenedSizes, open_dimensions, other_sizes
from onnxgrad.transform.vmap import as_inputs, map_inputs
from onnxgrad.verify import Report, verify
from onnxgrad.verify.feeds.dims import shape_of
from onnxgrad.verify.report import joined
from onnxgrad.verify.rows.other_sizes import at_other_sizes
from onnxgrad.verify.rows.proof import RowProof
from onnxgrad.wording import option


@dataclass(frozen=True)
class OpenedModel(Proved):
    """An opened model, the report of its proof, and the changes."""

    opened: Opened


@dataclass(frozen=True)
class SizedModel(Proved):
    """A model with other open dimensions, the report of its proof, and the changes."""

    opened: OpenedSizes


def open_batch(model: ModelLike, options: OpenBatchOptions, hooks: Hooks) -> OpenedModel:
    """Open the batch, prove every row, and let the hooks write the result. Raises InputError that
    names the node if rows depend on each other or no rule applies.
    """
    for name in ("follow", "reference"):
        if getattr(options, name):
            flag = option(f"--{name}", name)
            raise InputError(f"{flag} is for {option('--open', 'open')}, which is missing")
    with hooks.limits(options.timeout, options.max_memory):
        model = settled(model)
        program = load_own(model)
        hooks.on_read(program)
        names = None if options.inputs is None else several(options.inputs, "inputs")
        opened = open_rows(
            program, names, batch=options.batch, symbol=options.symbol, along=options.along
        )
        return _proved_rows(model, opened, options, hooks)


def vmap(model: ModelLike, options: VmapOptions, hooks: Hooks) -> OpenedModel:
    """Map the model over a new axis of inputs, prove every row, and let the hooks write the result.
    Raises InputError that names the node if no rule applies.
    """
    with hooks.limits(options.timeout, options.max_memory):
        model = settled(model)
        program = load_own(model)
        hooks.on_read(program)
        if as_inputs(program, options.inputs):  # the original is one with these weights as inputs
            model = to_proto(program, weights=True)
            program = load_own(model)
        mapped = map_inputs(program, options.inputs, axis=options.axis, symbol=options.symbol)
        return _proved_rows(model, mapped, options, hooks)


def _proved_rows(model: ModelLike, opened: Opened, options: RowsProof, hooks: Hooks) -> OpenedModel:
    report = None
    if options.verify:
        hooks.on_stage("prove")
        report = RowProof(
            to_proto(load(model), weights=True), to_proto(opened.program, weights=True),
            opened.rows, providers_of(options.provider), options.dims, options.seed,
            options.feeds, several(options.allow_same, "allow_same"),
        ).report()  # fmt: skip
    remarks = (*opened.warnings, *opened.notes)
    found = OpenedModel(opened.program, report, opened, notes=remarks)
    return write_if_proved(found, hooks)


def open_sizes(model: ModelLike, options: OpenBatchOptions, hooks: Hooks) -> SizedModel:
    """Open sizes other than the batch, prove the result at the sizes of the file and of references,
    run it at others, and let the hooks write it. Raises InputError that names the node at which a
    size cannot be followed with certainty.
    """
    for name in ("inputs", "batch"):
        if getattr(options, name) is not None:
            raise InputError(
                f"{option('--open', 'open')} leaves the batch as it is: open the batch of the "
                f"result, without {option('--open', 'open')}"
            )
    with hooks.limits(options.timeout, options.max_memory):
        model = settled(model)
        program = load_own(model)
        hooks.on_read(program)
        wanted = {name: places.split(",") for name, places in (options.open or {}).items()}
        opened = open_dimensions(program, wanted, several(options.follow, "follow"))
        report = None
        if options.verify:
            hooks.on_stage("prove")
            report = _at_sizes(model, opened, options)
        notes = opened.notes if options.reference else (*opened.notes, _unknown(opened))
        return write_if_proved(SizedModel(opened.program, report, opened, notes=notes), hooks)


def _unknown(opened: OpenedSizes) -> str:
    sizes = ", ".join(f"{name}={size}" for name, size in opened.sizes.items())
    return (
        f"proved at {sizes}; at other sizes it runs and shapes follow, and its numbers are what "
        f"its operators compute there: {option('--reference FILE', 'reference=')} compares them "
        "with another export"
    )


def _at_sizes(model: ModelLike, opened: OpenedSizes, options: OpenBatchOptions) -> Report:
    """Prove the model at the sizes of the file and of each reference, and run it at other sizes."""
    made = to_proto(opened.program, weights=True)
    originals = [to_proto(load(m), weights=True) for m in (model, *several(options.reference, ""))]
    reports = [
        verify(
            original, made, provider=options.provider, seeds=(options.seed,), dims=options.dims,
            inputs=None if i else options.feeds, map=_by_place(original, made),
        )
        for i, original in enumerate(originals)
    ]  # fmt: skip
    at = [_sizes_of(original, made, opened) for original in originals]
    report = reports[0] if len(reports) == 1 else joined(reports, at, "at")
    return at_other_sizes(
        report, made, opened.sizes, list(other_sizes(opened)), dims=options.dims,
        seed=options.seed, provider=providers_of(options.provider)[0],
    )  # fmt: skip


def _by_place(original: ModelProto, made: ModelProto) -> dict[str, str]:
    """Pair inputs and outputs by place: exporters invent names, others at each export."""
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
    """Return the sizes that a model fixes, by the opened model's names for them."""
    fixed = {v.name: shape_of(v.name, v.type.tensor_type) for v in original.graph.input}
    found: dict[str, object] = {}
    for v in made.graph.input:
        for axis, size in enumerate(shape_of(v.name, v.type.tensor_type) or ()):
            shape = fixed.get(v.name) or ()
            if size in opened.sizes and axis < len(shape):
                found[str(size)] = shape[axis]
    return ", ".join(f"{name}={size}" for name, size in found.items())
