"""The ways of adjoints: the values that receive some from a binding, and those between sources and
targets.
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
    """Floating-point tensors, sequences and optionals of them; a value of unknown type might be
    one.
    """
    if isinstance(type_, (SequenceType, OptionalType)):
        return has_gradient(type_.elem)
    floats = (*FLOAT_DTYPES, 0)
    return type_ is None or (isinstance(type_, TensorType) and type_.dtype in floats)


def edges(binding: Binding) -> list[Var]:
    """The values that the binding reads and that can receive a partial from it."""
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


# the values to which adjoints go from each binding, computed once for several walks
Paths: TypeAlias = Mapping[Binding, Sequence[Var]]


def paths_of(block: BindingBlock) -> Paths:
    """The `edges` of every binding of a block, as long as nothing about it changes."""
    return {b: edges(b) for b in block.bindings}


def influenced(block: BindingBlock, sources: Iterable[Var], paths: Paths | None = None) -> set[Var]:
    """The values that depend differentiably on `sources`."""
    block.schedule()
    paths = paths_of(block) if paths is None else paths
    found = set(sources)
    for b in block.bindings:
        if not found.isdisjoint(paths[b]):
            found.update(v for v in b.outputs if v is not None and has_gradient(v.type))
    return found


def reaching(block: BindingBlock, targets: Iterable[Var], paths: Paths | None = None) -> set[Var]:
    """The values on which `targets` depend differentiably."""
    block.schedule()
    found: set[Var | None] = set(targets)
    for b in reversed(block.bindings):
        if not found.isdisjoint(b.outputs):
            found.update(edges(b) if paths is None else paths[b])
    return cast(set[Var], found)
