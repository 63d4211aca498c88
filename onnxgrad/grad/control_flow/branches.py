"""The gradient of If. Ifs whose condition is known beforehand are replaced by their branch."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np

from onnxgrad.grad.control_flow.bodies import (
    Answer,
    Body,
    body_again,
    refuse_random,
    return_adjoint,
    walk_back,
)
from onnxgrad.grad.inlining import correct_types
from onnxgrad.grad.paths import influenced, reaching
from onnxgrad.grad.registry import vjp_blocks
from onnxgrad.grad.sequences import adjoint_type
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.emission.emit import emit_with_blocks, emitting
from onnxgrad.ir.emission.fill_and_reshape import zeros_like
from onnxgrad.ir.identity_barrier import insert_barrier
from onnxgrad.ir.type_inference.per_binding import types_of
from onnxgrad.ir.types import Array, TypeMismatch, element_count, is_static
from onnxgrad.ir.var import Var
from onnxgrad.laws.constant_values import evaluate
from onnxgrad.laws.open_if import take_branch


def if_gradient(b: Binding, g: Sequence[Any], wanted: Sequence[Var]) -> Answer:
    """If(c, f, h): an If over the same condition whose branches return the adjoints of f and h."""
    branches = {}
    for name in ("then_branch", "else_branch"):
        source = b.blocks[name]
        refuse_random(b, source)
        with body_again(source) as block:
            outs = Body.of(source).copy(block)
            arriving = [_possible(adjoint, out) for adjoint, out in zip(g, outs, strict=True)]
            found = walk_back(block, outs, arriving, wanted)
            for v in wanted:
                return_adjoint(block, found.get(v), v)
        branches[name] = block
    results = emit_with_blocks("If", [b.inputs[0]], branches, [adjoint_type(v) for v in wanted])
    return dict(zip(wanted, results, strict=True))


vjp_blocks("If", if_gradient, notes="the branch that was taken; the condition receives nothing")


def _possible(adjoint: Any, out: Var) -> Any:
    """Returns the adjoint of a branch's result, or zeros if its shape cannot be the result's.

    Exporters write both outcomes of a test of ranks. Readers of the If accept one shape only, so
    the branch with the other shape is never taken, but its body must still be valid.
    """
    here, there = out.shape, None if adjoint is None else adjoint.shape
    if here is None or there is None:
        return adjoint
    sizes = [(a, b) for a, b in zip(here, there) if isinstance(a, int) and isinstance(b, int)]
    return adjoint if len(here) == len(there) and all(a == b for a, b in sizes) else zeros_like(out)


# ---- Ifs with a known condition, replaced before the walk ----------------------------------------
#
# PyTorch's TorchScript exporter leaves such Ifs around scatters and squeezes. It declares the shape
# of the branch that is never taken for their results. After the replacement the types are right.

# bindings searched behind a condition: shape arithmetic is short
_DEPTH = 16


def open_decided(
    block: BindingBlock, targets: Collection[Var], requested: Collection[Var], others: Iterable[Var]
) -> list[Binding]:
    """Replaces each If between `requested` and `targets` by its branch, if sizes and constants
    decide the condition.

    A value of these, or of `others`, that such an If defined is defined by an Identity afterwards.
    Returns these Identities.
    """
    kept, anchors, left = {*targets, *requested, *others}, list[Binding](), set[Binding]()
    while True:
        ifs = [b for b in block.bindings if b.is_op("If") and b not in left]
        if not ifs:
            return anchors
        needed = influenced(block, requested) & reaching(block, targets)
        for b in ifs:
            left.add(b)
            taken = _value(b.inputs[0], {}) if any(v in needed for v in b.outputs) else None
            if taken is not None and taken.size == 1:
                name = "then_branch" if taken.item() else "else_branch"
                anchors += _open(b, b.blocks[name], kept)


def _open(b: Binding, branch: BindingBlock, kept: Collection[Var]) -> list[Binding]:
    block = b.block
    anchors = [insert_barrier(v) for v in list(b.outputs) if v is not None and v in kept]
    with emitting(block, sources=(b,), made_by="gradient"):
        found = take_branch(b, branch)
    if not isinstance(found, dict):
        return anchors
    for out, new in found.items():
        block.replace(out, new)
    block.remove(b)
    block.schedule()
    _retype(block, set(found.values()))
    correct_types(anchors)
    return anchors


def _retype(block: BindingBlock, changed: set[Var]) -> None:
    """Infers the types of values computed from `changed` again and drops their declared types."""
    for b in block.bindings:
        if b.blocks or changed.isdisjoint(b.inputs):
            continue
        try:
            types = types_of(b)
        except TypeMismatch:
            continue  # later declarations of the file may be wrong as well
        for out, found in zip(b.outputs, types):
            if out is not None and found is not None:
                out.type = found
                changed.add(out)


def _value(v: Var | None, known: dict[Var, Array | None], depth: int = _DEPTH) -> Array | None:
    """Returns the value of a condition or of one of its operands, or None unless sizes and
    constants decide it. `known` holds the values of operands, which may be shared.
    """
    if v is None or depth == 0:
        return None
    if v not in known:
        known[v] = _computed(v, known, depth)
    return known[v]


def _computed(v: Var, known: dict[Var, Array | None], depth: int) -> Array | None:
    if v.const is not None or v.definition is None:
        return v.const
    b = v.definition
    if b.domain != "" or b.blocks:
        return None
    if b.op == "Size" and b.inputs[0] is not None:
        count = element_count(b.inputs[0].shape)
        return None if count is None else np.array(count, np.int64)
    if b.op == "Shape" and b.inputs[0] is not None:
        shape = b.inputs[0].shape
        sizes = None if shape is None else shape[b.attr("start", 0) : b.attr("end", len(shape))]
        return np.array(sizes, np.int64) if is_static(sizes) else None
    operands: list[Array | None] = []
    for x in b.inputs:
        operands.append(_value(x, known, depth - 1))
        if x is not None and operands[-1] is None:
            return None
    return evaluate(b, operands)
