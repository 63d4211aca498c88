"""Keeping a value itself while what computes it is replaced.

Rewriting makes readers of the old value read the new one, which others may read as well (a function
can return its own operand). Who has to tell the two apart, because one of them is to be
differentiated by, anchors the value before.
"""

from __future__ import annotations

from collections.abc import Collection

from onnx import NodeProto

from onnxgrad.errors import InternalError
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.var import Var


def insert_barrier(var: Var) -> Binding:
    """Let an Identity define `var`, and the binding that did another result: what is put in the
    place of that one later is not `var`. Returns the Identity.
    """
    source = var.definition
    if source is None:
        raise InternalError(f"nothing in a block defines {var!r}")
    block = var.block
    made = block.add_result(
        source, len(source.outputs), block.program.names.fresh(var.name), var.type
    )
    source.outputs.pop()
    source.outputs = [made if v is var else v for v in source.outputs]
    copy = block.program.names.fresh(var.name)
    node = NodeProto(op_type="Identity", name=f"{copy}_identity", input=[made.name], output=[copy])
    identity = block.append(node, [made], [made.type])
    identity.outputs[0] = var
    var.definition = identity
    return identity


def remove_barrier(identity: Binding, given: Collection[str]) -> None:
    """Undo `insert_barrier`: what the Identity reads takes over its result's name, unless its own
    is among `given`.
    """
    out, source = identity.out, identity.inputs[0]
    if source is None:
        raise InternalError(f"an anchor reads nothing: {identity}")
    block, name = identity.block, out.name
    block.replace(out, source)
    if out.name == name and source.definition is not None and source.name not in given:
        out.swap_names(source)
    block.remove(identity)
