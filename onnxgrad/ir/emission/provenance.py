"""Where an emitted binding came from: the metadata of those it stands for, and what made it."""

from __future__ import annotations

from collections.abc import Iterable

from onnx import NodeProto

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.emitter import Emitter

# between the values of one metadata key that sources disagree on
_UNION = " | "


def merged_metadata(sources: Iterable[Binding], made_by: str = "") -> dict[str, str]:
    """The union of the sources' metadata; values that differ are listed one after the other,
    each once.
    """
    merged: dict[str, str] = {}
    for source in sources:
        for entry in source.node.metadata_props[:]:
            _add(merged, entry.key, entry.value)
    if made_by:
        _add(merged, "onnxgrad.made_by", made_by)
    return merged


def _add(merged: dict[str, str], key: str, value: str) -> None:
    known = merged.setdefault(key, value)
    if known != value:  # most laws have one source, or several of one module
        parts = dict.fromkeys([*known.split(_UNION), *value.split(_UNION)])
        merged[key] = _UNION.join(parts)


def add_provenance(node: NodeProto, at: Emitter) -> None:
    """Write what the emitter says of the binding's origin into its metadata."""
    if at.block.program.ir_version < 10:
        return  # nodes carry metadata from IR 10 on
    if at.origin is None or at.origin[0] is not at.sources:
        merged = merged_metadata(at.sources, at.made_by)
        said = NodeProto()
        for key, value in merged.items():
            said.metadata_props.add(key=key, value=value)
        at.origin = at.sources, said
    node.MergeFrom(at.origin[1])
