"""Rows in the nested graphs of If, Loop and Scan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace

import numpy as np
from onnx import ValueInfoProto, helper

from onnxgrad.batching.followed import Batched, join
from onnxgrad.batching.layout import OLDEST_SCAN, OWN, Layout, Refused
from onnxgrad.batching.run_time_sizes import RunTimeSizes
from onnxgrad.batching.site import Site, site_of, with_rows
from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.clone import clone_block
from onnxgrad.ir.domains import BROADCASTING, ELEMENTWISE, REDUCTIONS
from onnxgrad.ir.emission.emit import emit_with_blocks, emitting
from onnxgrad.ir.emission.emitter import emitter
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import FLOAT_DTYPES, TensorType, Type, type_to_proto
from onnxgrad.ir.var import Var
from onnxgrad.laws.open_if import take_branch

Visit = Callable[[Binding, Batched], None]

# no operand makes these fail, and they compute the same wherever they stand
_SAFE = frozenset({
    *ELEMENTWISE, *BROADCASTING, *REDUCTIONS, "Concat", "Constant", "ConstantOfShape", "Conv",
    "Flatten", "Gemm", "LayerNormalization", "LogSoftmax", "MatMul", "Shape", "Softmax", "Squeeze",
    "Transpose", "Unsqueeze",
}) - {"Mod", "Div"}  # fmt: skip
_DIVISIONS = frozenset({"Mod", "Div"})  # by an integer 0 the process ends


def follow_blocks(site: Site, done: Batched, visit: Visit) -> bool:
    """Follows the rows into the graphs of a node. Returns whether that was possible: otherwise
    nothing has changed, and the node runs once per row.
    """
    b = site.binding
    if not done.branches or b.domain:
        return False
    if b.op == "If":
        if site.at(0) is None:
            _follow_branches(site, done, visit)
            return True
        return done.mapped and _select(site, done, visit)
    if b.op in ("Loop", "Scan") and done.mapped and b.block.opsets.get("", 0) >= OLDEST_SCAN:
        try:
            _follow_body(site, done, visit)
        except Refused:
            return False
        return True
    return False


# ---- If ------------------------------------------------------------------------------------------


def _follow_branches(site: Site, done: Batched, visit: Visit) -> None:
    """Follows the rows into an If whose condition all rows share; they are on one axis of each
    result.
    """
    b = site.binding
    inside = {}
    for block in b.blocks.values():
        within = done.within()
        block.schedule()
        with emitting(block, made_by="open-batch"):
            for nested in list(block.bindings):
                visit(nested, within)
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
    """Moves the rows of result `i` of all branches to one axis, and returns it."""
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


def _select(site: Site, done: Batched, visit: Visit) -> bool:
    """Computes both branches of an If whose condition differs from row to row, and choose: if
    neither can fail, and all results have one shape.
    """
    b, condition = site.binding, site.operand(0)
    blocks = [b.blocks["then_branch"], b.blocks["else_branch"]]
    ends = list(zip(*(block.outputs for block in blocks), strict=True))
    same = all(x.shape is not None and x.shape == y.shape for x, y in ends)
    safe = all(_is_safe(nested) for block in blocks for nested in block.bindings)
    if condition is None or not same or not safe:
        return False
    before = set(b.block.bindings)
    with site.in_one_row():
        yes, no = (take_branch(b, block) for block in blocks)
    if not isinstance(yes, dict) or not isinstance(no, dict):
        return False
    if condition.rank:
        condition = op.Reshape(condition, np.zeros(0, np.int64))
    made = {out: op.Where(condition, yes[out], no[out]) for out in yes}
    for out, chosen in made.items():
        b.block.replace(out, chosen)
    b.block.remove_unused([b])
    b.block.schedule()
    new = [nested for nested in b.block.bindings if nested not in before]
    done.shifted["If: both branches, and a Where"] += 1
    for nested in new:
        visit(nested, done)
    return True


def _is_safe(b: Binding) -> bool:
    if b.is_op("If"):
        return all(_is_safe(nested) for block in b.blocks.values() for nested in block.bindings)
    floats = b.op in _DIVISIONS and b.out.dtype in FLOAT_DTYPES
    return (b.op in _SAFE or floats) and not b.domain and not b.blocks


# ---- Loop and Scan -------------------------------------------------------------------------------


@frozen
class _Body:
    """The copy of a body. `lead`: the number of its inputs, and of operands, before the states;
    `states`: their number; `ends`: of its outputs before theirs. `moving`: its inputs that depend
    on rows; `moves`: whether each result of the node does.
    """

    block: BindingBlock
    lead: int
    states: int
    ends: int
    moving: Set[Var]
    moves: Sequence[bool] = ()


def _follow_body(site: Site, done: Batched, visit: Visit) -> None:
    """Follows the rows through a body, whose number of steps all rows share. States that depend on
    rows have them in front. Raises Refused; the node is as before then.
    """
    b, loop = site.binding, site.op == "Loop"
    if loop and (site.at(0) is not None or site.at(1) is not None):
        raise Refused("the number of its steps differs from row to row")
    if not loop and any(any(b.attr(f"scan_{end}_axes") or ()) for end in ("input", "output")):
        raise Refused("its sequences have other axes")
    lead = 2 if loop else 0
    states = len(b.inputs) - lead - (0 if loop else int(b.attr("num_scan_inputs")))
    with site.in_one_row():
        block = clone_block(b.blocks["body"], b.block, {}, owner=b, bound=None, prefix="")
    try:
        start = {block.inputs[k] for k in range(lead, len(b.inputs)) if site.at(k) is not None}
        body = _Body(block, lead, states, int(loop), start)
        body = _moving(body, done)
        if loop and block.outputs[0] in body.moving:
            raise Refused("the number of its steps differs from row to row")
        if any(v.shape is None for v in (*block.inputs[lead:], *block.outputs)):
            raise Refused("a value of its body has no known rank")
        within = _inside(body, done, visit)
        operands = list(b.inputs)
        for k in range(lead, len(operands)):
            if block.inputs[k] in body.moving:
                operands[k] = rows = with_rows(site, operands[k])
                if k >= lead + states:
                    perm = [1, 0, *range(2, (rows.rank or 0))]
                    operands[k] = op.Transpose(rows, perm=perm)
    except (InputError, Refused) as error:
        block.release()
        raise Refused(str(error)) from None
    done.in_place, done.shifted, done.scanned = within.in_place, within.shifted, within.scanned
    _replace(site, body, operands)


def _moving(body: _Body, done: Batched) -> _Body:
    """The body with its values that depend on rows, from step to step."""
    found, block = set(body.moving), body.block
    block.schedule()

    def depends(v: Var) -> bool:
        return v in found or done.layouts.get(v) is not None

    while True:
        before = len(found)
        for b in block.bindings:
            if any(map(depends, b.reads())):
                found.update(v for v in b.outputs if v is not None)
        for i in range(body.states):
            if depends(block.outputs[body.ends + i]):
                found.add(block.inputs[body.lead + i])
        if len(found) == before:
            break
    found.update(v for v in block.outputs if depends(v))
    ends = block.outputs[body.ends + body.states :]
    states = block.inputs[body.lead : body.lead + body.states]
    return replace(body, moving=found, moves=[v in found for v in (*states, *ends)])


def _inside(body: _Body, done: Batched, visit: Visit) -> Batched:
    """Follows the rows through the copy of a body."""
    within, block = done.within(), body.block
    within.shifted, within.scanned = Counter(done.shifted), Counter(done.scanned)
    bindings = list(block.bindings)
    with emitting(block, made_by="vmap"):
        moved = [v for v in block.inputs if v in body.moving]
        for v in moved:
            v.type = TensorType(v.dtype, (1, *(v.shape or ())))
            within.layouts[v] = OWN
            join(v, OWN, within)
        for nested in bindings:
            visit(nested, within)
        before, kept = list(block.outputs), set[Var]()
        for v in before:
            v.returned -= 1
        block.outputs.clear()
        for i, v in enumerate(before, -body.ends):
            rows = i >= 0 and body.moves[i]
            made = with_rows(site_of(v, within.layouts, within.sizes), v) if rows else v
            if made.definition is None or made.block is not block or made in kept:
                made = op.Identity(made)
            kept.add(made)
            block.add_output(made)
            shape = (None, *(made.shape or ())[1:]) if rows else made.shape
            type_ = type_to_proto(TensorType(made.dtype, shape))
            block.declared[made] = ValueInfoProto(name=made.name, type=type_)
        for v in moved:
            v.type = TensorType(v.dtype, (None, *(v.shape or ())[1:]))
        emitter().discard()
    return within


def _replace(site: Site, body: _Body, operands: Sequence[Var | None]) -> None:
    """The node with its new body; stacked results get the rows in front of the steps."""
    b, types = site.binding, list[Type | None]()
    for i, v in enumerate(b.outputs):
        shape = None if v is None else v.shape
        if shape is not None and body.moves[i]:
            shape = (1, *shape) if i < body.states else (*shape[:1], 1, *shape[1:])
        types.append(None if v is None else TensorType(v.dtype, shape))
    made = emit_with_blocks(b.op, operands, {"body": body.block}, types, **b.attrs)
    site.replaced = []
    for i, (old, new) in enumerate(zip(b.outputs, made, strict=True)):
        if old is None:
            continue
        if body.moves[i]:
            if i >= body.states:
                new = op.Transpose(new, perm=[1, 0, *range(2, new.rank or 0)])
            site.replaced.append(site.joined(old, new))
        else:
            site.replaced.append((new, None))
