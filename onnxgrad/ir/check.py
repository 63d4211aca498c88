"""The invariants of the binding block, checked one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from onnxgrad.errors import InternalError
from onnxgrad.ir.topological_order import topological_order

if TYPE_CHECKING:
    from onnxgrad.ir.binding import Binding
    from onnxgrad.ir.block import BindingBlock
    from onnxgrad.ir.var import Var


def check_block(block: BindingBlock) -> None:
    """Def-use chains exact, definitions consistent, names unique, operands visible, no cycle;
    else InternalError.
    """
    visible: dict[str, Var] = {}
    outer = None if block.owner is None else block.owner.block
    while outer is not None:
        visible = {**{v.name: v for v in outer.vars()}, **visible}
        outer = None if outer.owner is None else outer.owner.block
    checker = _Checker()
    checker.block(block, visible)
    for var in checker.defined:
        if Counter(var.users) != checker.reads.get(var, Counter()):
            raise InternalError(f"users of '{var.name}' are recorded wrongly")
        if var.returned != checker.returns[var]:
            raise InternalError(
                f"'{var.name}' is returned {checker.returns[var]} times, recorded as {var.returned}"
            )


class _Checker:
    """Walks the blocks and counts who reads and who returns each value."""

    def __init__(self) -> None:
        self.defined: list[Var] = []
        self.reads: dict[Var, Counter[Binding]] = {}
        self.returns: Counter[Var] = Counter()

    def block(self, block: BindingBlock, outer: Mapping[str, Var]) -> None:
        own = list(block.vars())
        _check_definitions(block, own)
        self.defined += own
        # by name, because names are all that the file keeps
        visible = {**outer, **{v.name: v for v in own}}
        for b in block.bindings:
            self._binding(b, block, visible)
        for v in (*block.outputs, *block.pinned):
            if visible.get(v.name) is not v:
                raise InternalError(f"output '{v.name}' of block '{block.name}' is not visible")
            self.returns[v] += 1
        topological_order(block)

    def _binding(self, b: Binding, block: BindingBlock, visible: Mapping[str, Var]) -> None:
        if b.block is not block:
            raise InternalError(f"binding belongs to another block: {b}")
        for out in b.outputs:
            if out is not None and out.definition is not b:
                raise InternalError(f"'{out.name}' does not know its binding: {b}")
        for v in b.inputs:
            if v is None:
                continue
            if visible.get(v.name) is not v:
                raise InternalError(f"'{v.name}' is not visible here: {b}")
            self.reads.setdefault(v, Counter())[b] += 1
        for nested in b.blocks.values():
            if nested.owner is not b:
                raise InternalError(f"nested block '{nested.name}' does not know its binding: {b}")
            self.block(nested, visible)


def _check_definitions(block: BindingBlock, own: Sequence[Var]) -> None:
    """Each name once, each value in its own block, each constant with its tensor."""
    for name, count in Counter(v.name for v in own).items():
        if count > 1:
            raise InternalError(f"'{name}' is defined {count} times in block '{block.name}'")
    for v in own:
        if v.block is not block:
            raise InternalError(f"'{v.name}' belongs to another block than '{block.name}'")
    for name, v in block.initializers.items():
        if v.name != name or v.initializer is None:
            raise InternalError(f"initializer '{name}' of block '{block.name}' is recorded wrongly")
