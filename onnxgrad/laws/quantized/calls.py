"""A quantized operator as a law reads it: operands by name, attributes, and the table of laws.

The parameters of a law have the operator's names of its operands, with `_zero` for `_zero_point`. A
law returns the new value of each output, in order.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from itertools import islice
from typing import Any, NamedTuple

from onnx import TensorProto

from onnxgrad.frozen import frozen
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var
from onnxgrad.laws.quantized.forms import (
    LIMITS,
    Form,
    Shortfall,
    accumulated,
    rounded,
    saturated,
    shortfall,
)
from onnxgrad.rewrite.trace import decline, decline_if

Note = Callable[[Shortfall], None]


@frozen
class QuantizedCall:
    """A quantized operator to rewrite. `note` receives warnings about results that float32 may not
    hold exactly.
    """

    binding: Binding
    form: Form
    note: Note

    def attr(self, name: str, default: Any = None) -> Any:
        """Returns the attribute of the node, else the default of the schema, else `default`."""
        return self.binding.attr(name, default)

    def written(self, *names: str) -> dict[str, Any]:
        """Returns those of the attributes that the node has. Raises Decline if the channels are the
        last axis.
        """
        decline_if(
            self.attr("channels_last", 0), "channels_last is 1, which plain operators do not know"
        )
        return {n: self.binding.attrs[n] for n in names if n in self.binding.attrs}

    def sums(
        self,
        x: Var,
        x_zero: Var | None,
        w: Var,
        w_zero: Var | None,
        axes: tuple[int, ...],
        bias: Var | None = None,
    ) -> None:
        """Adds a note if float32 may round the sums of products of `x` with `w` over these axes of
        `w`.
        """
        short = shortfall(accumulated(x, x_zero, w, w_zero, axes, bias))
        if short is not None:
            self.note(short)


def operands_of(
    b: Binding, names: Sequence[str], optional: Collection[str] = ()
) -> list[Var | None]:
    """Returns the operands in the order of their names, whose endings determine the checks.

    A `_scale` must be float32, a `_zero` may be absent, and a value with a zero point must have 8
    or 16 bits. All operands except the `optional` ones must exist and have a known type. Raises
    Decline otherwise.
    """
    found = []
    for i, name in enumerate(names):
        v = b.operand(i)
        found.append(v)
        if name.endswith("_zero") or (
            name in optional and (v is None or not name.endswith("_scale"))
        ):
            continue
        if v is None or not v.dtype or v.shape is None:
            raise decline(f"the operand {name} is missing or its type is unknown")
        decline_if(
            name.endswith("_scale") and v.dtype != TensorProto.FLOAT, "a scale that is not float32"
        )
        decline_if(f"{name}_zero" in names and v.dtype not in LIMITS, "not 8 or 16 bit integers")
    return found


CONTRIB = "com.microsoft"
LAWS: dict[tuple[str, str], Callable[[Binding, Form, Note], list[Any]]] = {}
Law = Callable[..., list[Any]]


class Quantized(NamedTuple):
    """Integers with their scale and zero point: three operands."""

    value: Var
    scale: Var
    zero: Var | None


# the operands of one parameter of a law: one, or the three of a Quantized
Names = tuple[str, ...]


def triple(name: str) -> Names:
    """Returns the names of the three operands of a Quantized."""
    return (name, f"{name}_scale", f"{name}_zero")


def grouped(values: Sequence[Any], groups: Sequence[Names]) -> list[Any]:
    """Returns the argument of each parameter: one operand, or three operands as a Quantized."""
    left = iter(values)
    return [next(left) if len(g) == 1 else Quantized(*islice(left, 3)) for g in groups]


def law(name: str, domain: str = CONTRIB) -> Callable[[Law], Law]:
    """Returns a decorator that registers a law of the operator `name`. The parameter names of the
    law determine the operands.
    """

    def register(formula: Law) -> Law:
        _, *parameters = inspect.signature(formula).parameters.values()
        groups = [triple(p.name) if p.annotation == "Quantized" else (p.name,) for p in parameters]
        keep(name, domain, formula, groups, {p.name for p in parameters if p.default is None})
        return formula

    return register


def keep(
    name: str, domain: str, formula: Law, groups: Sequence[Names], optional: Collection[str] = ()
) -> None:
    """Registers a law whose parameters receive these groups of operands."""
    names = [n for group in groups for n in group]

    def applied(b: Binding, form: Form, note: Note) -> list[Any]:
        return formula(
            QuantizedCall(b, form, note), *grouped(operands_of(b, names, optional), groups)
        )

    LAWS[domain, name] = applied


def dtype_of(zero: Var | None, like: Var) -> int:
    """Returns the dtype of integers with this zero point, or the dtype of `like` without one."""
    return zero.dtype if zero is not None and zero.dtype in LIMITS else like.dtype


def dynamically(call: QuantizedCall, x: Var) -> Quantized:
    """Returns `x` quantized to 8 bits by its least and largest element."""
    low = op.Min(op.ReduceMin(x, keepdims=0), 0.0)
    high = op.Max(op.ReduceMax(x, keepdims=0), 0.0)
    span = (high - low) / 255.0
    # all zeros: any scale is right, and onnxruntime uses 1
    scale = op.Where(op.Equal(span, 0.0), 1.0, span)
    zero = saturated(rounded((0.0 - low) / scale), None, TensorProto.UINT8)
    return Quantized(call.form.quantize(x, scale, zero, TensorProto.UINT8), scale, zero)
