"""Replaces quantized operators by standard ones (Relay's Legalize)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ClassVar, Literal

from onnxgrad.frozen import frozen
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.program import Program
from onnxgrad.ir.type_inference.per_binding import type_again
from onnxgrad.ir.var import Var
from onnxgrad.laws.quantized.calls import Note
from onnxgrad.laws.quantized.dequantized_weights import scaled_product, table_of_integers
from onnxgrad.laws.quantized.forms import Form, PlainForm, QdqForm, Shortfall
from onnxgrad.laws.quantized.legalize import LAWS
from onnxgrad.passes.base import Pass, register, roots
from onnxgrad.rewrite.attempt import Attempt
from onnxgrad.rewrite.trace import Inexact, Trace, decline_if

_FORMS: dict[str, Form] = {"qdq": QdqForm(), "float": PlainForm()}
_PRODUCTS = frozenset({("", "MatMulInteger"), ("", "ConvInteger")})
# these stay in QDQ form
_QDQ = frozenset({("", "QuantizeLinear"), ("", "DequantizeLinear")})


@register
@frozen
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
        """Rewrites every quantized operator in the form `to`."""
        form = _FORMS[self.to]
        self._operators(program, trace, form)
        if self.to == "qdq":
            for root in roots(program):
                for b in list(root.walk()):
                    if not trace.stopped and b.is_op("DequantizeLinear"):
                        _rewrite(b, trace, partial(_table, b, form))

    def _operators(self, program: Program, trace: Trace, form: Form) -> None:
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
                    # its operands may have types now that the operator before them is rewritten
                    type_again(b)
                if key in LAWS and not (self.to == "qdq" and key in _QDQ):
                    _rewrite(b, trace, partial(_definition, b, form))


def _table(b: Binding, form: Form, note: Note) -> dict[Var, Var]:
    return table_of_integers(b, form)


def _definition(b: Binding, form: Form, note: Note) -> dict[Var, Var]:
    """Emits the operator, or a scaled product of integers, in terms of other operators. Returns the
    new results.
    """
    decline_if(b.has_refs, "its attributes are the enclosing function's")
    if (b.domain, b.op) in _PRODUCTS and isinstance(form, QdqForm):
        chain = scaled_product(b, form)
        if chain:
            return chain
    values = LAWS[b.domain, b.op](b, form, note)
    return {old: new for old, new in zip(b.outputs, values) if old is not None}


def _rewrite(b: Binding, trace: Trace, build: Callable[[Note], dict[Var, Var]]) -> None:
    rule, where = f"legalize_{b.op}", str(b)
    trace.of(rule).tried += 1
    notes: list[Shortfall] = []
    if Attempt(rule, where, b.block, [b], share=True)(trace, lambda: build(notes.append)) is None:
        return
    trace.of(rule).matched += 1
    trace.rounded = True
    for short in notes:
        trace.inexact.append(Inexact(rule, where, short.error, short.words))
        trace.missed(rule, where, f"rewritten, but {short.words}")
