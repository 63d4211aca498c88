"""Older models are raised to an opset whose operators the rules emit."""

from __future__ import annotations

import onnx
from onnx import ModelProto

from onnxgrad.errors import InputError
from onnxgrad.ir.load import load
from onnxgrad.ir.program import Program
from onnxgrad.ir.save import to_proto

# axes of reductions are operands from here on, ScatterND and ScatterElements add since 16
OPSET = 18
# the oldest IR version that allows it in onnxruntime's eyes is older; metadata of nodes needs 10, which is optional
_IR_VERSION = 8


def raise_opset(program: Program) -> tuple[Program, str]:
    """The program at opset 18 or above, and a note when it had to be converted ("" otherwise).

    Names, metadata and doc strings are carried over where the converted model still has the node. Raises InputError
    when onnx.version_converter cannot convert the model.
    """
    if program.opset >= OPSET:
        return program, ""
    source = to_proto(program, weights=True)
    try:
        converted = onnx.version_converter.convert_version(source, OPSET)
    except (RuntimeError, ValueError) as e:
        reason = str(e).strip().splitlines()[0]
        raise InputError(
            f"the model's opset {program.opset} is below {OPSET} and onnx.version_converter cannot raise it "
            f"({reason}): "
            "export it again at a newer opset"
        ) from e
    _carry_over(source, converted)
    raised = load(converted)
    raised.folder, raised.path = program.folder, program.path
    return raised, f"opset raised from {program.opset} to {OPSET}: the gradient needs its operators"


def _carry_over(source: ModelProto, converted: ModelProto) -> None:
    converted.ir_version = max(source.ir_version, _IR_VERSION)
    del converted.opset_import[:]
    for entry in source.opset_import:
        version = OPSET if entry.domain in ("", "ai.onnx") else entry.version
        converted.opset_import.add(domain=entry.domain, version=version)
    del converted.metadata_props[:]
    converted.metadata_props.extend(source.metadata_props)
    converted.doc_string = source.doc_string
    converted.graph.doc_string = source.graph.doc_string
    del converted.graph.metadata_props[:]
    converted.graph.metadata_props.extend(source.graph.metadata_props)
    before = {name: node for node in source.graph.node for name in node.output if name}
    for node in converted.graph.node:
        old = next((before[name] for name in node.output if name in before), None)
        if old is not None and not node.metadata_props:
            node.metadata_props.extend(old.metadata_props)
            node.doc_string = node.doc_string or old.doc_string
