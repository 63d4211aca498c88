"""One typed binding, appended as it is given: no literals, no versions, no sharing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import onnx
from onnx import NodeProto

from onnxgrad.errors import InternalError
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission import signature
from onnxgrad.ir.emission.emitter import Emitter
from onnxgrad.ir.emission.provenance import add_provenance
from onnxgrad.ir.type_inference import at_emission
from onnxgrad.ir.types import TypeMismatch
from onnxgrad.ir.var import Var, names_of


def append(
    at: Emitter,
    op_type: str,
    domain: str,
    schema: onnx.defs.OpSchema | None,
    inputs: Sequence[Var | None],
    attrs: Iterable[tuple[str, Any]],
    present: Sequence[bool],
) -> Binding:
    """Append one typed binding without literals, versions or sharing."""
    program = at.block.program
    while inputs and inputs[-1] is None:
        inputs = inputs[:-1]
    try:
        node = NodeProto(op_type=op_type, domain=domain)
        node.attribute.extend([signature.attribute(schema, n, v) for n, v in attrs])
        if schema is not None:
            signature.check_operands(schema, inputs)
        names = [program.names.fresh(op_type.lower()) if p else "" for p in present]
        node.name = program.names.fresh(f"{op_type}_{names[0] or 'unnamed'}")
        node.input.extend(names_of(inputs))
        node.output.extend(names)
        types = at_emission.result_types(schema, node, inputs, at.block)
    except TypeMismatch as e:
        operands = ", ".join("-" if v is None else f"{v.name}: {v.type or '?'}" for v in inputs)
        raise InternalError(f"emitted binding does not type: {op_type}({operands}): {e}") from e
    add_provenance(node, at)
    binding = at.block.append(node, inputs, types)
    at.emitted.append(binding)
    return binding
