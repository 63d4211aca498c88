"""Scales behind and in front of products move into weights, which are then computed (Relay's
FoldScaleAxis).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from onnxgrad.ir.program import Program
from onnxgrad.passes.base import Pass, register
from onnxgrad.passes.fold_constant import FoldConstant
from onnxgrad.passes.rule_passes import backward_fold_scale_axis, forward_fold_scale_axis
from onnxgrad.rewrite.trace import Trace


@register
@dataclass(frozen=True)
class FoldScaleAxis(Pass):
    """(x @ w) * s = x @ (w * s), then (x * s) @ w = x @ (s * w), then weight * scale becomes the
    weight.

    Options as for backward-fold-scale-axis and forward-fold-scale-axis, which it runs, and
    fold-constant behind them.
    """

    name: ClassVar[str] = "fold-scale-axis"
    scalars: bool = False
    runtime: bool = False

    def run(self, program: Program, trace: Trace) -> None:
        """Behind products first: there a scale moves whatever its sign."""
        backward_fold_scale_axis(self.scalars, self.runtime).run(program, trace)
        forward_fold_scale_axis(self.scalars, self.runtime).run(program, trace)
        FoldConstant().run(program, trace)
