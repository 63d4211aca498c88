"""Replaces float operators between dequantized and quantized values by operators on the integers
(TVM's FakeQuantizationToInteger); `legalize` is the inverse.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from onnxgrad.frozen import frozen
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.program import Program
from onnxgrad.ir.var import Var
from onnxgrad.laws.quantized.islands import (
    Rounding,
    in_float,
    in_integers,
    island,
    rounding,
)
from onnxgrad.laws.quantized.scaled import quantized
from onnxgrad.laws.quantized.through import THROUGH, bounds_of, held
from onnxgrad.passes.base import Pass, register, roots
from onnxgrad.rewrite.attempt import Attempt
from onnxgrad.rewrite.trace import Inexact, Trace, decline, decline_if
from onnxgrad.rewrite.worklist import apply_rules

_PRODUCTS = ("Conv", "MatMul")
_BOUNDS = ("Relu", "Clip")
# the first opset with QLinearConv, QLinearMatMul and MatMulInteger
_SINCE = 10


@register
@frozen
class FakeQuantizationToInteger(Pass):
    """quantize(f(dequantize(x))) = f'(x): 8-bit values are moved, compared, multiplied as integers.

    Moves, MaxPool, Relu, Clip and Concat of equal scales are equal to the bit. So are products
    whose scales are powers of two and whose sums stay within 2^24. `exact=false` converts all other
    products too: to QLinearConv and QLinearMatMul, which are off by one quantum at most (the report
    lists them), or to MatMulInteger if the result stays float. Scales and zero points must be
    constants.
    """

    name: ClassVar[str] = "fake-quantization-to-integer"
    exact: bool = True

    def run(self, program: Program, trace: Trace) -> None:
        """Converts moves and comparisons, then products, then the operators left between these."""
        for root in roots(program):
            apply_rules(root, THROUGH, trace)
            for b in list(root.walk()):
                if not trace.stopped and b.is_live and b.is_op("QuantizeLinear"):
                    _to_integers(b, self.exact, trace)
            for b in list(root.walk()):
                if not self.exact and not trace.stopped and b.is_live and b.is_op("MatMul"):
                    _to_float(b, trace)
            apply_rules(root, THROUGH, trace)


def _to_integers(root: Binding, exact: bool, trace: Trace) -> None:
    """Converts a product and its QuantizeLinear, with or without a Relu or Clip between them."""
    between = _made(root)
    held_by = between if between is not None and between.op in _BOUNDS else None
    product = between if held_by is None else _made(held_by)
    if product is None or product.domain or product.op not in _PRODUCTS:
        return
    rule, where, off = f"quantize_of_{product.op.lower()}", str(root), Rounding(0.0, "")

    def build() -> dict[Var, Var]:
        nonlocal off
        _check_place(root, [b for b in (held_by, product) if b is not None])
        to = quantized(root)
        if to is None:
            raise decline("not to 8 bits by a constant scale")
        found = island(product)
        off = rounding(found, to)
        decline_if(exact and off.quanta, f"{off.words}: exact=false allows it")
        y = in_integers(found, to)
        return {root.out: y if held_by is None else held(y, bounds_of(held_by, to), to)}

    _attempt(rule, root, [b for b in (root, held_by, product) if b is not None], build, trace)
    if not root.is_live and off.quanta:
        trace.inexact.append(Inexact(rule, where, 1.0, off.words))
        trace.rounded = True


def _made(b: Binding) -> Binding | None:
    return None if b.inputs[0] is None else b.inputs[0].definition


def _check_place(root: Binding, chain: list[Binding]) -> None:
    """Raises Decline if anything else reads a value that would be removed."""
    decline_if(
        root.version < _SINCE or any(b.has_refs for b in (root, *chain)),
        "an attribute is that of the enclosing function, or the opset below 10",
    )
    for reader, b in zip((root, *chain), chain, strict=False):
        decline_if(
            b.out.sole_user() is not reader or b.block is not root.block,
            f"{b.out.name} is read elsewhere as well",
        )


def _to_float(b: Binding, trace: Trace) -> None:
    """Converts a product of dequantized values whose result stays float."""

    def build() -> dict[Var, Var]:
        decline_if(
            b.has_refs or b.version < _SINCE,
            "an attribute is that of the enclosing function, or the opset below 10",
        )
        return {b.out: in_float(island(b))}

    _attempt("matmul_of_dequantize", b, [b], build, trace)
    if not b.is_live:
        trace.rounded = True


def _attempt(
    rule: str, b: Binding, sources: list[Binding], build: Callable[[], Any], trace: Trace
) -> None:
    trace.of(rule).tried += 1
    if Attempt(rule, b, b.block, sources)(trace, build) is not None:
        trace.of(rule).matched += 1
