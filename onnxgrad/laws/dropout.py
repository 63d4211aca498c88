"""Dropout that does not train."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var
from onnxgrad.laws.batch_normalization import mode, ratio, x
from onnxgrad.rewrite.pattern import P
from onnxgrad.rewrite.trace import decline
from onnxgrad.rewrite.worklist import count, rewrite


def _dropout(x: Var, root: Binding) -> Any:
    """`x` for the result and all-true for the mask."""
    mask = root.result(1)
    if mask is None or not mask.use_count:
        return x
    if root.version < 12:
        return decline("its mask is read, which has no defined value before opset 12")
    true = helper.make_tensor("value", TensorProto.BOOL, [1], np.ones(1, bool))
    return {root.out: x, mask: op.ConstantOfShape(op.Shape(x), value=true)}


def _may_drop(root: Binding, ratio: Var | None, mode: Var | None) -> str | None:
    """Why it may drop, None when it cannot."""
    if root.version < 7 and not root.attr("is_test"):
        return "is_test is 0: it drops"
    if ratio is not None and ratio.const is not None and not ratio.const.any():
        return None
    if mode is None or (mode.const is not None and not mode.const.any()):
        return None
    return (
        "training_mode is true"
        if mode.const is not None
        else "training_mode is known only at run time"
    )


@rewrite(P.Dropout(x, ratio.maybe, mode.maybe), shrinks=count("Dropout"))
def dropout(x: Var, ratio: Var | None, mode: Var | None, root: Binding) -> Any:
    """Dropout(x, ratio, training_mode=false) = Dropout(x, 0, training_mode) = Dropout(x) = x"""
    reason = _may_drop(root, ratio, mode)
    return _dropout(x, root) if reason is None else decline(reason)
