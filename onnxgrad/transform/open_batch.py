"""Makes a fixed batch dynamic; every row is computed as by the original model."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from onnxgrad.batching.followed import Batched
from onnxgrad.batching.layout import Layout, joined
from onnxgrad.batching.site import Site
from onnxgrad.batching.walk import follow_rows
from onnxgrad.errors import InputError
from onnxgrad.grad.weights.kept import kept
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.load import program_of
from onnxgrad.ir.ops import op
from onnxgrad.ir.program import Program
from onnxgrad.ir.protobufs import copy_of
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.sizes import exactly, multiply
from onnxgrad.ir.types import Dim, TensorType, type_to_proto
from onnxgrad.ir.var import Var
from onnxgrad.passes.pipeline import Pipeline
from onnxgrad.verify.rows.grouping import Grouping, Rows
from onnxgrad.wording import option, what_there_is

# sizes become literals, so that every shape is known
PREPARE = "inline{names=*},fold-constant{floats=false},open-if,remove-unused"
# a value that is equal in all rows is a constant, of which one row is kept
_FOLD_MORE = "fold-constant{max_share=10}"


@dataclass(frozen=True)
class Opened:
    """A program whose inputs have a dynamic batch on these axes, and the changes.

    `count` is the number of rows of the original.
    """

    program: Program
    inputs: dict[str, int]
    outputs: dict[str, Rows]
    in_place: int
    shifted: dict[str, int]
    scanned: dict[str, int]
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    count: int = 1
    own: bool = False  # whether the original lacks the axes of the inputs
    repeated: tuple[str, ...] = ()  # outputs that depend on no row, and repeat

    @property
    def rows(self) -> Grouping:
        """Returns the axes of the rows."""
        return Grouping(self.inputs, self.outputs, self.count, self.own)


def chosen_inputs(
    program: Program, names: Sequence[str] | None, batch: int | None = None
) -> tuple[dict[Var, Layout], int]:
    """Returns the inputs to open, with the axis of their rows, and the number of rows in the file.

    The inputs are those in `names` (NAME or NAME.AXIS). If `names` is None, they are the inputs of
    rank 2 or more whose first axis has the size `batch` (default: 1), and the operands of LSTM, GRU
    and RNN whose axis of samples has. Raises InputError.
    """
    inputs = [v for v in program.main.inputs if v.initializer is None]
    if names is not None:
        named = [_named(inputs, name, batch) for name in names]
        sizes = {v.name: (v.shape or ())[layout.axis] for v, layout in named}
        count = batch or next(iter(sizes.values()), 1)
        if not isinstance(count, int) or len({*sizes.values()}) > 1:
            text = ", ".join(f"{size} in {name}" for name, size in sizes.items())
            raise InputError(f"the inputs that are named have batches of several sizes: {text}")
        return dict(named), count
    count = batch or 1
    found = {}
    for v in inputs:
        shape, axis = v.shape or (), _axis_of_samples(v)
        place = 0 if axis is None else axis
        if len(shape) > (1 if axis is None else place) and shape[place] == count:
            found[v] = Layout(place)
    if not found:
        text = ", ".join(f"{v.name} {v.type or '?'}" for v in inputs) or "none"
        dynamic = [v.name for v in inputs if v.shape and not isinstance(v.shape[0], int)]
        if dynamic and batch is None:
            raise InputError(
                f"the batch is open already: axis 0 of {dynamic[0]} is dynamic (inputs: {text}), "
                f"so nothing is to be done; {_other_sizes()}"
            )
        how = option("--inputs NAME,...", "inputs=[NAME]")
        other = option("--batch N", "batch=N")
        raise InputError(
            f"no input has a first axis of size {count} (inputs: {text}); name them: {how}, or the "
            f"size of the batch: {other}"
        )
    return found, count


def _other_sizes() -> str:
    """Returns the option that opens a fixed size other than the batch."""
    way = option("--open NAME=INPUT.AXIS", "open={NAME: 'INPUT.AXIS'}")
    return f"{way} opens another fixed size"


def _axis_of_samples(v: Var) -> int | None:
    """Returns the axis of the samples of a value that LSTM, GRU or RNN reads; None for others."""
    for b in v.users:
        if b.domain == "" and b.op in ("LSTM", "GRU", "RNN") and not b.attr("layout", 0):
            axes = [_SAMPLES[i] for i, x in enumerate(b.inputs) if x is v and i in _SAMPLES]
            if axes:
                return axes[0]
    return None


# operand -> axis: the sequence, its lengths, and the initial states
_SAMPLES = {0: 1, 4: 0, 5: 1, 6: 1}


def _named(inputs: Sequence[Var], name: str, batch: int | None) -> tuple[Var, Layout]:
    by_name = {v.name: v for v in inputs}
    base, _, number = name.rpartition(".")
    axis = 0
    if name not in by_name and base in by_name and number.isdecimal():
        name, axis = base, int(number[:4])
    if name not in by_name:
        raise InputError(f"'{name}' is not an input{what_there_is(by_name)}")
    shape = by_name[name].shape
    size = None if shape is None or axis >= len(shape) else shape[axis]
    if shape is not None and axis < len(shape) and not isinstance(size, int):
        raise InputError(
            f"input '{name}': axis {axis} of {by_name[name].type} is open already: leave it out of "
            f"{option('--inputs', 'inputs')}, or {_other_sizes()}"
        )
    if not isinstance(size, int) or size < 1 or batch not in (None, size):
        wanted = "a fixed size" if batch is None else f"size {batch}"
        raise InputError(f"input '{name}': axis {axis} of {by_name[name].type} is not of {wanted}")
    return by_name[name], Layout(axis)


def open_rows(
    program: Program, names: Sequence[str] | None = None, *, batch: int | None = None,
    symbol: str = "batch", along: str = "auto", branches: bool = True, weights: bool = True,
) -> Opened:  # fmt: skip
    """Makes the fixed batch of inputs dynamic. `program` is changed.

    `names` and `batch` choose the inputs, as in `chosen_inputs`. `symbol` names the new size.
    `along` and `branches` are those of `follow_rows`. `weights`: keep them as they are, not as part
    of constants, if the batch can be opened so. Raises InputError, which names the node, if
    rows depend on each other or no rule applies.
    """
    inputs, count = chosen_inputs(program, names, batch)
    taken = {d for v in program.main.inputs for d in v.shape or () if isinstance(d, str)}
    if symbol in taken:
        raise InputError(
            f"the size '{symbol}' exists already; {option('--symbol', 'symbol')} names it"
        )
    if count > 1 and weights:
        whole = copy_of(to_proto(program))
        try:
            with kept(program):
                return open_rows(
                    program,
                    names,
                    batch=batch,
                    symbol=symbol,
                    along=along,
                    branches=branches,
                    weights=False,
                )
        except InputError:  # rows computed from weights are equal only by their values
            program = program_of(whole, program.folder, digests=program.digests)
            inputs, count = chosen_inputs(program, names, batch)
    more = f",{_FOLD_MORE},remove-unused" if count > 1 else ""
    Pipeline.of(passes=PREPARE + more).run(program)
    shared = _shared(program.main, inputs, count)
    forks = branches and any(b.is_op("If") for b in program.main.bindings)
    spare = copy_of(to_proto(program)) if forks else None
    try:
        done = follow_rows(program, inputs, count=count, along=along, branches=branches)
    except InputError as error:
        if spare is not None:  # an If once per row
            again = program_of(spare, program.folder, digests=program.digests)
            return open_rows(
                again, names, batch=batch, symbol=symbol, along=along, branches=False, weights=False
            )
        order = ["open the batch of the model first, then form its derivative"]
        shared += order if is_derivative(program) else []
        raise type(error)("; ".join([str(error), *shared])) from None
    outputs = _outputs(program.main, done)
    notes = [*shared, *_notes(outputs)]
    doc = ""
    if done.never_empty:
        doc = f"{symbol} >= 1: onnxruntime ends the process at {done.never_empty[0]} without rows"
        notes.append(doc)
    axes = {v.name: layout.axis for v, layout in inputs.items()}
    opened = _declared(program, axes, outputs, symbol, doc)
    return Opened(
        opened, axes, outputs, done.in_place, dict(done.shifted),
        dict(done.scanned), tuple(done.warnings), tuple(notes), count,
    )  # fmt: skip


def is_derivative(program: Program) -> bool:
    """Whether nodes of the program were emitted by a gradient."""
    entries = (e for b in program.main.bindings for e in b.node.metadata_props)
    return any(e.key == "onnxgrad.made_by" and "gradient" in e.value for e in entries)


def _outputs(main: BindingBlock, done: Batched) -> dict[str, Rows]:
    """Returns the axis of the rows of each output: an axis without other entries if one is free."""
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
            size = exactly((made.shape or ())[layout.axis], done.sizes.count)
            found[name] = Rows(layout.axis, layout.outer, size or 1, layout.own)
    return found


def _settled(v: Var, layout: Layout, done: Batched) -> tuple[Var, Layout]:
    """Returns an output and the layout of its rows.

    If the rows share an axis with other entries, they move to an axis of size 1 or to the front.
    """
    if layout.own or v.definition is None or done.sizes.count > 1:
        return v, layout
    site = Site(v.definition, done.layouts, done.sizes)
    sizes = site.sizes_of(v)
    if sizes[layout.axis] == 1:
        return v, layout
    free = [Layout(axis) for axis, size in enumerate(sizes) if size == 1]
    for place in free:
        site.operands = [v]
        if site.moved(0, place):
            return site.operands[0] or v, place
    if not free and layout == joined(sizes):
        return v, layout
    rows, wanted = site.fronted(v), free[0] if free else joined(sizes)
    if free:
        before = list(range(1, wanted.axis + 1))
        rows = op.Transpose(rows, perm=[*before, 0, *range(wanted.axis + 1, len(sizes) + 1)])
    return site.placed(rows, sizes, wanted), wanted


def _shared(main: BindingBlock, opened: Mapping[Var, Layout], count: int) -> list[str]:
    """Returns remarks on inputs with another axis of the batch's size, which may count rows,
    too.
    """
    how = option("--inputs", "inputs")
    unsure = [v for v in main.inputs if v.initializer is None and v not in opened]
    return [
        f"input '{v.name}' {v.type} is shared by all rows; if it has rows, name it in {how} as "
        f"{v.name}{f'.{axis}' if axis else ''}"
        for v in unsure
        if (axis := next((i for i, d in enumerate(v.shape or ()) if d == count), None)) is not None
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
    program: Program, inputs: Mapping[str, int], outputs: dict[str, Rows], symbol: str, doc: str
) -> Program:
    """Returns the program, read again with the new size in its interface and without other declared
    shapes. `doc` is added to the documentation of inputs.
    """
    opened: dict[str, TensorType] = {}
    for v in (*program.main.inputs, *program.main.outputs):
        rows = outputs.get(v.name) or Rows(inputs.get(v.name))
        if not isinstance(v.type, TensorType) or rows.axis is None or v.shape is None:
            continue
        size: Dim = symbol if rows.size == 1 else f"{rows.size}*{symbol}"
        if isinstance(rows.size, str):
            size = multiply(rows.size, symbol)
        shape = (*v.shape[: rows.axis], size, *v.shape[rows.axis + 1 :])
        opened[v.name] = TensorType(v.dtype, shape)
    return declared(program, opened, inputs if doc else (), doc)


def declared(
    program: Program, types: Mapping[str, TensorType], limited: Collection[str] = (), doc: str = ""
) -> Program:
    """Returns the program, read again with these types in its interface and without other declared
    shapes. `doc` is added to the documentation of the `limited` inputs.
    """
    made = copy_of(to_proto(program))
    del made.graph.value_info[:]
    for values in (made.graph.input, made.graph.output):
        for value in values:
            if value.name in types:
                value.type.CopyFrom(type_to_proto(types[value.name]))
            if value.name in limited:
                value.doc_string = f"{value.doc_string}\n{doc}".strip()
    found = program_of(made, program.folder, digests=program.digests)
    for v in found.main.outputs:
        v.type = types.get(v.name, v.type)
    return found
