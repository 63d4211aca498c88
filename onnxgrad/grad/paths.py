"""The paths of adjoints: the values to which a binding passes adjoints, and the values between
sources and targets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias, cast

from onnxgrad.grad.registry import rule_of
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.types import FLOAT_DTYPES, OptionalType, SequenceType, TensorType, Type
from onnxgrad.ir.var import Var


def has_gradient(type_: Type | None) -> bool:
    """Whether values of this type can have a gradient: floating-point tensors, sequences and
    optionals of them, and unknown types, which might be one of those.
    """
    if isinstance(type_, (SequenceType, OptionalType)):
        return has_gradient(type_.elem)
    floats = (*FLOAT_DTYPES, 0)
    return type_ is None or (isinstance(type_, TensorType) and type_.dtype in floats)


def edges(binding: Binding) -> list[Var]:
    """Returns the operands and captures of the binding that can receive a partial from it."""
    rule = rule_of(binding)
    if rule is not None and rule.kind == "zero":
        return []
    if binding.blocks:
        return [v for v in binding.reads() if has_gradient(v.type)]
    return [
        v
        for i, v in enumerate(binding.inputs)
        if v is not None and (rule is None or rule.has_formula(i)) and has_gradient(v.type)
    ]


# the values to which each binding passes adjoints, computed once for several walks
Paths: TypeAlias = Mapping[Binding, Sequence[Var]]


def paths_of(block: BindingBlock) -> Paths:
    """Returns the `edges` of every binding of a block. They are valid until the block changes."""
    return {b: edges(b) for b in block.bindings}


def influenced(block: BindingBlock, sources: Iterable[Var], paths: Paths | None = None) -> set[Var]:
    """Returns `sources`, and the values that depend differentiably on them."""
    block.schedule()
    paths = paths_of(block) if paths is None else paths
    found = set(sources)
    for b in block.bindings:
        if not found.isdisjoint(paths[b]):
            found.update(v for v in b.outputs if v is not None and has_gradient(v.type))
    return found


def reaching(block: BindingBlock, targets: Iterable[Var], paths: Paths | None = None) -> set[Var]:
    """Returns `targets`, and the values on which they depend differentiably."""
    block.schedule()
    found: set[Var | None] = set(targets)
    for b in reversed(block.bindings):
        if not found.isdisjoint(b.outputs):
            found.update(edges(b) if paths is None else paths[b])
    return cast(set[Var], found)
