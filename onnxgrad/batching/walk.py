"""Follows the rows through a program: the layout of every value, from those of the inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from onnxgrad.batching import (  # noqa: F401  # each file adds its rules to the tables
    along_axes,
    elementwise_and_products,
    formulas,
    indexed_rows,
    moves,
    sequences,
    shifted,
    spatial,
)
from onnxgrad.batching.batched_gathernd import read_own_rows
from onnxgrad.batching.control_flow import follow_blocks
from onnxgrad.batching.followed import Batched, join, name_of, named
from onnxgrad.batching.layout import Dependent, Layout, Refused, refusing_types
from onnxgrad.batching.registry import IN_PLACE, OPENED, SHIFTED
from onnxgrad.batching.run_time_sizes import RunTimeSizes
from onnxgrad.batching.scan import by_rows
from onnxgrad.batching.sharper_types import sharpen
from onnxgrad.batching.site import Site, site_of, with_rows
from onnxgrad.errors import InputError
from onnxgrad.ir.binding import Binding, draws
from onnxgrad.ir.domains import REDUCTIONS
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.emission.emitter import emitter
from onnxgrad.ir.function_bodies import (
    body_of,
    conflict,
    has_schema_body,
    open_in_place,
    wrong_shape,
)
from onnxgrad.ir.program import Program
from onnxgrad.ir.types import TensorType
from onnxgrad.ir.var import Var
from onnxgrad.laws.bodies.calls import Builder, build
from onnxgrad.laws.bodies.table import BODIES
from onnxgrad.laws.constant_values import folded
from onnxgrad.wording import option

# onnxruntime aborts the process if their batch is empty: older opsets have no guard against it
_RECURRENT = frozenset({"GRU", "LSTM", "RNN"})
# nothing in these nodes counts the rows over which they work
_OVER_ROWS = frozenset({*REDUCTIONS, "NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"})
NO_RULE = "no rule"


def follow_rows(
    program: Program,
    inputs: Mapping[Var, Layout],
    *,
    count: int = 1,
    along: str = "auto",
    branches: bool = True,
    mapped: bool = False,
) -> Batched:
    """Follows the rows of `inputs` through the main graph, which is changed; types remain those of
    `count` rows. `along`: how to treat a node that works along the rows: raise an error ("refuse"),
    warn ("warn"), raises an error only if it computes statistics over other axes as well ("auto"),
    or let it work over as many rows as there are ("keep"). `branches`: follow the rows into an If,
    which otherwise runs once per row. `mapped`: inputs get the rows on an axis of their own, and
    each row is computed by itself, whatever the node does.

    Raises InputError, which names the node, if rows depend on each other or no rule applies.
    """
    main = program.main
    main.schedule()
    if count > 1:
        read_own_rows(main, count)
    sharpen(main)
    new = {v: layout for v, layout in inputs.items() if mapped and layout.own}
    for v, layout in new.items():
        shape, axis = v.shape or (), layout.axis
        v.type = TensorType(v.dtype, (*shape[:axis], 1, *shape[axis:]))
    done = Batched({**inputs}, RunTimeSizes(inputs, main.inputs, count), branches=branches)
    done.mapped = done.sizes.mapped = mapped
    bindings = list(main.bindings)
    with emitting(main, made_by="open-batch"):
        for v, layout in new.items():
            join(v, layout, done)
        for b in bindings:
            _visit(b, done, along)
        emitter().discard()
    return done


def in_rows(
    bindings: Sequence[Binding], rows: Mapping[Var, Layout], results: Sequence[Var]
) -> list[Var]:
    """Computes bindings, which are emitted and typed for one row, for all rows of some values, each
    by itself. Returns the results with the rows in front, and leaves the types of results to the
    caller. Raises InputError, which names the node, if no rule applies.
    """
    block = bindings[0].block if bindings else next(iter(rows)).block
    done = Batched({**rows}, RunTimeSizes(rows, block.inputs), branches=False)
    done.mapped = done.sizes.mapped = True
    start = len(block.outputs)
    for v in results:  # rules may put others in their place
        block.add_output(v)
    try:
        for b in bindings:
            _visit(b, done, "auto")
        found = block.outputs[start:]
        return [with_rows(site_of(v, done.layouts, done.sizes), v) for v in found]
    finally:
        for v in block.outputs[start:]:
            v.returned -= 1
        del block.outputs[start:]


def _visit(b: Binding, done: Batched, along: str) -> None:
    found = {v for v in b.reads() if done.layouts.get(v) is not None}
    random = _draws(b, done.mapped and bool(found))
    if not found:
        return
    if not done.mapped and b.is_op("QuantizeLinear") and not found.isdisjoint(b.inputs[1:]):
        raise named(b, Dependent("its scale is computed from the rows: dynamic quantisation"))
    site = Site(b, done.layouts, done.sizes)
    try:
        if b.blocks and follow_blocks(site, done, lambda nested, at: _visit(nested, at, along)):
            if site.replaced is not None:
                _commit(site, done)
            return
        if random:
            by_rows(site)
            done.scanned[f"{b.op}: other random numbers in each row"] += 1
        opened = [] if random else _apply(site, done, along, not found <= {*b.inputs})
    except (Dependent, Refused) as error:
        raise named(b, error) from None
    for copy in opened:
        _visit(copy, done, along)
    if not opened:
        _commit(site, done)


def _draws(b: Binding, allowed: bool) -> bool:
    """Whether it draws random numbers; Dropout does not if its mode is a constant False. Raises
    InputError if it does and that is not allowed.
    """
    mode = b.operand(2) if b.op == "Dropout" and b.version >= 12 else None
    fixed = mode is not None and mode.const is not None and not np.any(mode.const)
    if not draws(b) or fixed:
        return False
    if not allowed:
        raise named(b, Dependent(f"{b.op} draws random numbers, which rows would share"))
    return True


def _apply(site: Site, done: Batched, along: str, captures: bool) -> list[Binding]:
    """Applies a rule. Returns the bindings of the operator's body if that took its place."""
    try:
        _in_place(site, captures)
        done.in_place += 1
        if site.op in _RECURRENT and site.replaced is None:
            done.never_empty.append(name_of(site.binding))
        return []
    except Refused as error:
        first = error
    except Dependent as error:
        if not done.mapped:
            raise
        first = Refused(str(error))
    if along == "keep" and (first.along or site.op in _OVER_ROWS):
        site.restart()
        site.found = [None] * len(site.binding.outputs)
        done.in_place += 1
        return []
    if site.count > 1:  # computed together in the file, so that there is no other way to read it
        together = f"the {site.count} rows of the file depend on each other: "
        raise Dependent(f"{together if first.along else ''}{first}")
    _along(site.binding, first, along, done)
    site.restart()
    try:
        _shift(site)
        done.shifted[f"{site.op}: {first}"] += 1
    except Refused as second:
        return _deeper(site, done, first, second)
    return []


