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
from onnxgrad.wording import one_line

# the function that finds the class of an operator, by domain
_FIND: Mapping[str, Callable[..., Any]] = {
    "": load_op,
    "ai.onnx.ml": aionnxml.load_op,
    "ai.onnx.preview.training": aionnx_preview_training.load_op,
}
# the operators that onnx.reference implements by a class, not by their schema's body
_CLASSES: Mapping[str, Any] = _build_registered_operators()
# operands that are numbers: exporters write them as vectors of one element too, onnxruntime reads
# both, and onnx.reference fails at a vector
_NUMBERS: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(("CumSum", "CumProd", "SequenceAt", "SequenceErase"), (1,)),
    **dict.fromkeys(("HannWindow", "HammingWindow", "BlackmanWindow"), (0,)),
    "MelWeightMatrix": (0, 1, 2, 3, 4),
}


def borrow(
    node: onnx.NodeProto, call: Call, opsets: Mapping[str, int]
) -> Callable[..., tuple[Any, ...]] | None:
    """Returns the class of onnx.reference for a node as a kernel; None if there is none, or if it
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
        if "No registered implementation" in str(error):  # the message then lists all operators
            return None
        raise Unsupported(f"{call.op_type}: {one_line(error, 300)}") from error

    # onnx.reference reads the roi of every Resize
    crops = call["coordinate_transformation_mode"] == "tf_crop_and_resize"
    floats = [name for name, value in call.attributes.items() if isinstance(value, float)]
    numbers = frozenset(_NUMBERS.get(call.op_type, ()))

    def run(given: Call, *values: Any) -> tuple[Any, ...]:
        for name in floats:  # a run may move them
            setattr(instance, name, given[name])
        if call.op_type == "Resize" and not crops:
            values = (values[0], None, *values[2:])
        if numbers:
            values = tuple(
                v.reshape(()) if i in numbers and getattr(v, "shape", ()) == (1,) else v
                for i, v in enumerate(values)
            )
        return tuple(
            value.todense() if hasattr(value, "todense") else value
            for value in instance.run(*values)
        )

    return run


def _silent(*_: object) -> None:
    """Discards log messages; onnx.reference requires a log function."""
