"""The last resort: runs a node once per row, in a Scan."""

from __future__ import annotations

from onnx import ValueInfoProto

from onnxgrad.batching.layout import Dependent, Refused
from onnxgrad.batching.site import Site
from onnxgrad.errors import InternalError
from onnxgrad.ir.binding import draws
from onnxgrad.ir.clone import clone_bindings
from onnxgrad.ir.emission.emit import emit_with_blocks, nested_block
from onnxgrad.ir.types import TensorType, type_to_proto
from onnxgrad.ir.var import Var

_OLDEST = 9  # opset whose Scan has no batch axis of its own


def by_rows(at: Site) -> None:
    """Run the node for each row. Raises Refused if a result is not a tensor of known shape."""
    b = at.binding
    if b.block.opsets.get("", 0) < _OLDEST:
        raise Refused(f"a Scan needs opset {_OLDEST}")
    for nested in (inner for block in b.blocks.values() for inner in block.walk()):
        if draws(nested):
            raise Dependent(f"{nested.op} in its body draws random numbers")
    results = [v for v in b.outputs if v is not None]
    for v in results:
        vague = v.shape is None or (None in v.shape and not at.sizes_at.mapped)
        if not isinstance(v.type, TensorType) or vague:
            raise Refused(f"the shape of '{v.name}' is not known")
    rows = [v for v in dict.fromkeys(b.reads()) if at.layouts.get(v) is not None]
    operands = [at.fronted(v) for v in rows]
    body = nested_block(f"{b.op}_of_a_row")
    inside: dict[Var, Var | None] = {}
    for v in rows:
        name = body.program.names.fresh(f"{v.name}_row")
        inside[v] = body.add_input(name, TensorType(v.dtype, at.sizes_of(v)))
    clone_bindings([b], body, inside)
    for v in results:
        made = inside[v]
        if made is None:
            raise InternalError(f"no copy of '{v.name}'")
        made.type = v.type  # onnxruntime wants the shape of every output
        body.declared[made] = ValueInfoProto(name=made.name, type=type_to_proto(v.type))
        body.add_output(made)
    types = [TensorType(v.dtype, (1, *(v.shape or ()))) for v in results]
    made_rows = emit_with_blocks(
        "Scan", operands, {"body": body}, types, num_scan_inputs=len(operands)
    )
    found = iter(made_rows)
    at.back(tuple(None if v is None else next(found) for v in b.outputs))
