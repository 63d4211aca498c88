"""A model mapped over a new axis of some inputs: what it computes for each element, at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.ops import op
from onnxgrad.ir.program import Program
from onnxgrad.ir.sizes import is_name, symbols
from onnxgrad.ir.types import TensorType
from onnxgrad.ir.var import Var
from onnxgrad.passes.pipeline import Pipeline
from onnxgrad.transform.batching.layout import Layout, Refused
from onnxgrad.transform.batching.site import site_of
from onnxgrad.transform.batching.walk import Batched, follow_rows
from onnxgrad.transform.open_batch import PREPARE, Opened, declared
from onnxgrad.verify.rows.grouping import Rows
from onnxgrad.wording import option, what_there_is


def map_inputs(
    program: Program, names: Sequence[str] | None = None, *, axis: int = 0, symbol: str = "rows"
) -> Opened:
    """Add an axis to inputs (None: to all) and to every output. `program` is changed.

    Each element along the axis is computed by itself; other inputs are shared. Raises InputError
    that names the node if no rule applies.
    """
    Pipeline.of(passes=PREPARE).run(program)
    main = program.main
    inputs = _chosen(main, names, axis, symbol)
    done = follow_rows(program, dict.fromkeys(inputs, Layout(axis, own=True)), mapped=True)
    notes = [
        f"output '{v.name}' does not depend on the inputs that are mapped, and repeats"
        for v in main.outputs
        if done.layouts.get(v) is None
    ]
    with emitting(main, made_by="vmap"):
        for v in list(main.outputs):
            name = v.name
            if v.is_interface:
                if v not in inputs:
                    raise InputError(f"output '{name}' is an input that is not mapped")
                continue
            try:
                main.return_instead(v, _in_front(v, done, axis))
            except Refused as error:
                raise InputError(f"output '{name}': {error}") from None
    mapped = _declared(program, inputs, axis, symbol)
    outputs = {v.name: Rows(axis, own=True) for v in mapped.main.outputs}
    axes = dict.fromkeys((v.name for v in inputs), axis)
    return Opened(
        mapped, axes, outputs, done.in_place, dict(done.shifted), dict(done.scanned),
        notes=tuple(notes), own=True,
    )  # fmt: skip


def _chosen(main: BindingBlock, names: Sequence[str] | None, axis: int, symbol: str) -> list[Var]:
    known = {v.name: v for v in main.inputs if v.initializer is None}
    for name in names or ():
        if name not in known:
            raise InputError(f"'{name}' is not an input{what_there_is(known)}")
    found = [known[name] for name in dict.fromkeys(known if names is None else names)]
    if not found:
        raise InputError("the model has no input to map")
    for v in found:
        if v.rank is None or not 0 <= axis <= v.rank:
            raise InputError(f"input '{v.name}' {v.type or '?'} can have no new axis {axis}")
    if not main.opsets.get("", 0):
        raise InputError("the model imports no opset of onnx's own operators, which vmap adds")
    taken = {s for v in main.inputs for d in v.shape or () for s in symbols(d)}
    if symbol in taken or not is_name(symbol):
        raise InputError(
            f"the size '{symbol}' exists already or is not a name; {option('--symbol', 'symbol')} "
            "names it"
        )
    return found


def _in_front(v: Var, done: Batched, axis: int) -> Var:
    """An output with an axis of its own for the rows; a shared one repeats."""
    site = site_of(v, done.layouts, done.sizes)
    if (v.rank or 0) < axis:
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


def _declared(program: Program, inputs: Sequence[Var], axis: int, symbol: str) -> Program:
    """The program read again with the new size in its interface."""
    mapped = {v.name: v for v in (*inputs, *program.main.outputs)}
    types: dict[str, TensorType] = {}
    for name, v in mapped.items():
        if isinstance(v.type, TensorType) and v.shape is not None:
            shape = (*v.shape[:axis], symbol, *v.shape[axis + 1 :])
            types[name] = TensorType(v.dtype, shape)
    return declared(program, types)
