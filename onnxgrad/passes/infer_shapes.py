"""Declared shapes: what is known of the values between inputs and outputs, in the file itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from onnx import ValueInfoProto

from onnxgrad.ir.operator_index import blocks_in
from onnxgrad.ir.program import Program
from onnxgrad.ir.sizes import Dim, symbols
from onnxgrad.ir.type_inference.whole_model import is_invented
from onnxgrad.ir.types import TensorType, type_to_proto
from onnxgrad.ir.var import Var
from onnxgrad.passes.base import Pass, register
from onnxgrad.rewrite.trace import Trace


@register
@dataclass(frozen=True)
class InferShapes(Pass):
    """Declares the type and shape of every known value in `value_info`; an open size is an
    expression of the inputs' sizes, such as batch*seq.

    Inputs and outputs keep their declarations. Values in functions have none.
    """

    name: ClassVar[str] = "infer-shapes"

    def run(self, program: Program, trace: Trace) -> None:
        """Declare the values of the main graph and of the graphs nested in it."""
        for block in blocks_in(program.main):
            if trace.stopped:
                return
            declared = {v.name: v for v in block.proto.value_info}
            found = 0
            for v in [v for b in block.bindings for v in b.outputs if v is not None]:
                info = None if v.returned else _declaration(v)
                before = block.declared.get(v) or declared.get(v.name)
                if info is None or (before is not None and before.type == info.type):
                    continue
                block.declared[v] = info
                found += 1
            if found:
                block.touch()
                where = f"{found} of {block.name}"
                trace.fired("declared_shapes", where, count=found)


def _declaration(v: Var) -> ValueInfoProto | None:
    """The value as a file declares it; None if not even its rank is known."""
    type_ = v.type
    if not isinstance(type_, TensorType) or not type_.dtype or type_.shape is None:
        return None
    known = TensorType(type_.dtype, tuple(None if _is_invented(d) else d for d in type_.shape))
    return ValueInfoProto(name=v.name, type=type_to_proto(known))


def _is_invented(d: Dim) -> bool:
    """Whether onnx made up a name in it, which says nothing to a reader."""
    return any(map(is_invented, symbols(d)))
