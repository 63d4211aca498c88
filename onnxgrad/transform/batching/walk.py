"""Follows the rows through a program: the layout of every value, from those of the inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from onnx import ValueInfoProto, helper

from onnxgrad.errors import InputError
from onnxgrad.ir.binding import Binding, draws
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.emission.emitter import emitter
from onnxgrad.ir.ops import op
from onnxgrad.ir.program import Program
from onnxgrad.ir.types import TensorType
from onnxgrad.ir.var import Var
from onnxgrad.transform.batching import (  # noqa: F401  # each file adds its rules to the tables
    along_axes,
    elementwise_and_products,
    indexed_rows,
    moves,
    shifted,
    spatial,
)
from onnxgrad.transform.batching.layout import OWN, Dependent, Layout, Refused, joined
from onnxgrad.transform.batching.own_rows import read_own_rows
from onnxgrad.transform.batching.registry import IN_PLACE, SHIFTED
from onnxgrad.transform.batching.run_time_sizes import RunTimeSizes
from onnxgrad.transform.batching.scan import by_rows
from onnxgrad.transform.batching.sharper_types import sharpen
from onnxgrad.transform.batching.site import Site, site_of
from onnxgrad.wording import option

# onnxruntime aborts the process if their batch is empty: older opsets have no guard against it
_RECURRENT = frozenset({"GRU", "LSTM", "RNN"})
# the size of a result depends on values, so that rows have several
_RAGGED = frozenset({"Compress", "NonMaxSuppression", "NonZero", "Unique"})


@dataclass
class Batched:
    """The layouts of all values, and the results of the rules: nodes kept in place, computed with
    rows in front, or run once per row, each with the reason. Warnings name nodes that work along
    the rows.
    """

    layouts: dict[Var, Layout | None]
    sizes: RunTimeSizes
    in_place: int = 0
    shifted: Counter[str] = field(default_factory=Counter)
    scanned: Counter[str] = field(default_factory=Counter)
    warnings: list[str] = field(default_factory=list)
    never_empty: list[str] = field(default_factory=list)  # nodes at which no rows end the process
    branches: bool = True  # whether rows are followed into an If
    mapped: bool = False  # whether each row is computed by itself, without a word


def follow_rows(
    program: Program,
    inputs: Mapping[Var, Layout],
    *,
    count: int = 1,
    along: str = "auto",
    branches: bool = True,
    mapped: bool = False,
) -> Batched:
    """Follow the rows of `inputs` through the main graph, which is changed; types remain those of
    `count` rows. `along`: how to treat a node that works along the rows: raise an error ("refuse"),
    warn ("warn"), or raise an error only if it computes statistics over other axes as well
    ("auto"). `branches`: follow the rows into an If, which otherwise runs once per row. `mapped`:
    inputs get the rows on an axis of their own, and each row is computed by itself, whatever the
    node does.

    Raises InputError, which names the node, if rows depend on each other or no rule applies.
    """
    main = program.main
    main.schedule()
    if count > 1:
        read_own_rows(main, count)
    sharpen(main)
    for v, layout in inputs.items() if mapped else ():
        shape, axis = v.shape or (), layout.axis
        v.type = TensorType(v.dtype, (*shape[:axis], 1, *shape[axis:]))
    done = Batched({**inputs}, RunTimeSizes(inputs, main.inputs, count), branches=branches)
    done.mapped = done.sizes.mapped = mapped
    bindings = list(main.bindings)
    with emitting(main, made_by="open-batch"):
        for v, layout in inputs.items() if mapped else ():
            _join(v, layout, done)
        for b in bindings:
            _visit(b, done, along)
        emitter().discard()
    return done


def _join(v: Var, layout: Layout, done: Batched) -> None:
    """The rows of a mapped input join an axis of it, so that nodes stay in place."""
    readers = list(v.users)
    site = site_of(v, done.layouts, done.sizes)
    sizes = site.in_file(v)
    one = (*sizes[: layout.axis], *sizes[layout.axis + 1 :])
    front = v
    if layout.axis:
        rest = [i for i in range(len(sizes)) if i != layout.axis]
        front = op.Transpose(v, perm=[layout.axis, *rest])
        done.layouts[front] = OWN
    if one:
        place = joined(one)
        try:
            front = site.placed(front, one, place)
        except Refused as error:
            raise InputError(f"input '{v.name}': {error}") from None
        done.layouts[front] = place
    for reader in readers if front is not v else ():
        for i in reader.places(v):
            reader.block.set_operand(reader, i, front)


def _visit(b: Binding, done: Batched, along: str) -> None:
    found = {v for v in b.reads() if done.layouts.get(v) is not None}
    if _draws(b):
        raise _named(b, Dependent(f"{b.op} draws random numbers, which rows would share"))
    if not found:
        return
    if not done.mapped and b.is_op("QuantizeLinear") and not found.isdisjoint(b.inputs[1:]):
        raise _named(b, Dependent("its scale is computed from the rows: dynamic quantisation"))
    site = Site(b, done.layouts, done.sizes)
    try:
        if b.is_op("If") and site.at(0) is None and done.branches:
            _follow_branches(site, done, along)
            return
        _apply(site, done, along, not found <= {*b.inputs})
    except (Dependent, Refused) as error:
        raise _named(b, error) from None
    _commit(site, done)


def _follow_branches(site: Site, done: Batched, along: str) -> None:
    """Follow the rows into an If whose condition all rows share; they are on one axis of each
    result.
    """
    b, sizes = site.binding, done.sizes
    inside = {}
    for block in b.blocks.values():
        within = replace(done, sizes=RunTimeSizes(sizes.opened, sizes.inputs, sizes.count))
        within.sizes.mapped = done.mapped
        block.schedule()
        with emitting(block, made_by="open-batch"):
            for nested in list(block.bindings):
                _visit(nested, within, along)
            emitter().discard()
        done.in_place += within.in_place - done.in_place
        inside[block] = within
    for i, result in enumerate(b.outputs):
        layout = _at_one_place(b, i, done, {block: w.sizes for block, w in inside.items()})
        if result is not None:
            done.layouts[result] = layout


def _at_one_place(
    b: Binding, i: int, done: Batched, sizes: Mapping[BindingBlock, RunTimeSizes]
) -> Layout | None:
    """Move the rows of result `i` of all branches to one axis, and return it."""
    places = [done.layouts.get(block.outputs[i]) for block in sizes]
    if not any(places):
        return None
    wanted = next((p for p in places if p is not None and not p.own), None)
    if wanted is None:
        raise Refused("a scalar in each row")
    for block, run_time in sizes.items():
        v = block.outputs[i]
        site = Site(b, done.layouts, run_time)
        site.operands = [v]
        with emitting(block, made_by="open-batch"):
            if site.at(0) is None:
                site.tile(0, wanted)
            elif not site.moved(0, wanted):
                raise Refused("its branches have the rows at different places")
            made = site.operands[0]
            if made is not None and made is not v:
                block.return_instead(v, made)
            emitter().discard()
        result = block.outputs[i]
        type_ = helper.make_tensor_type_proto(result.dtype, None)
        block.declared[result] = ValueInfoProto(name=result.name, type=type_)
    return wanted


def _draws(b: Binding) -> bool:
    """Whether it draws random numbers; Dropout does not if its mode is a constant False."""
    if not draws(b):
        return False
    mode = b.operand(2) if b.op == "Dropout" and b.version >= 12 else None
    return mode is None or mode.const is None or bool(np.any(mode.const))


def _named(b: Binding, error: Exception) -> InputError:
    kind = type(error) if isinstance(error, InputError) else InputError
    return kind(f"{_name(b)}: the batch cannot be opened here: {error}")


def _apply(site: Site, done: Batched, along: str, captures: bool) -> None:
    try:
        _in_place(site, captures)
        done.in_place += 1
        if site.op in _RECURRENT and site.replaced is None:
            done.never_empty.append(_name(site.binding))
        return
    except Refused as error:
        first = error
    except Dependent as error:
        if not done.mapped or site.op in _RAGGED:
            raise
        first = Refused(str(error))
    if site.count > 1:  # computed together in the file, so that there is no other way to read it
        together = f"the {site.count} rows of the file depend on each other: "
        raise Dependent(f"{together if first.along else ''}{first}")
    _along(site.binding, first, along, done)
    site.restart()
    try:
        _shift(site)
        done.shifted[f"{site.op}: {first}"] += 1
    except Refused as second:
        site.restart()
        try:
            by_rows(site)
        except Refused as third:
            raise Refused(f"{first}; {second}; {third}") from None
        done.scanned[f"{site.op}: {second}"] += 1


def _in_place(site: Site, captures: bool) -> None:
    b, key = site.binding, (site.binding.domain, site.op)
    own = any((layout := site.at(k)) is not None and layout.own for k in site.batched())
    if b.blocks or captures:
        raise Refused("it has a body")
    if key not in IN_PLACE or own:
        raise Refused("a scalar in each row" if own else "no rule in place")
    layouts = IN_PLACE[key](site)
    site.found = [layouts] * len(b.outputs) if isinstance(layouts, Layout) else list(layouts)


def _shift(site: Site) -> None:
    key = (site.binding.domain, site.op)
    if key not in SHIFTED or site.binding.blocks:
        raise Refused("no rule")
    SHIFTED[key](site)


def _along(b: Binding, error: Refused, along: str, done: Batched) -> None:
    """Refuse a node that works along the rows, or warn about it."""
    if not error.along or done.mapped:
        return
    if along == "refuse":
        raise error
    if error.statistics and along == "auto":
        how = option("--along warn", "along='warn'")
        raise Dependent(f"it has statistics over the batch ({how}: those of each row)")
    done.warnings.append(f"{_name(b)}: {error}: each row is computed by itself")


def _name(b: Binding) -> str:
    return f"{b.op} '{b.node.name or b.out.name}'"


def _commit(site: Site, done: Batched) -> None:
    b = site.binding
    if site.replaced is None:
        b.block.set_operands(b, site.operands)
        for name, value in site.attributes.items():
            b.set_attribute(name, value)
        for v, layout in zip(b.outputs, site.found):
            if v is not None:
                done.layouts[v] = layout
        return
    kept = [v for v in b.outputs if v is not None]
    for old, (new, layout) in zip(kept, site.replaced, strict=True):
        done.layouts[new] = layout
        b.block.replace(old, new)
    b.block.remove_unused([b])
