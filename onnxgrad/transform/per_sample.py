"""Per-sample derivatives: the derivatives at a batch of 1, mapped over the samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from onnxgrad.batching.followed import Batched
from onnxgrad.batching.layout import Layout, Refused
from onnxgrad.batching.site import site_of
from onnxgrad.errors import InputError
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.ops import op
from onnxgrad.ir.program import Program
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.sizes import symbols
from onnxgrad.ir.types import TensorType
from onnxgrad.ir.var import Var
from onnxgrad.passes.pipeline import Pipeline
from onnxgrad.transform.open_batch import PREPARE, Opened, declared
from onnxgrad.transform.vmap import followed, in_front, with_symbol
from onnxgrad.verify.feeds.dims import roles
from onnxgrad.verify.rows.grouping import Rows
from onnxgrad.wording import option


@dataclass(frozen=True)
class Samples:
    """The symbol of the batch, or None if the batch is 1, and the axis of the samples of each input
    and output.
    """

    symbol: str | None
    axes: Mapping[str, int]
    outputs: Mapping[str, int]


def samples_of(program: Program) -> Samples:
    """Return the axes of the samples: those with the symbol of the batch, or the first axes of size
    1 if the batch has no symbol. Raises InputError for no such axis and for several symbols.
    """
    inputs = [v for v in program.main.inputs if v.initializer is None]
    found = [n for n, role in roles(to_proto(program).graph).items() if role == "batch"]
    if len(found) > 1:
        how = option(f"--fix-dim {found[1]}=N", f"fix_dims(model, {{{found[1]!r}: N}})")
        raise InputError(
            f"per sample: {' and '.join(found[:4])} may be the batch: give them one name, or fix "
            f"one with {how}"
        )
    symbol = found[0] if found else None
    axes = {
        v.name: axis
        for v in inputs
        for axis, size in enumerate(v.shape or ())
        if (size == symbol if found else (axis == 0 and size == 1 and (v.rank or 0) > 1))
    }
    if not axes:
        shown = ", ".join(f"{v.name} {v.type or '?'}" for v in inputs) or "none"
        raise InputError(
            f"per sample: no input has a batch of 1 or of any size ({shown}): export the model "
            "with a dynamic batch; `onnxgrad vmap` maps the gradient of a model of one sample"
        )
    whole = {
        v.name: axis
        for v in program.main.outputs
        for axis, size in enumerate(v.shape or ())
        if (size == symbol if found else (axis == 0 and size == 1 and (v.rank or 0) > 1))
    }
    return Samples(symbol, axes, whole)


def one_sample(program: Program, samples: Samples) -> Program:
    """Return the program at a batch of 1."""
    if samples.symbol is None:
        return program
    types: dict[str, TensorType] = {}
    for v in (*program.main.inputs, *program.main.outputs):
        if isinstance(v.type, TensorType) and v.shape is not None:
            sizes = (
                1 if d == samples.symbol else None if samples.symbol in symbols(d) else d
                for d in v.shape
            )
            types[v.name] = TensorType(v.dtype, tuple(sizes))
    return declared(program, types)


def map_samples(program: Program, samples: Samples, like: Mapping[str, str]) -> Opened:
    """Map a program at a batch of 1 over the samples. `program` is changed.

    `like` maps inputs and outputs to the input or output whose axis of samples they share. Other
    results get a first axis for the samples. Raises InputError, which names the node.
    """
    Pipeline.of(passes=PREPARE).run(program)
    places = {**samples.axes, **samples.outputs}
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
        with_symbol(program, found, samples.symbol or "batch"), axes, rows, done.in_place,
        dict(done.shifted), dict(done.scanned), tuple(done.warnings),
    )  # fmt: skip


def _in_place(v: Var, done: Batched, axis: int) -> Var:
    """Return a result with the samples on an axis that is 1 in one sample."""
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
