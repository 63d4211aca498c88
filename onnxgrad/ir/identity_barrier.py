"""A barrier that keeps a value while its definition is replaced.

A rewrite makes the readers of the old value read the new one, which may have other readers: a
function can return its own operand. A value with respect to which a model is differentiated gets a
barrier first, so that the two values stay separate.
"""

from __future__ import annotations

from collections.abc import Collection

from onnx import NodeProto

from onnxgrad.errors import InternalError
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.var import Var


def insert_barrier(var: Var) -> Binding:
    """Inserts an Identity that defines `var`, and lets the former definition define a new value.
    Replacing the new value does not replace `var`. Returns the Identity.
    """
    source = var.definition
    if source is None:
        raise InternalError(f"nothing in a block defines {var!r}")
    block = var.block
    other = block.add_result(
        source, len(source.outputs), block.program.names.fresh(var.name), var.type
    )
    source.outputs.pop()
    source.outputs = [other if v is var else v for v in source.outputs]
    copy = block.program.names.fresh(var.name)
    node = NodeProto(op_type="Identity", name=f"{copy}_identity", input=[other.name], output=[copy])
    identity = block.append(node, [other], [other.type])
    identity.outputs[0] = var
    var.definition = identity
    return identity


def remove_barrier(identity: Binding, given: Collection[str]) -> None:
    """Undoes `insert_barrier`: the Identity's operand takes over its result's name, unless the
    operand's own name is among `given`.
    """
    out, source = identity.out, identity.inputs[0]
    if source is None:
        raise InternalError(f"a barrier reads nothing: {identity}")
    block, name = identity.block, out.name
    block.replace(out, source)
    if out.name == name and source.definition is not None and source.name not in given:
        out.swap_names(source)
    block.remove(identity)
