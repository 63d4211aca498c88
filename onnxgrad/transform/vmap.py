"""Maps a model over a new axis of inputs: one run computes the results of every element."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

from onnxgrad.batching.followed import Batched
from onnxgrad.batching.layout import ALLOWS_ZERO, OLDEST_SCAN, Layout, Refused
from onnxgrad.batching.scan import model_by_rows
from onnxgrad.batching.site import site_of
from onnxgrad.batching.walk import follow_rows
from onnxgrad.errors import InputError
from onnxgrad.grad.opset.raising import raise_opset
from onnxgrad.grad.weights.kept import check_replaceable, kept
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.load import program_of
from onnxgrad.ir.ops import op
from onnxgrad.ir.program import Program
from onnxgrad.ir.protobufs import copy_of
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.sizes import is_name, symbols
from onnxgrad.ir.types import TensorType
from onnxgrad.ir.var import Var
from onnxgrad.passes.pipeline import Pipeline
from onnxgrad.transform.open_batch import PREPARE, Opened, declared, is_derivative
from onnxgrad.verify.rows.grouping import Rows
from onnxgrad.wording import option, what_there_is

_OPSET = 18  # of onnx's own operators in a model that imports none
# inputs to map, optionally with their axes; an axis of None: the common axis; None: every input
Axes: TypeAlias = "str | Sequence[str] | Mapping[str, int | None] | None"


def map_inputs(
    program: Program, names: Axes = None, *, axis: int = 0, symbol: str = "rows"
) -> Opened:
    """Adds an axis to inputs (None: to all) and to every output. `program` is changed.

    `names` may be a mapping that sets the place of the new axis for each input. It may name
    initializers that `as_inputs` made inputs. The elements along the axis are computed
    independently; other inputs are shared. Raises InputError, which names the node, if no rule
    applies.
    """
    Pipeline.of(passes=PREPARE).run(program)
    main = program.main
    main.opsets.setdefault("", _OPSET)
    chosen = _chosen(main, names, axis, symbol)
    axes = {v.name: i for v, i in chosen.items()}
    program, done = followed(program, {n: Layout(i, own=True) for n, i in axes.items()})
    main = program.main
    repeated = tuple(v.name for v in main.outputs if done.layouts.get(v) is None)
    notes = [
        f"output '{name}' does not depend on the inputs that are mapped, and repeats"
        for name in repeated
    ]
    with emitting(main, made_by="vmap"):
        for v in list(main.outputs):
            name = v.name
            if v.is_interface:
                if name not in axes:
                    raise InputError(f"output '{name}' is an input that is not mapped")
                continue
            try:
                main.return_instead(v, in_front(v, done, axis))
            except Refused as error:
                raise InputError(f"output '{name}': {error}") from None
    places = {v.name: axes.get(v.name, axis) for v in main.outputs}
    mapped = with_symbol(program, {**places, **axes}, symbol)
    outputs = {name: Rows(i, own=True) for name, i in places.items()}
    return Opened(
        mapped, axes, outputs, done.in_place, dict(done.shifted), dict(done.scanned),
        tuple(done.warnings), notes=tuple(notes), own=True,
        repeated=repeated if len(repeated) < len(main.outputs) else (),
    )  # fmt: skip


def as_inputs(program: Program, names: Axes) -> bool:
    """Turns the initializers among the names into inputs without a default. Returns whether there
    were any.
    """
    found = False
    for name in () if names is None else [names] if isinstance(names, str) else names:
        weight = program.main.initializers.get(name)
        if weight is not None:
            check_replaceable(program, [name], "mapping over")
            program.main.ask_for(weight)
            found = True
    return found


def followed(program: Program, rows: Mapping[str, Layout]) -> tuple[Program, Batched]:
    """Follows the rows of inputs, which are computed independently.

    Returns the program and its rows. The program is changed, or read again if rows cannot be
    followed into a nested graph or the body of an operator: that then runs once per row. If they
    cannot be followed at all, the whole model runs once per row.
    """
    spare = copy_of(to_proto(program))
    folder, digests = program.folder, program.digests
    if program.opset < ALLOWS_ZERO and any(
        symbols(d) for v in program.main.inputs for d in v.shape or ()
    ):
        try:  # a size that is 0 in a run needs the newer Reshape
            return followed(raise_opset(program)[0], rows)
        except InputError:
            program = program_of(copy_of(spare), folder, digests=digests)
    why: InputError | None = None
    for deep in (True, False):
        try:
            return program, _follow(program, rows, deep)
        except InputError as error:
            why = why or error
            program = program_of(copy_of(spare), folder, digests=digests)
    if program.opset < OLDEST_SCAN:
        program, _ = raise_opset(program)
        return followed(program, rows)
    inputs = {v: rows[v.name] for v in program.main.inputs if v.name in rows}
    try:
        return program, model_by_rows(program.main, inputs, str(why))
    except Refused as error:
        order = "; or map the model, then form its derivative" if is_derivative(program) else ""
        raise InputError(f"{why}; the whole model in a Scan: {error}{order}") from None


def _follow(program: Program, rows: Mapping[str, Layout], deep: bool) -> Batched:
    inputs = {v: rows[v.name] for v in program.main.inputs if v.name in rows}
    with kept(program):
        return follow_rows(program, inputs, mapped=True, branches=deep)


def _chosen(main: BindingBlock, names: Axes, axis: int, symbol: str) -> dict[Var, int]:
    """Returns the inputs to map, each with the place of its new axis."""
    known = {v.name: v for v in main.inputs if v.initializer is None}
    places = names if isinstance(names, Mapping) else {}
    found: dict[Var, int] = {}
    for name in [*known] if names is None else [names] if isinstance(names, str) else names:
        if name not in known:
            raise InputError(f"'{name}' is not an input{what_there_is(known)}")
        if known[name] in found:
            raise InputError(f"input '{name}' is named twice")
        place = places.get(name)
        found[known[name]] = axis if place is None else place
    if not found:
        raise InputError("the model has no input to map")
    for v, i in found.items():
        if v.rank is None:
            more = option("--map NAME,...", "inputs=[NAME, ...]")
            raise InputError(
                f"input '{v.name}' {v.type or '?'} has no known rank, and a rule needs it: declare "
                f"the shape in the file, or map other inputs with {more}"
            )
        if not 0 <= i <= v.rank:
            raise InputError(f"input '{v.name}' {v.type or '?'} can have no new axis {i}")
    taken = {s for v in main.inputs for d in v.shape or () for s in symbols(d)}
    if symbol in taken or not is_name(symbol):
        raise InputError(
            f"the size '{symbol}' exists already or is not a name; {option('--symbol', 'symbol')} "
            "names it"
        )
    return found


def in_front(v: Var, done: Batched, axis: int) -> Var:
    """Returns an output with a new axis for the rows; an output without rows is repeated."""
    site = site_of(v, done.layouts, done.sizes)
    if len(site.sizes_of(v)) < axis:
        raise Refused(f"it has no axis {axis}")
    if done.layouts.get(v) is None:
        front = op.Unsqueeze(v, np.zeros(1, np.int64))
        made: Var = op.Tile(front, site.repeats(0, len(site.in_file(v))))
    else:
        made = site.fronted(v)
    if axis:
        rank = len(site.sizes_of(v)) + 1
        perm = [*range(1, axis + 1), 0, *range(axis + 1, rank)]
        made = op.Transpose(made, perm=perm)
    return made if made is not v else op.Identity(v)


def with_symbol(program: Program, axes: Mapping[str, int], symbol: str) -> Program:
    """Returns the program, read again with the size of rows in its interface, and without constants
    that nothing reads.
    """
    Pipeline.of(passes="remove-unused").run(program)
    types: dict[str, TensorType] = {}
    for v in (*program.main.inputs, *program.main.outputs):
        axis = axes.get(v.name)
        if axis is not None and isinstance(v.type, TensorType) and v.shape is not None:
            shape = (*v.shape[:axis], symbol, *v.shape[axis + 1 :])
            types[v.name] = TensorType(v.dtype, shape)
    return declared(program, types)
