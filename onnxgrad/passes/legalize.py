"""Quantized operators by means of others (Relay's Legalize)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.program import Program
from onnxgrad.ir.type_inference.per_binding import type_again
from onnxgrad.ir.var import Var
from onnxgrad.laws.quantized.forms import Form, PlainForm, QdqForm, Shortfall
from onnxgrad.laws.quantized.legalize import LAWS, WITHOUT_FORM
from onnxgrad.passes.base import Pass, register, roots
from onnxgrad.rewrite.attempt import Attempt
from onnxgrad.rewrite.trace import Inexact, Trace, decline_if

_FORMS: dict[str, Form] = {"qdq": QdqForm(), "float": PlainForm()}
# these stay in QDQ form
_QDQ = frozenset({("", "QuantizeLinear"), ("", "DequantizeLinear")})


@register
@dataclass(frozen=True)
class Legalize(Pass):
    """qf(x, s, z) = quantize(f((x - z) s)): QLinear*, QGemm, *Integer, DynamicQuantizeLinear by
    other operators.

    `to=qdq`: QuantizeLinear and DequantizeLinear around float operators. `to=float`: plain
    arithmetic only, integers accumulated in float32; exact up to 2^24, beyond that the report says
    how far an accumulator may be off.
    """

    name: ClassVar[str] = "legalize"
    to: Literal["qdq", "float"] = "qdq"

    def run(self, program: Program, trace: Trace) -> None:
        """Rewrite every quantized operator in the form `to`."""
        form = _FORMS[self.to]
        for root in roots(program):
            for b in list(root.walk()):
                key = (b.domain, b.op)
                if trace.stopped:
                    return
                if (
                    b.is_live
                    and not b.blocks
                    and any(v is not None and v.type is None for v in b.outputs)
                ):
                    # its operands may be typed now, behind an operator that no schema types
                    type_again(b)
                if key in LAWS and not (self.to == "qdq" and key in _QDQ):
                    _rewrite(b, form, trace)
                elif key in WITHOUT_FORM:
                    trace.missed(f"legalize_{b.op}", str(b), WITHOUT_FORM[key])


def _rewrite(b: Binding, form: Form, trace: Trace) -> None:
    rule, where = f"legalize_{b.op}", str(b)
    trace.of(rule).tried += 1
    notes: list[Shortfall] = []

    def build() -> dict[Var, Var]:
        decline_if(b.has_refs, "its attributes are the enclosing function's")
        values = LAWS[b.domain, b.op](b, form, notes.append)
        return {old: new for old, new in zip(b.outputs, values) if old is not None}

    if Attempt(rule, where, b.block, [b], share=True)(trace, build) is None:
        return
    trace.of(rule).matched += 1
    trace.rounded = True
    for short in notes:
        trace.inexact.append(Inexact(rule, where, short.error, short.words))
        trace.missed(rule, where, f"rewritten, but {short.words}")
