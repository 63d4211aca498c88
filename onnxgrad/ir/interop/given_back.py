"""A program as the kind of model that was given, and as another library's graph."""

from __future__ import annotations

from typing import Any

import onnx
from onnx import ModelProto

from onnxgrad.errors import InputError
from onnxgrad.ir import weights as external
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.interop.given import is_instance
from onnxgrad.ir.load import ModelLike, load
from onnxgrad.ir.program import Program
from onnxgrad.ir.save import to_proto
from onnxgrad.options import known_keywords


def check_room(program: Program, model: Any) -> None:
    """Raise InputError now, not after long work, when `like` would have to put over 2 GB into
    one ModelProto.
    """
    if isinstance(model, (Program, BindingBlock, ModelProto)) or is_instance(
        model, "onnx_ir", "Model"
    ):
        return
    total = sum(_size(t) for t in external.outside(program.proto))
    if total >= external.MAX_BYTES:
        raise InputError(f"the model's weights ({total / 1e9:.1f} GB) {external.TOO_LARGE}")


def _size(tensor: onnx.TensorProto) -> int:
    """The bytes that an external tensor declares; 0 where it does not say."""
    length = next((e.value for e in tensor.external_data if e.key == "length"), "")
    return int(length) if length.isdecimal() and len(length) < 20 else 0


def like(program: Program, model: Any) -> Any:
    """The program in the kind that `model` is; what has no kind to come back as gives a
    ModelProto with its weights.
    """
    if isinstance(model, Program):
        return program
    if isinstance(model, BindingBlock):
        return program.main
    if is_instance(model, "onnx_graphsurgeon", "Graph"):
        return to_graphsurgeon(program)
    if is_instance(model, "onnx_ir", "Model"):
        import onnx_ir

        return onnx_ir.from_proto(to_proto(program))
    return to_proto(program, weights=not isinstance(model, ModelProto))


@known_keywords
def to_graphsurgeon(model: ModelLike) -> Any:
    """Any model as an onnx_graphsurgeon.Graph; what graphsurgeon does not know (node metadata,
    ...) is lost there.
    """
    import onnx_graphsurgeon as gs

    return gs.import_onnx(to_proto(load(model), weights=True))
