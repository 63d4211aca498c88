"""Reverse-mode gradients of ONNX graphs, as ONNX graphs."""

from onnxgrad.grad import rules
from onnxgrad.grad.backward_walk import backward
from onnxgrad.grad.checking.check import check_gradient
from onnxgrad.grad.checking.report import GradientReport
from onnxgrad.grad.differentiation import Gradient, differentiate
from onnxgrad.grad.registry import GradientRule, body, find, vjp, vjp_all, vjp_blocks, zero

__all__ = [
    "Gradient",
    "GradientReport",
    "GradientRule",
    "backward",
    "body",
    "check_gradient",
    "differentiate",
    "find",
    "rules",
    "vjp",
    "vjp_all",
    "vjp_blocks",
    "zero",
]
