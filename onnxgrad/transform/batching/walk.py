"""The walk through a program: the layout of every value, from those of the inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.ir.binding import Binding, draws
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.emission.emitter import emitter
from onnxgrad.ir.ops import op
from onnxgrad.ir.program import Program
from onnxgrad.ir.var import Var
from onnxgrad.transform.batching import (  # noqa: F401  # each file adds its rules to the tables
    along_axes,
    elementwise_and_products,
    moves,
    shifted,
    spatial,
)
from onnxgrad.transform.batching.layout import Dependent, Layout, Refused
from onnxgrad.transform.batching.registry import IN_PLACE, SHIFTED
from onnxgrad.transform.batching.scan import by_rows
from onnxgrad.transform.batching.site import Site


@dataclass
class Batched:
    """The layouts of all values, and what the rules did: nodes kept in place, computed with rows
    in front, or run once per row, each with the reason; warnings name nodes that work along the
    rows.
    """

    layouts: dict[Var, Layout | None]
    in_place: int = 0
    shifted: Counter[str] = field(default_factory=Counter)
    scanned: Counter[str] = field(default_factory=Counter)
    warnings: list[str] = field(default_factory=list)


def batch(program: Program, inputs: Mapping[Var, Layout], *, strict: bool = False) -> Batched:
    """Follow the rows of `inputs` through the main graph, which is changed: types stay those of one
    row. `strict`: a node that works along the rows is an error.

    Raises InputError that names the node where rows depend on each other, or no rule applies.
    """
    done = Batched({**inputs})
    main = program.main
    main.schedule()
    source = next(iter(inputs))
    count: list[Var] = []

    def rows() -> Var:
        if not count:
            sizes = op.Shape(source)
            count.append(op.Gather(sizes, np.array([inputs[source].axis]), axis=0))
        return count[0]

    with emitting(main, made_by="open-batch"):
        for b in list(main.bindings):
            _visit(b, done, rows, strict)
        emitter().discard()
    return done


def _visit(b: Binding, done: Batched, rows: Callable[[], Var], strict: bool) -> None:
    found = {v for v in b.reads() if done.layouts.get(v) is not None}
    if _draws(b):
        raise _named(b, Dependent(f"{b.op} draws random numbers, which rows would share"))
    if not found:
        return
    site = Site(b, done.layouts, rows)
    try:
        _apply(site, done, strict, any(v.block is not b.block for v in found))
    except (Dependent, Refused) as error:
        raise _named(b, error) from None
    _commit(site, done)


def _draws(b: Binding) -> bool:
    """Whether it draws random numbers; Dropout does not if its mode is a constant False."""
    if not draws(b):
        return False
    mode = b.operand(2) if b.op == "Dropout" and b.version >= 12 else None
    return mode is None or mode.const is None or bool(np.any(mode.const))


def _named(b: Binding, error: Exception) -> InputError:
    kind = type(error) if isinstance(error, InputError) else InputError
    name = b.node.name or b.out.name
    return kind(f"{b.op} '{name}': the batch cannot be opened here: {error}")


def _apply(site: Site, done: Batched, strict: bool, captures: bool) -> None:
    b = site.binding
    key = (b.domain, b.op)
    own = any((layout := site.at(k)) is not None and layout.own for k in site.batched())
    try:
        if b.blocks or captures:
            raise Refused("it has a body")
        if key not in IN_PLACE or own:
            raise Refused("a scalar in each row" if own else "no rule in place")
        layouts = IN_PLACE[key](site)
        count = len(b.outputs)
        site.found = [layouts] * count if isinstance(layouts, Layout) else list(layouts)
        done.in_place += 1
        return
    except Refused as error:
        first = error
    if first.along:
        text = f"{b.op} '{b.node.name or b.out.name}': {first}: each row is computed by itself"
        if strict:
            raise first
        done.warnings.append(text)
    site.restart()
    try:
        if key not in SHIFTED or b.blocks:
            raise Refused("no rule")
        SHIFTED[key](site)
        done.shifted[f"{b.op}: {first}"] += 1
    except Refused as second:
        site.restart()
        try:
            by_rows(site)
        except Refused as third:
            raise Refused(f"{first}; {second}; {third}") from None
        done.scanned[f"{b.op}: {second}"] += 1


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
