"""A model's header as a protobuf: versions, opsets, metadata, words; and whether it is as it was
read.
"""

from __future__ import annotations

from onnx import ModelProto

from onnxgrad.ir import domains
from onnxgrad.ir.program import Program


def header_changed(program: Program) -> bool:
    """Whether anything beside the main graph is not what was read."""
    source = program.proto
    opsets = domains.versions(source.opset_import)
    functions = [(f.domain, f.name, f.overload) for f in source.functions]
    return (
        program.ir_version != source.ir_version
        or program.opsets != opsets
        or list(program.functions) != functions
        or _words_changed(program)
        or any(block.changed for block in program.functions.values())
    )


def _words_changed(program: Program) -> bool:
    """Whether its metadata or header is not what was read."""
    source = program.proto
    return program.metadata != {e.key: e.value for e in source.metadata_props} or any(
        value != getattr(source, name) for name, value in program.header.items()
    )


def write_header(program: Program, model: ModelProto) -> None:
    """Write what of the header a program can change: its IR version, its words, its opsets."""
    model.ir_version = program.ir_version
    if _words_changed(program):
        _write_words(program, model)
    _write_opsets(program, model)


def _write_words(program: Program, model: ModelProto) -> None:
    """The words of the header that changed, and the entries of the metadata, which keep their
    order; new ones come last.
    """
    for name, value in program.header.items():
        if value != getattr(model, name):
            model.ClearField(name)
            if value:
                setattr(model, name, value)
    entries = [e for e in model.metadata_props if e.key in program.metadata]
    known = {e.key for e in entries}
    made = ModelProto()
    for e in entries:
        made.metadata_props.add().CopyFrom(e)
        made.metadata_props[-1].value = program.metadata[e.key]
    for key, text in program.metadata.items():
        if key not in known:
            made.metadata_props.add(key=key, value=text)
    del model.metadata_props[:]
    model.metadata_props.extend(made.metadata_props)


def _write_opsets(program: Program, model: ModelProto) -> None:
    written = set()
    for entry in program.proto.opset_import:
        domain = domains.canonical(entry.domain)
        if domain in program.opsets:
            model.opset_import.add().CopyFrom(entry)
            model.opset_import[-1].version = program.opsets[domain]
            written.add(domain)
    for domain, version in program.opsets.items():
        if domain not in written:
            model.opset_import.add(domain=domain, version=version)
