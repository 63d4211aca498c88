"""The two graph libraries that users hold in their hands: onnx_graphsurgeon and onnx_ir, at the edges only."""

from __future__ import annotations

import sys
from typing import Any, cast

from onnx import ModelProto

from onnxgrad.errors import InputError
from onnxgrad.ir.program import Program


def to_model_proto(model: Any) -> ModelProto:
    """The ModelProto of a gs.Graph or an onnx_ir.Model, neither of which is changed. InputError for anything else."""
    # someone who passes one of these has imported its library; we do not import it to ask
    if _is_instance(model, "onnx_graphsurgeon", "Graph"):
        import onnx_graphsurgeon as gs

        # graphsurgeon would stamp the newest IR version, which runtimes refuse
        proto: ModelProto = gs.export_onnx(
            model.copy(), do_type_check=False, ir_version=getattr(model, "ir_version", None) or 10
        )
        return proto
    if _is_instance(model, "onnx_ir", "Model"):
        import onnx_ir

        return cast(ModelProto, onnx_ir.to_proto(model))
    raise InputError(
        "a model must be a path, bytes, ModelProto, onnx_graphsurgeon.Graph or onnx_ir.Model, "
        f"not {type(model).__name__}"
    )


def like(program: Program, model: Any) -> Any:
    """The program in the kind that `model` is; paths and bytes give a ModelProto with its weights loaded."""
    from onnxgrad.ir.save import to_proto

    if _is_instance(model, "onnx_graphsurgeon", "Graph"):
        return to_graphsurgeon(program)
    if _is_instance(model, "onnx_ir", "Model"):
        import onnx_ir

        return onnx_ir.from_proto(to_proto(program))
    return to_proto(program, weights=not isinstance(model, ModelProto))


def to_graphsurgeon(program: Program) -> Any:
    """The program as an onnx_graphsurgeon.Graph; what graphsurgeon does not know (node metadata, ...) is lost there."""
    import onnx_graphsurgeon as gs

    from onnxgrad.ir.save import to_proto

    return gs.import_onnx(to_proto(program, weights=True))


def from_graphsurgeon(graph: Any) -> Program:
    """The Program of an onnx_graphsurgeon.Graph."""
    from onnxgrad.ir.load import load

    return load(graph)


def _is_instance(model: Any, module: str, name: str) -> bool:
    found = sys.modules.get(module)
    return found is not None and isinstance(model, getattr(found, name))
