"""The invariants of the binding block, checked one by one."""

from __future__ import annotations

from collections import Counter

from onnxgrad.errors import InternalError
from onnxgrad.ir.block import Binding, BindingBlock, Var
from onnxgrad.ir.schedule import topological_order


def check_block(block: BindingBlock) -> None:
    """Def-use chains exact, definitions consistent, names unique, operands visible, no cycle; else InternalError."""
    visible: set[Var] = set()
    outer: BindingBlock | None = block
    while outer is not None:
        visible.update(outer.vars())
        outer = None if outer.owner is None else outer.owner.block
    reads: dict[Var, Counter[Binding]] = {}
    returns: Counter[Var] = Counter()
    _check(block, visible, reads, returns)
    for var in block.vars():
        if Counter(var.users) != reads.get(var, Counter()):
            raise InternalError(f"users of '{var.name}' are recorded wrongly")
        if var.returned != returns[var]:
            raise InternalError(f"'{var.name}' is returned {returns[var]} times, recorded as {var.returned}")


def _check(block: BindingBlock, visible: set[Var], reads: dict[Var, Counter[Binding]], returns: Counter[Var]) -> None:
    own = list(block.vars())
    names = Counter(v.name for v in own)
    for name, count in names.items():
        if count > 1:
            raise InternalError(f"'{name}' is defined {count} times in block '{block.name}'")
    visible = visible | set(own)
    for b in block.bindings:
        if b.block is not block:
            raise InternalError(f"binding belongs to another block: {b}")
        for out in b.outputs:
            if out is not None and out.definition is not b:
                raise InternalError(f"'{out.name}' does not know its binding: {b}")
        for v in b.inputs:
            if v is None:
                continue
            if v not in visible:
                raise InternalError(f"'{v.name}' is not visible here: {b}")
            reads.setdefault(v, Counter())[b] += 1
        for nested in b.blocks.values():
            if nested.owner is not b:
                raise InternalError(f"nested block '{nested.name}' does not know its binding: {b}")
            _check(nested, visible, reads, returns)
    for v in (*block.outputs, *block.pinned):
        if v not in visible:
            raise InternalError(f"output '{v.name}' of block '{block.name}' is not visible")
        returns[v] += 1
    topological_order(block)
