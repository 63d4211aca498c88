"""The types of models that the public functions accept.

onnx_graphsurgeon's Graph and onnx_ir's Model are returned as the same type. torch's ONNXProgram, an
onnxscript function and streams such as BytesIO are returned as a ModelProto. None of these
libraries is imported to check a type: a caller who has one of their objects has imported it.
"""

from __future__ import annotations

import os
import sys
from typing import Any, cast

from onnx import ModelProto

from onnxgrad.errors import InputError
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.program import Program
from onnxgrad.wording import one_line


def settled(model: Any) -> Any:
    """Returns the model as a path, bytes, ModelProto or Program, which can be read several times;
    it is not changed.

    Raises InputError if it is not a model, or the block of a function or of a nested graph.
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
    # looked up in the class, since graphsurgeon's graphs complain about every attribute they lack;
    # getvalue of a BytesIO returns all of it, whatever its position
    method = next((name for name in ("getvalue", "read") if hasattr(type(model), name)), None)
    if method is None:
        return to_model_proto(model)
    data = getattr(model, method)()
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise InputError(
            f"a model must come from a binary stream, not from a {type(model).__name__} of text"
        )
    return bytes(data)


def to_model_proto(model: Any) -> ModelProto:
    """Returns the ModelProto of another library's model, which is not changed. Raises InputError
    for anything else.
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
        # its library raises TypeError, ValueError and others if it cannot export the function
        except Exception as e:
            name = getattr(model, "name", type(model).__name__)
            reason = one_line(e, 200)
            raise InputError(
                f"the onnxscript function '{name}' returns no model: {type(e).__name__}: {reason}"
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
            f"the {type(model).__name__} returned a {type(found).__name__}, not a ModelProto"
        )
    return found


def is_instance(model: Any, module: str, name: str) -> bool:
    """Whether it is an instance of another library's class. The library is not imported for that:
    a caller that has such an object has imported it.
    """
    found = sys.modules.get(module)
    return found is not None and isinstance(model, getattr(found, name))


def _names(model: Any) -> set[str]:
    """The names of the object's class and its bases."""
    return {cls.__name__ for cls in type(model).__mro__}
