"""The active emitter: appends one typed binding with its provenance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, cast

import onnx
from onnx import NodeProto

from onnxgrad.errors import DoesNotType
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.emission import signature
from onnxgrad.ir.type_inference import per_binding
from onnxgrad.ir.types import TypeMismatch
from onnxgrad.ir.var import EMITTER, Var, current_emitter, names_of


@dataclass(slots=True)
class Emitter:
    """The block that receives emitted bindings, and the options of emission. `known` holds the
    bindings and constants emitted so far if equal ones are shared (hash-consing).
    """

    block: BindingBlock
    emit: Callable[..., Any]  # `emission.emit.emit`, which reads modules above this one
    known: dict[Any, Any] | None = None
    sources: Sequence[Binding] = ()
    made_by: str = ""
    emitted: list[Binding] = field(default_factory=list)
    constants: list[Var] = field(default_factory=list)
    # the sources, and a node with their merged metadata: an attempt emits many bindings from them
    origin: tuple[Sequence[Binding], NodeProto] | None = None

    def discard(self) -> None:
        """Removes the emitted bindings and constants that nothing reads."""
        if self.emitted:
            self.block.remove_unused(self.emitted)
        for v in self.constants:
            if not v.use_count and v.block.initializers.get(v.name) is v:
                v.block.remove_initializer(v)


class in_force(AbstractContextManager[Emitter]):
    """Makes `emitter` the active one inside the block. A class, for speed: every attempt of a rule
    opens one.
    """

    __slots__ = ("_emitter", "_token")

    def __init__(self, emitter: Emitter) -> None:
        self._emitter = emitter

    def __enter__(self) -> Emitter:
        self._token = EMITTER.set(self._emitter)
        return self._emitter

    def __exit__(self, *exc: object) -> None:
        EMITTER.reset(self._token)


def emitter() -> Emitter:
    """The emitter in force; raises InternalError outside of `emitting`."""
    return cast("Emitter", current_emitter())


# between the values of a metadata key that differ between sources
_UNION = " | "


def merged_metadata(sources: Iterable[Binding], made_by: str = "") -> dict[str, str]:
    """Returns the union of the sources' metadata; values that differ are joined, each once."""
    merged: dict[str, str] = {}
    for source in sources:
        for entry in source.node.metadata_props[:]:
            _add(merged, entry.key, entry.value)
    if made_by:
        _add(merged, "onnxgrad.made_by", made_by)
    return merged


def _add(merged: dict[str, str], key: str, value: str) -> None:
    known = merged.setdefault(key, value)
    if known != value:  # most rules have one source, or several of one module
        parts = dict.fromkeys([*known.split(_UNION), *value.split(_UNION)])
        merged[key] = _UNION.join(parts)


def add_provenance(node: NodeProto, at: Emitter) -> None:
    """Writes the origin of a binding into its node's metadata."""
    if at.block.program.ir_version < 10:
        return  # nodes carry metadata from IR 10 on
    if at.origin is None or at.origin[0] is not at.sources:
        origin = NodeProto()
        for key, value in merged_metadata(at.sources, at.made_by).items():
            origin.metadata_props.add(key=key, value=value)
        at.origin = at.sources, origin
    node.MergeFrom(at.origin[1])


def append(
    at: Emitter,
    op_type: str,
    domain: str,
    schema: onnx.defs.OpSchema | None,
    inputs: Sequence[Var | None],
    attrs: Iterable[tuple[str, Any]],
    present: Sequence[bool],
) -> Binding:
    """Appends one typed binding. Handles no literals, opset versions or sharing."""
    program = at.block.program
    while inputs and inputs[-1] is None:
        inputs = inputs[:-1]
    try:
        node = NodeProto(op_type=op_type, domain=domain)
        node.attribute.extend([signature.attribute(schema, n, v) for n, v in attrs])
        if schema is not None:
            signature.check_operands(schema, inputs)
        names = [program.names.fresh(op_type.lower()) if p else "" for p in present]
        node.name = program.names.fresh(f"{op_type}_{names[0] or 'unnamed'}")
        node.input.extend(names_of(inputs))
        node.output.extend(names)
        types = per_binding.result_types(schema, node, inputs, at.block)
    except TypeMismatch as e:
        operands = ", ".join("-" if v is None else f"{v.name}: {v.type or '?'}" for v in inputs)
        raise DoesNotType(f"emitted binding does not type: {op_type}({operands}): {e}") from e
    add_provenance(node, at)
    binding = at.block.append(node, inputs, types)
    at.emitted.append(binding)
    return binding
