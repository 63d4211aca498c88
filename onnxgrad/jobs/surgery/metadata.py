"""Changes of a model's metadata and header, and of nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onnx import ModelProto, ValueInfoProto

from onnxgrad.errors import InputError, InternalError
from onnxgrad.ir import domains
from onnxgrad.ir.program import HEADER, Program
from onnxgrad.ir.protobufs import described, every_graph, model_nodes
from onnxgrad.ir.save import to_proto
from onnxgrad.limits import Interval
from onnxgrad.name_lists import names_among
from onnxgrad.passes.strip_metadata import StripMetadata
from onnxgrad.rewrite.trace import Trace
from onnxgrad.verify.feeds.declared_ranges import check_inputs, declare

_MOST = 1 << 63


def change(
    program: Program,
    values: Mapping[str, str],
    unset: Sequence[str],
    header: Mapping[str, str | int],
    strip: str | None = None,
    ranges: Mapping[str, Interval | None] | None = None,
) -> tuple[str, ...]:
    """Sets and removes entries of a Program. `strip`: a glob of the keys that are removed from
    nodes, graphs, values and weights. `ranges`: intervals of inputs, None to remove one. Returns
    notes.
    """
    before, trace = to_proto(program), Trace()
    if strip is not None:
        StripMetadata(keys=strip).run(program, trace)
    for key in names_among(unset, program.metadata, "unset"):
        if key in values:
            raise InputError(f"metadata {key!r} cannot be both set and unset")
        if program.metadata.pop(key, None) is None:
            known = ", ".join(program.metadata) or "none"
            raise InputError(f"metadata {key!r} to unset does not exist (there is: {known})")
    for key, text in values.items():
        if not isinstance(key, str) or not isinstance(text, str) or not key:
            raise InputError(
                f"metadata {key!r}: the key must not be empty, the value must be text, not {text!r}"
            )
        program.metadata[key] = text
    _declare(program, ranges or {}, {v.name: v for v in before.graph.input})
    _set_header(program, header)
    _check_rest(before, to_proto(program), stripped=strip is not None)
    return tuple(trace.notes)


def _declare(
    program: Program, ranges: Mapping[str, Interval | None], known: Mapping[str, ValueInfoProto]
) -> None:
    check_inputs(ranges, known)
    for var in program.main.inputs:
        if var.name in ranges:
            declared = ValueInfoProto()
            declared.CopyFrom(known[var.name])
            declare(declared, ranges[var.name])
            program.main.declared[var] = declared
            program.main.touch()


def _set_header(program: Program, header: Mapping[str, str | int]) -> None:
    for name, value in header.items():
        wanted = int if name == "model_version" else str
        if not isinstance(value, wanted) or isinstance(value, bool):
            kind = "a whole number" if wanted is int else "text"
            raise InputError(f"{name} must be {kind}, not {value!r}")
        if isinstance(value, int) and not -_MOST <= value < _MOST:
            raise InputError(f"{name}: {value} has more than 64 bits")
        program.header[name] = value


def _check_rest(before: ModelProto, after: ModelProto, *, stripped: bool) -> None:
    """Raises InternalError if anything else differs. If a domain is imported twice, the last
    version counts and is written.
    """
    for model in (before, after):
        known = domains.versions(model.opset_import)
        for entry in model.opset_import:
            entry.version = known[domains.canonical(entry.domain)]
        for value in model.graph.input:
            declare(value, None)
        for name in ("metadata_props", *HEADER):
            model.ClearField(name)
        if stripped:
            bodies = (*every_graph(model.graph), *model.functions)
            for part in (*model_nodes(model), *(p for body in bodies for p in described(body))):
                part.ClearField("metadata_props")
                part.ClearField("doc_string")
    if before != after:
        raise InternalError("more of the model changed than its metadata")
