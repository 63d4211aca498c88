"""Replaces an If that always takes the same branch by that branch."""

from __future__ import annotations

from typing import Any

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.clone import clone_bindings, clone_sparse
from onnxgrad.ir.emission.emit import constant
from onnxgrad.ir.protobufs import copy_of
from onnxgrad.ir.var import Var
from onnxgrad.rewrite.attempt import fits
from onnxgrad.rewrite.pattern import P, capture
from onnxgrad.rewrite.trace import decline
from onnxgrad.rewrite.worklist import count, rewrite

c = capture("c")


@rewrite(P.If(c.const), shrinks=count("If"))
def if_of_constant(c: Var, root: Binding) -> Any:
    """If(true, f, g) = f and If(false, f, g) = g: the branch's bindings stand in the enclosing
    block
    """
    chooses = c.const
    if chooses is None or chooses.size != 1:
        return None
    return take_branch(root, root.blocks["then_branch" if chooses.item() else "else_branch"])


def take_branch(root: Binding, branch: BindingBlock) -> Any:
    """Copies the branch that an If takes into the If's block. Returns the values that replace the
    If's results, or None or a Decline if that is not possible.
    """
    results = list(zip(root.outputs, branch.outputs))
    if not any(out is not None and out.use_count for out, _ in results):
        return None
    if any(
        out is not None and out.type and new.type and not fits(out.type, new.type)
        for out, new in results
    ):
        return decline("the branch's result has another type than the If says")
    inner = [block for b in branch.walk() for block in b.blocks.values()]
    # a copy would lose the default value of a parameter
    defaults = any(v.initializer is not None for block in inner for v in block.inputs)
    if len(results) != len(root.outputs) or branch.inputs or defaults:
        return decline("the branch cannot be copied")
    mapping: dict[Var, Var | None] = {}
    if not _constants(branch, root.block, mapping):
        return decline("a constant of the branch cannot be read")
    clone_sparse(branch, root.block, mapping)
    branch.schedule()  # a rewrite may have left a binding before one of its operands
    clone_bindings(branch.bindings, root.block, mapping)
    found = {out: mapping.get(new, new) for out, new in results if out is not None}
    return {out: new for out, new in found.items() if new is not None}


def _constants(branch: BindingBlock, into: BindingBlock, mapping: dict[Var, Var | None]) -> bool:
    """Copies the branch's initializers to `into`, as Constants in a function and below IR 4.
    Returns false if one cannot be read.
    """
    as_nodes = into.is_function or into.program.ir_version < 4
    if as_nodes and any(v.const is None for v in branch.initializers.values()):
        return False
    for v in branch.initializers.values():
        if as_nodes:
            mapping[v] = constant(v.const)
        elif v.initializer is not None:
            tensor = copy_of(v.initializer)
            tensor.name = into.program.names.fresh(v.name)
            mapping[v] = into.add_initializer(tensor, v)
    return True
