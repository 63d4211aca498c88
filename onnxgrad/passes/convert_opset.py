"""Another opset of the default domain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from onnxgrad.ir.program import Program
from onnxgrad.laws.opsets.convert import convert
from onnxgrad.passes.base import Count, Pass, register
from onnxgrad.rewrite.trace import Trace


@register
@dataclass(frozen=True)
class ConvertOpset(Pass):
    """f of opset n = f of opset m, written as that wants it; with nested graphs and functions.

    `to`: the opset of the result, 0 that of the model. One step for the proof: a model with two
    opsets is none.
    """

    name: ClassVar[str] = "convert-opset"
    to: Count = 0

    def run(self, program: Program, trace: Trace) -> None:
        """Convert the whole program. InputError for an operator that cannot be converted."""
        before = program.opset
        trace.of("convert_opset").tried += 1
        if not self.to or not before or self.to == before or trace.stopped:
            return
        trace.of("convert_opset").matched += 1
        convert(program, self.to)
        trace.of("convert_opset").applied += 1
        trace.fired("convert_opset", f"opset {before} -> {self.to}")
