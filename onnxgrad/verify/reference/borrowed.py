"""Operators whose class in onnx.reference is right in float64 as it is.

onnx.reference takes as long to import as a proof of a small model, and most models need none of it: it is imported when
it is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import onnx

from onnxgrad.verify.reference.kernels import BY_BODY, Call, Unsupported

_ML = "ai.onnx.ml"


def borrow(node: onnx.NodeProto, call: Call, opsets: Mapping[str, int]) -> Callable[..., tuple[Any, ...]] | None:
    """The class of onnx.reference for a node as a kernel; None where it has none, or one that rounds to float32."""
    known = call.op_type in _classes() and call.op_type not in BY_BODY if call.domain == "" else call.domain == _ML
    if not known:
        return None
    if any(a.name == "softmax_precision" for a in node.attribute):  # Attention: everything here is float64
        node = _without(node, "softmax_precision")
    parameters = {
        "log": _silent,
        "opsets": dict(opsets),
        "verbose": 0,
        "new_ops": {},
        "existing_functions": {},
        "evaluator_cls": None,
    }
    from onnx.reference.ops import aionnxml, load_op

    load = load_op if call.domain == "" else aionnxml.load_op
    try:
        instance: Any = load(call.domain, call.op_type, call.version)(node, parameters)
    except Exception as error:  # onnx.reference raises RuntimeError, TypeError, ValueError, ... alike
        raise Unsupported(f"{call.op_type}: {' '.join(str(error).split())[:300]}") from error

    def run(_: Call, *values: Any) -> tuple[Any, ...]:
        return tuple(value.todense() if hasattr(value, "todense") else value for value in instance.run(*values))

    return run


@functools.cache
def _classes() -> Mapping[str, Any]:
    """The operators that onnx.reference implements by a class, not by the body in their schema."""
    from onnx.reference.ops._op_list import _build_registered_operators

    classes: Mapping[str, Any] = _build_registered_operators()
    return classes


def _without(node: onnx.NodeProto, name: str) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    del copy.attribute[:]
    copy.attribute.extend(a for a in node.attribute if a.name != name)
    return copy


def _silent(*_: object) -> None:
    """onnx.reference wants somewhere to log to."""
