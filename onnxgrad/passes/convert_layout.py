"""Chooses the order of axes for whole regions so that the fewest elements are transposed (TVM's
ConvertLayout).
"""

from __future__ import annotations

from typing import ClassVar

from onnxgrad.frozen import frozen
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.operator_index import blocks_in
from onnxgrad.ir.ops import op
from onnxgrad.ir.program import Program
from onnxgrad.ir.var import Var
from onnxgrad.laws.convert_layout import Choice, Region, inverse
from onnxgrad.laws.permeable import Perm, is_free, transposed_constant
from onnxgrad.passes.base import Pass, register, roots
from onnxgrad.rewrite.trace import Trace

_RULE = "convert_layout"
# the most orders that are tried in one block; frequent orders come first
_ORDERS = 8


@register
@frozen
class ConvertLayout(Pass):
    """f(Transpose(x)) = Transpose(f'(x)) for whole regions, where fewer elements are transposed.

    Transposes move through elementwise operators, Concat, Split, Pad, Slice, Softmax, reductions,
    Squeeze and quantization with one scale; axes, pads and constants move along. A minimal cut
    chooses the bindings, so no other choice transposes fewer elements. Values of unknown size stay,
    and a choice must pay for symbols of size one and of many.
    """

    name: ClassVar[str] = "convert-layout"

    def run(self, program: Program, trace: Trace) -> None:
        """Moves regions of each block while some order pays; one rewrite for each region."""
        for root in roots(program):
            for block in blocks_in(root):
                for _ in range(1 + sum(b.is_op("Transpose") for b in block.bindings)):
                    if trace.stopped or not _once(block, trace):
                        break


def _once(block: BindingBlock, trace: Trace) -> bool:
    """Moves the region that saves most. Returns whether there was one."""
    found = [r for perm in _orders(block) if (r := Choice(block, perm).region()) is not None]
    trace.of(_RULE).tried += 1
    if not found:
        return False
    best = max(found, key=lambda r: r.before - r.after)
    where = (
        f"{len(best.members)} bindings in the order {list(best.perm)}: {best.before:,} to "
        f"{best.after:,} transposed elements"
    )
    trace.of(_RULE).matched += 1
    trace.fired(_RULE, where)
    block.schedule()
    _Move(block, best).run()
    return True


def _orders(block: BindingBlock) -> list[Perm]:
    """The permutations of the block's transposes, and their inverses."""
    found: dict[Perm, int] = {}
    for b in block.bindings:
        perm = b.attr("perm") if b.is_op("Transpose") and not b.has_refs else None
        if perm is not None and len(perm) > 2 and list(perm) != sorted(perm):
            for one in (tuple(perm), inverse(tuple(perm))):
                found[one] = found.get(one, 0) + 1
    return sorted(found, key=lambda one: -found[one])[:_ORDERS]


class _Move:
    """Rewrites a region in its new order. Transposes are read before anything changes."""

    def __init__(self, block: BindingBlock, region: Region) -> None:
        choice = Choice(block, region.perm)
        self.block, self.region = block, region
        self.members = [b for b in block.bindings if b in region.members]
        # wanting: transposes into the new order, and their operands
        # moved: values, and the same values in the new order
        self.wanting = {
            b: v for b in block.bindings if choice.wants_other(b) and (v := b.inputs[0]) is not None
        }
        self.moved = {
            v: b.inputs[0]
            for b in block.bindings
            if b.is_op("Transpose") and (v := b.out) and choice.has_other(v) and b.inputs[0]
        }

    def run(self) -> None:
        """Emits the region again, replaces its results, and removes bindings without readers."""
        with emitting(self.block, made_by=_RULE) as emitter:
            for b in self.members:
                self._emit(b)
            gone = self._turned() | dict.fromkeys(self.members)
            for v in [v for b in self.members for v in b.outputs if v in self.moved]:
                if v is not None and (v.returned or any(user not in gone for user in v.users)):
                    undone = op.Transpose(self.moved[v], perm=inverse(self.region.perm))
                    self.block.replace(v, undone)
            self.block.remove_unused(gone)
            emitter.discard()

    def _turned(self) -> dict[Binding, None]:
        """Reuses values that exist in the new order already. Returns the transposes replaced."""
        handed: dict[Var, Var] = {}
        for b, v in self.wanting.items():
            if v in self.moved:
                new = self.moved[v]
                new = handed.get(new, new)  # itself the result of such a transpose
                self.block.replace(b.out, new)
                handed[b.out] = new
        return {b: None for b, v in self.wanting.items() if v in self.moved}

    def _emit(self, b: Binding) -> None:
        found = self.region.members[b]
        operands = [self._other(v) if i in found.data else v for i, v in enumerate(b.inputs)]
        for old, new in zip(b.outputs, found.emit(b, operands), strict=True):
            if old is not None and found.carries:
                self.moved[old] = new
            elif old is not None:
                self.block.replace(old, new)

    def _other(self, v: Var | None) -> Var | None:
        """The value in the new order of the region, transposed if necessary."""
        if v is not None and v not in self.moved:
            perm = self.region.perm
            made = transposed_constant(v, perm) if is_free(v, perm) else None
            self.moved[v] = op.Transpose(v, perm=perm) if made is None else made
        return None if v is None else self.moved[v]
