"""A quantized operator as a law sees it: operands by name, attributes, the form that is asked
for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from onnx import TensorProto

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.var import Var
from onnxgrad.laws.quantized.bounds import Shortfall, accumulated, shortfall
from onnxgrad.laws.quantized.forms import LIMITS, Form
from onnxgrad.rewrite.trace import decline

Note = Callable[[Shortfall], None]


@dataclass(frozen=True)
class Call:
    """One operator to be put in another form; `note` takes what float32 may not hold exactly."""

    binding: Binding
    form: Form
    note: Note

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute as written, else the schema's default, else `default`."""
        return self.binding.attr(name, default)

    def written(self, *names: str) -> dict[str, Any]:
        """Those of the attributes that are written. Declines where the channels come last."""
        if self.attr("channels_last", 0):
            raise decline("channels_last is 1, which plain operators do not know")
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
        """Note that products of `x` with `w` are summed in float32 over these axes of `w`, where
        it may round them.
        """
        short = shortfall(accumulated(x, x_zero, w, w_zero, axes, bias))
        if short is not None:
            self.note(short)


def operands_of(
    b: Binding, names: Sequence[str], optional: Collection[str] = ()
) -> list[Var | None]:
    """The operands in the order of their names, which say what they are.

    `x_scale` is float32, `x_zero` may be absent, an `x` that has one is of 8 or 16 bits, and
    everything but what is `optional` must be there and typed. Declines where it is not so.
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
        if name.endswith("_scale") and v.dtype != TensorProto.FLOAT:
            raise decline("a scale that is not float32")
        if f"{name}_zero" in names and v.dtype not in LIMITS:
            raise decline("not 8 or 16 bit integers")
    return found
