"""Dropout that does not train."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper

from onnxgrad.ir.block import Binding, Var
from onnxgrad.ir.ops import op
from onnxgrad.rewrite.engine import Rule, count, rewrite
from onnxgrad.rewrite.pattern import P, capture
from onnxgrad.rewrite.trace import decline

x, ratio, mode = capture("x ratio mode")


def _dropout(x: Var, root: Binding) -> Any:
    """`x` for the result and all-true for the mask."""
    mask = root.result(1)
    if mask is None or not mask.use_count:
        return x
    if root.version < 12:
        return decline("its mask is read, which has no defined value before opset 12")
    true = helper.make_tensor("value", TensorProto.BOOL, [1], np.ones(1, bool))
    return {root.out: x, mask: op.ConstantOfShape(op.Shape(x), value=true)}


@rewrite(P.Dropout(x), shrinks=count("Dropout"))
def dropout(x: Var, root: Binding) -> Any:
    """Dropout(x) = x"""
    if root.version < 7 and not root.attr("is_test"):
        return decline("is_test is 0: it drops")
    return _dropout(x, root)


@rewrite(P.Dropout(x, ratio), shrinks=count("Dropout"))
def dropout_with_ratio(x: Var, root: Binding) -> Any:
    """Dropout(x, ratio) = x"""
    return _dropout(x, root)


def _switched_off(root: Binding) -> str | None:
    """Why a Dropout with a training_mode operand may drop, None when it cannot."""
    ratio, mode = root.operand(1), root.operand(2)
    if ratio is not None and ratio.const is not None and not ratio.const.any():
        return None
    if mode is None or (mode.const is not None and not mode.const.any()):
        return None
    return "training_mode is true" if mode.const is not None else "training_mode is known only at run time"


@rewrite(P.Dropout(x, ratio, mode), shrinks=count("Dropout"))
def dropout_with_mode(x: Var, root: Binding) -> Any:
    """Dropout(x, ratio, training_mode=false) = Dropout(x, 0, training_mode) = x"""
    reason = _switched_off(root)
    return _dropout(x, root) if reason is None else decline(reason)


@rewrite(P.Dropout(x, None, mode), shrinks=count("Dropout"))
def dropout_with_mode_only(x: Var, root: Binding) -> Any:
    """Dropout(x, training_mode=false) = x"""
    reason = _switched_off(root)
    return _dropout(x, root) if reason is None else decline(reason)


DROPOUT: list[Rule] = [dropout, dropout_with_ratio, dropout_with_mode, dropout_with_mode_only]
