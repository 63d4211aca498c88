"""A fixed batch of 1 becomes one of any size: every row as the model computes it alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onnxgrad.errors import InputError
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.load import program_of
from onnxgrad.ir.program import Program
from onnxgrad.ir.protobufs import copy_of
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.types import Dim, TensorType, type_to_proto
from onnxgrad.ir.var import Var
from onnxgrad.passes.pipeline import Pipeline
from onnxgrad.transform.batching.layout import FRONT, Layout, joined
from onnxgrad.transform.batching.site import Site
from onnxgrad.transform.batching.walk import Batched, batch
from onnxgrad.verify.rows import Rows
from onnxgrad.wording import option, perhaps

# sizes become literals, so that every shape is known
_PREPARE = "inline{names=*},fold-constant,open-if,remove-unused"


@dataclass(frozen=True)
class Opened:
    """A program whose inputs have a batch of any size, on these axes, and what it took."""

    program: Program
    inputs: dict[str, int]
    outputs: dict[str, Rows]
    in_place: int
    shifted: dict[str, int]
    scanned: dict[str, int]
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def chosen_inputs(program: Program, names: Sequence[str] | None) -> dict[Var, Layout]:
    """The inputs to open, with the axis of their rows: those named (NAME, or NAME.AXIS), else every
    input whose first axis has size 1 if there is another axis. Raises InputError.
    """
    inputs = [v for v in program.main.inputs if v.initializer is None]
    if names is not None:
        return dict(_named(inputs, name) for name in names)
    found = [v for v in inputs if len(v.shape or ()) > 1 and (v.shape or ())[0] == 1]
    if not found:
        text = ", ".join(f"{v.name} {v.type or '?'}" for v in inputs) or "none"
        how = option("--inputs NAME,...", "inputs=[NAME]")
        raise InputError(f"no input has a first axis of size 1 (inputs: {text}); name them: {how}")
    return dict.fromkeys(found, FRONT)


def _named(inputs: Sequence[Var], name: str) -> tuple[Var, Layout]:
    by_name = {v.name: v for v in inputs}
    base, _, number = name.rpartition(".")
    axis = 0
    if name not in by_name and base in by_name and number.isdecimal():
        name, axis = base, int(number[:4])
    if name not in by_name:
        raise InputError(f"'{name}' is no input{perhaps(name, by_name)}")
    shape = by_name[name].shape
    if shape is None or axis >= len(shape) or shape[axis] != 1:
        raise InputError(f"input '{name}': axis {axis} of {by_name[name].type} is not of size 1")
    return by_name[name], Layout(axis)


def open_rows(
    program: Program, names: Sequence[str] | None = None, *, symbol: str = "batch",
    strict: bool = False,
) -> Opened:  # fmt: skip
    """Open the first axis of inputs, which is of size 1; `program` is changed.

    `names`: the inputs (None: every one whose first axis is 1). `symbol`: the name of the new size.
    `strict`: a node that works along the rows is an error, not a warning. Raises InputError that
    names the node where rows depend on each other, or no rule applies.
    """
    inputs = chosen_inputs(program, names)
    taken = {d for v in program.main.inputs for d in v.shape or () if isinstance(d, str)}
    if symbol in taken:
        raise InputError(
            f"the size '{symbol}' exists already; {option('--symbol', 'symbol')} names it"
        )
    Pipeline.of(passes=_PREPARE).run(program)
    done = batch(program, inputs, strict=strict)
    outputs = _outputs(program.main, done)
    notes = [*_shared(program.main, inputs), *_notes(outputs)]
    axes = {v.name: layout.axis for v, layout in inputs.items()}
    opened = _declared(program, axes, outputs, symbol)
    return Opened(
        opened, axes, outputs, done.in_place, dict(done.shifted),
        dict(done.scanned), tuple(done.warnings), tuple(notes),
    )  # fmt: skip


def _outputs(main: BindingBlock, done: Batched) -> dict[str, Rows]:
    """Where the rows of each output are, on an axis of their own where one is free."""
    found = {}
    with emitting(main, made_by="open-batch"):
        for v in list(main.outputs):
            name = v.name
            layout = done.layouts.get(v)
            if layout is None:
                found[name] = Rows(None)
                continue
            made, layout = _settled(v, layout, done)
            if made is not v:
                done.layouts[made] = layout
                main.return_instead(v, made)
            shape = made.shape or ()
            size = shape[layout.axis]
            found[name] = Rows(layout.axis, layout.outer, int(size or 1), layout.own)
    return found


def _settled(v: Var, layout: Layout, done: Batched) -> tuple[Var, Layout]:
    """An output whose rows share an axis with others gets them on one of size 1, or in front."""
    sizes = v.shape or ()
    if layout.own or (sizes[layout.axis] == 1):
        return v, layout
    if layout == joined([int(d) for d in sizes if isinstance(d, int)]):
        return v, layout
    binding = v.definition
    if binding is None:
        return v, layout
    site = Site(binding, done.layouts, lambda: v)
    for axis, size in enumerate(sizes):
        place = Layout(axis)
        site.operands = [v]
        if size == 1 and site.moved(0, place):
            return site.operands[0] or v, place
    wanted = joined(site.sizes_of(v))
    return site.reshape(site.fronted(v), site.placed(site.sizes_of(v), wanted)), wanted


def _shared(main: BindingBlock, opened: Mapping[Var, Layout]) -> list[str]:
    """Remarks on inputs with another axis of size 1, which may or may not count rows."""
    how = option("--inputs", "inputs")
    unsure = [v for v in main.inputs if v.initializer is None and v not in opened]
    return [
        f"input '{v.name}' {v.type} is shared by all rows; if it has rows, name it in {how} as "
        f"{v.name}{f'.{axis}' if axis else ''}"
        for v in unsure
        if (axis := next((i for i, d in enumerate(v.shape or ()) if d == 1), None)) is not None
    ]


def _notes(outputs: dict[str, Rows]) -> list[str]:
    notes = []
    for name, rows in outputs.items():
        if rows.axis is None:
            notes.append(f"output '{name}' is the same for all rows")
        elif rows.own:
            notes.append(f"output '{name}' is a scalar in each row: its only axis counts rows")
        elif rows.size != 1:
            notes.append(f"output '{name}' has {rows.size} entries per row on axis {rows.axis}")
    return notes


def _declared(
    program: Program, inputs: Mapping[str, int], outputs: dict[str, Rows], symbol: str
) -> Program:
    """The program read again with the new size in its interface, and no declaration between."""
    opened: dict[str, TensorType] = {}
    for v in (*program.main.inputs, *program.main.outputs):
        rows = outputs.get(v.name) or Rows(inputs.get(v.name))
        if not isinstance(v.type, TensorType) or rows.axis is None or v.shape is None:
            continue
        size: Dim = symbol if rows.size == 1 else f"{rows.size}*{symbol}"
        shape = (*v.shape[: rows.axis], size, *v.shape[rows.axis + 1 :])
        opened[v.name] = TensorType(v.dtype, shape)
    model = to_proto(program)
    made = copy_of(model)
    del made.graph.value_info[:]
    for declared in (made.graph.input, made.graph.output):
        for value in declared:
            if value.name in opened:
                value.type.CopyFrom(type_to_proto(opened[value.name]))
    return program_of(made, program.folder, digests=program.digests)
