"""The kinds of models that users hold in their hands, on their way in.

Two libraries' graphs go in and come out as their own kind: onnx_graphsurgeon's Graph and onnx_ir's
Model. Three kinds go in and come out as a ModelProto: torch's ONNXProgram, an onnxscript function,
a stream such as BytesIO. None of these libraries is imported to ask what something is: who passes
one of their objects has imported it.
"""

from __future__ import annotations

import os
import sys
from typing import Any, cast

from onnx import ModelProto

from onnxgrad.errors import InputError
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.program import Program


def settled(model: Any) -> Any:
    """The model as a path, bytes, ModelProto or Program, which can be read again and again; it is
    not changed.

    Raises InputError for what is no model, and for the block of a function or of a nested graph.
    """
    if isinstance(model, (str, os.PathLike, bytes, ModelProto, Program)):
        return model
    if isinstance(model, BindingBlock):
        if model is not model.program.main:
            raise InputError(
                f"block '{model.name}' is a part of a model: pass its program, or the main block"
            )
        return model.program
    if isinstance(model, (bytearray, memoryview)):
        return bytes(model)
    # asked of the class, since graphsurgeon's graphs complain about every attribute that they lack
    if hasattr(type(model), "getvalue"):  # BytesIO: all of it, wherever it stands
        return _bytes(model.getvalue(), model)
    if hasattr(type(model), "read"):
        return _bytes(model.read(), model)
    return to_model_proto(model)


def _bytes(data: Any, stream: Any) -> bytes:
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise InputError(
            f"a model must come from a binary stream, not from a {type(stream).__name__} of text"
        )
    return bytes(data)


def to_model_proto(model: Any) -> ModelProto:
    """The ModelProto of another library's model, which is not changed. InputError for anything
    else.
    """
    if is_instance(model, "onnx_graphsurgeon", "Graph"):
        import onnx_graphsurgeon as gs

        # graphsurgeon would stamp the newest IR version, which runtimes refuse
        proto: ModelProto = gs.export_onnx(
            model.copy(), do_type_check=False, ir_version=getattr(model, "ir_version", None) or 10
        )
        return proto
    if is_instance(model, "onnx_ir", "Model"):
        import onnx_ir

        return cast(ModelProto, onnx_ir.to_proto(model))
    if _names(model) & {"ONNXProgram"}:
        return _checked(model.model_proto, model)
    if _names(model) & {"OnnxFunction", "TracedOnnxFunction"} and hasattr(model, "to_model_proto"):
        try:
            found = model.to_model_proto()
        # its library raises TypeError, ValueError and others for what it cannot say as a model
        except Exception as e:
            name = getattr(model, "name", type(model).__name__)
            reason = " ".join(str(e).split())[:200]
            raise InputError(
                f"the onnxscript function '{name}' gives no model: {type(e).__name__}: {reason}"
            ) from e
        return _checked(found, model)
    raise InputError(
        "a model must be a path, bytes, ModelProto, onnx_graphsurgeon.Graph, onnx_ir.Model, torch "
        "ONNXProgram, onnxscript function, binary stream or onnxgrad Program, not "
        f"{type(model).__name__}"
    )


def _checked(found: Any, model: Any) -> ModelProto:
    if not isinstance(found, ModelProto):
        raise InputError(
            f"the {type(model).__name__} gives a {type(found).__name__}, not a ModelProto"
        )
    return found


def is_instance(model: Any, module: str, name: str) -> bool:
    """Whether it is one of another library's class, which is not imported to ask: who has its
    object did so.
    """
    found = sys.modules.get(module)
    return found is not None and isinstance(model, getattr(found, name))


def _names(model: Any) -> set[str]:
    """The names of the object's classes: what it is, without importing where it comes from."""
    return {cls.__name__ for cls in type(model).__mro__}
