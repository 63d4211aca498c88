"""Per-sample derivatives: the derivatives at a batch of 1, mapped over the samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from onnxgrad.batching.followed import Batched
from onnxgrad.batching.layout import Layout, Refused
from onnxgrad.batching.site import site_of
from onnxgrad.errors import InputError
from onnxgrad.grad.derivatives.derivative import Derivative
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.ops import op
from onnxgrad.ir.program import Program
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.sizes import symbols
from onnxgrad.ir.types import TensorType
from onnxgrad.ir.var import Var
from onnxgrad.passes.pipeline import Pipeline
from onnxgrad.transform.open_batch import PREPARE, Opened, declared, open_rows
from onnxgrad.transform.vmap import followed, in_front, with_symbol
from onnxgrad.verify.feeds.dims import roles
from onnxgrad.verify.rows.grouping import Rows
from onnxgrad.wording import option

_BATCH = "batch"  # the size of a batch that has no symbol


@dataclass(frozen=True)
class Samples:
    """The symbol of the batch, or None if the batch is 1, the axis of the samples of each value
    that has one, and the ranks of values.
    """

    symbol: str | None
    axes: Mapping[str, int]
    ranks: Mapping[str, int]


def any_batch(program: Program) -> tuple[Program, int]:
    """Returns a program with a batch of 1 or of any size, and the size of a fixed batch above 1
    that was opened, else 0. Nodes that work over the whole batch do so at every size.

    The program is changed. Raises InputError if inputs have several batches, or a node cannot be
    opened.
    """
    inputs = [v for v in program.main.inputs if v.initializer is None]
    sizes = {(v.shape or (0,))[0] for v in inputs if (v.rank or 0) > 1}
    if len(sizes) != 1 or 1 in sizes or _symbols(program):
        return program, 0
    (size,) = sizes
    names = [v.name for v in inputs if v.rank and (v.shape or ())[0] == size]
    if not isinstance(size, int) or not size:
        return program, 0
    try:
        return open_rows(program, names, batch=size, along="keep").program, size
    except InputError as error:
        raise InputError(
            f"per sample, by first axes of size {size}: {error}; export the model with a dynamic "
            "batch, or open another axis: `onnxgrad open-batch MODEL --inputs NAME.AXIS,... -o OUT`"
        ) from None


def _symbols(program: Program) -> list[str]:
    return [n for n, role in roles(to_proto(program).graph).items() if role == "batch"]


def samples_of(program: Program) -> Samples:
    """Returns the axes of the samples: those with the symbol of the batch, or the first axes of
    size 1 if the batch has no symbol. Raises InputError for no such axis and for several symbols.
    """
    inputs = [v for v in program.main.inputs if v.initializer is None]
    found = _symbols(program)
    if len(found) > 1:
        how = option(f"--fix-dim {found[1]}=N", f"fix_dims(model, {{{found[1]!r}: N}})")
        raise InputError(
            f"per sample: {' and '.join(found[:4])} may be the batch: give them one name, or fix "
            f"one with {how}"
        )
    symbol = found[0] if found else None
    axes, computed = dict[str, int](), set(inputs)
    for b in program.main.bindings if symbol is None else ():
        if not computed.isdisjoint(b.reads()):
            computed.update(v for v in b.outputs if v is not None)
    for v in program.main.vars():
        for axis, size in enumerate(v.shape or ()):
            first = axis == 0 and size == 1 and (v.rank or 0) > 1 and v in computed
            if first if symbol is None else size == symbol:
                axes[v.name] = axis
    if not any(v.name in axes for v in inputs):
        shown = ", ".join(f"{v.name} {v.type or '?'}" for v in inputs) or "none"
        raise InputError(
            f"per sample: the inputs share no batch ({shown}): export the model with a dynamic "
            "batch, or open it: `onnxgrad open-batch MODEL --inputs NAME,... -o OUT`"
        )
    return Samples(
        symbol, axes, {v.name: v.rank for v in program.main.vars() if v.rank is not None}
    )


def of_size(program: Program, samples: Samples, size: int = 1) -> Program:
    """Returns the program at a batch of this size."""
    if samples.symbol is None:
        return program
    types: dict[str, TensorType] = {}
    for v in (*program.main.inputs, *program.main.outputs):
        if isinstance(v.type, TensorType) and v.shape is not None:
            sizes = (
                size if d == samples.symbol else None if samples.symbol in symbols(d) else d
                for d in v.shape
            )
            types[v.name] = TensorType(v.dtype, tuple(sizes))
    return declared(program, types)


def map_samples(program: Program, samples: Samples, like: Mapping[str, str]) -> Opened:
    """Maps a program at a batch of 1 over the samples. `program` is changed.

    `like` maps inputs and outputs to the input or output whose axis of samples they share. Other
    results get a first axis for the samples. Raises InputError, which names the node.
    """
    Pipeline.of(passes=PREPARE).run(program)
    places = {**samples.axes}
    places |= {name: places[other] for name, other in like.items() if other in places}
    given = [v.name for v in program.main.inputs if v.name in places]
    program, done = followed(program, {name: Layout(places[name]) for name in given})
    main = program.main
    inputs = [v for v in main.inputs if v.name in given]
    rows: dict[str, Rows] = {}
    with emitting(main, made_by="per-sample"):
        for v in list(main.outputs):
            name, axis = v.name, places.get(v.name)
            if v.is_interface:
                rows[name] = Rows(axis) if v in inputs else Rows(None)
                continue
            rows[name] = Rows(0, own=True) if axis is None else Rows(axis)
            try:
                made = in_front(v, done, 0) if axis is None else _in_place(v, done, axis)
            except Refused as error:
                raise InputError(f"output '{name}': {error}") from None
            main.return_instead(v, made)
    axes = {v.name: places[v.name] for v in inputs}
    found = {**axes, **{name: where.axis for name, where in rows.items() if where.axis is not None}}
    return Opened(
        with_symbol(program, found, samples.symbol or _BATCH), axes, rows, done.in_place,
        dict(done.shifted), dict(done.scanned), tuple(done.warnings),
    )  # fmt: skip


def _in_place(v: Var, done: Batched, axis: int) -> Var:
    """Returns a result with the samples on an axis that is 1 in one sample."""
    site = site_of(v, done.layouts, done.sizes)
    if done.layouts.get(v) == Layout(axis):
        return v
    if done.layouts.get(v) is None:
        made: Var = op.Tile(v, site.repeats(axis, (v.rank or 0) - axis - 1))
        return made
    front = op.Squeeze(site.fronted(v), np.array([axis + 1]))
    if axis:
        rank = len(site.sizes_of(v))
        front = op.Transpose(front, perm=[*range(1, axis + 1), 0, *range(axis + 1, rank)])
    return front if front is not v else op.Identity(v)


def of_each(found: Derivative, samples: Samples) -> Derivative:
    """Removes the axes of samples from Jacobians at a batch of 1: a mapping adds one in front."""
    block = found.program.main
    (target,) = found.targets
    outer = {name: axis for name, axis in samples.axes.items() if name == target}
    with emitting(block, made_by="per-sample"):
        for name, result in found.results.items():
            (v,) = (v for v in block.outputs if v.name == result)
            inner = [samples.ranks[target] + samples.axes[name]] if name in samples.axes else []
            if outer or inner:
                block.return_instead(v, op.Squeeze(v, np.array([*outer.values(), *inner])))
    return found
