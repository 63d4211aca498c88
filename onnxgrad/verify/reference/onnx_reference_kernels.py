"""Operators whose class in onnx.reference is correct in float64 without changes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import onnx
from onnx.reference.ops import aionnx_preview_training, aionnxml, load_op
from onnx.reference.ops._op_list import _build_registered_operators

from onnxgrad.ir.protobufs import keep
from onnxgrad.verify.reference.kernels import BY_BODY, Call, Unsupported

# what finds the class of an operator, by domain
_FIND: Mapping[str, Callable[..., Any]] = {
    "": load_op,
    "ai.onnx.ml": aionnxml.load_op,
    "ai.onnx.preview.training": aionnx_preview_training.load_op,
}
# the operators that it implements by a class, not by the body in their schema
_CLASSES: Mapping[str, Any] = _build_registered_operators()


def borrow(
    node: onnx.NodeProto, call: Call, opsets: Mapping[str, int]
) -> Callable[..., tuple[Any, ...]] | None:
    """The class of onnx.reference for a node as a kernel; None where it has none, or one that
    rounds to float32.
    """
    known = (
        call.domain in _FIND
        if call.domain
        else call.op_type in _CLASSES and call.op_type not in BY_BODY
    )
    if not known:
        return None
    # Attention: everything here is float64
    if any(a.name == "softmax_precision" for a in node.attribute):
        node = copy.deepcopy(node)
        keep(node.attribute, lambda a: a.name != "softmax_precision")
    parameters = {
        "log": _silent,
        "opsets": dict(opsets),
        "verbose": 0,
        "new_ops": {},
        "existing_functions": {},
        "evaluator_cls": None,
    }
    try:
        instance: Any = _FIND[call.domain](call.domain, call.op_type, call.version)(
            node, parameters
        )
    # onnx.reference raises RuntimeError, TypeError, ValueError, ... alike
    except Exception as error:
        if "No registered implementation" in str(error):  # and then every operator that has one
            return None
        raise Unsupported(f"{call.op_type}: {' '.join(str(error).split())[:300]}") from error

    def run(_: Call, *values: Any) -> tuple[Any, ...]:
        return tuple(
            value.todense() if hasattr(value, "todense") else value
            for value in instance.run(*values)
        )

    return run


def _silent(*_: object) -> None:
    """onnx.reference wants somewhere to log to."""
