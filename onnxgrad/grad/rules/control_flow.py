"""If, Loop and Scan; see `onnxgrad.grad.control_flow` and `onnxgrad.grad.loop`."""

from __future__ import annotations

from onnxgrad.grad.control_flow import if_gradient
from onnxgrad.grad.loop import loop_gradient
from onnxgrad.grad.registry import vjp_blocks
from onnxgrad.grad.scan import scan_gradient

vjp_blocks("If", if_gradient, notes="the branch that was taken; the condition receives nothing")
vjp_blocks(
    "Loop",
    loop_gradient,
    notes="tensor and sequence states; the trip count and the condition receive nothing",
)
vjp_blocks("Scan", scan_gradient)