def _opened(site: Site, bodies: bool) -> list[Binding]:
    """The bindings of a formula for an operator, or of its body from the schema or the table of
    bodies, in its place; none if there is none that fits.
    """
    b, block, key = site.binding, site.binding.block, (site.binding.domain, site.op)
    rule, before, of_schema = OPENED.get(key), set(block.bindings), has_schema_body(b)
    if rule is None and bodies and not of_schema and key in BODIES:
        rule = partial(_by_body, BODIES[key][0])
    try:
        if rule is not None:
            with site.in_one_row(), refusing_types():
                made = rule(site)
            for old, new in zip(b.outputs, made, strict=False):
                if old is not None and new is not None:
                    block.replace(old, new)
            block.remove_unused([b])
        elif bodies and of_schema:
            body = body_of(b)
            if conflict(b, body) or wrong_shape(b, body):
                return []
            with site.in_one_row():
                open_in_place(b, body, fold=folded)
    except (InputError, Refused):
        return []
    block.schedule()
    return [new for new in block.bindings if new not in before]


def _by_body(builder: Builder, site: Site) -> list[Var | None]:
    """Emits the body of the table. Raises Refused if the body contains the operator, or a loop over
    rows that have no axis of their own: then a Scan of the call is better.
    """
    b, before = site.binding, set(site.binding.block.bindings)
    made = build(builder, b)
    for new in b.block.bindings:
        loops = bool(new.blocks) and not site.sizes_at.mapped
        if new not in before and (loops or (new.domain, new.op) == (b.domain, b.op)):
            raise Refused("its body has loops, or itself")
    return made


def _deeper(site: Site, done: Batched, first: Refused, second: Refused) -> list[Binding]:
    """The nodes that an operator without a rule consists of; else a Scan of it. Rows that are not
    mapped are followed into bodies of the table only.
    """
    site.restart()
    follows = done.mapped or (site.binding.domain, site.op) in BODIES
    made = _opened(site, done.branches) if follows else []
    if not made:
        try:
            by_rows(site)
        except Refused as third:
            raise Refused(f"{first}; {second}; {third}") from None
        done.scanned[f"{site.op}: {first if str(second) == NO_RULE else second}"] += 1
        return []
    done.shifted[f"{site.op}: {first}: by its formula"] += 1
    return made


def _in_place(site: Site, captures: bool) -> None:
    b, key = site.binding, (site.binding.domain, site.op)
    own = any((layout := site.at(k)) is not None and layout.own for k in site.batched())
    if b.blocks or captures:
        raise Refused("it has a body")
    if key not in IN_PLACE or own:
        raise Refused("a scalar in each row" if own else "no rule in place")
    with refusing_types():
        layouts = IN_PLACE[key](site)
    site.found = [layouts] * len(b.outputs) if isinstance(layouts, Layout) else list(layouts)


def _shift(site: Site) -> None:
    key = (site.binding.domain, site.op)
    if key not in SHIFTED or site.binding.blocks:
        raise Refused(NO_RULE)
    with refusing_types():
        SHIFTED[key](site)


def _along(b: Binding, error: Refused, along: str, done: Batched) -> None:
    """Refuses a node that works along the rows, or warns about it."""
    if not error.along or done.mapped:
        return
    if along == "refuse":
        raise error
    if error.statistics and along == "auto":
        how = option("--along warn", "along='warn'")
        raise Dependent(f"it has statistics over the batch ({how}: those of each row)")
    done.warnings.append(f"{name_of(b)}: {error}: each row is computed by itself")


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
    for old, placed in zip(kept, site.replaced, strict=True):
        if placed is not None:
            new, done.layouts[new] = placed
            b.block.replace(old, new)
    b.block.remove_unused([b])
