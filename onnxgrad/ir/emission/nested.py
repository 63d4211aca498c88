"""Control flow: bindings with blocks of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onnx import GraphProto, NodeProto, helper

from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.emission.emitter import emitter
from onnxgrad.ir.emission.provenance import add_provenance
from onnxgrad.ir.types import Type
from onnxgrad.ir.var import Var, names_of


def emit_with_blocks(
    op_type: str,
    operands: Sequence[Var | None],
    blocks: Mapping[str, BindingBlock],
    types: Sequence[Type | None],
    **attrs: Any,
) -> tuple[Var, ...]:
    """Append a control-flow binding (If, Loop, Scan) with the given nested blocks and result
    types.
    """
    at = emitter()
    program = at.block.program
    names = [program.names.fresh(op_type.lower()) for _ in types]
    node = NodeProto(
        op_type=op_type,
        name=program.names.fresh(f"{op_type}_{names[0] if names else 'empty'}"),
        input=names_of(operands),
        output=names,
        attribute=[helper.make_attribute(n, v) for n, v in attrs.items() if v is not None],
    )
    add_provenance(node, at)
    binding = at.block.append(node, operands, types)
    for name, nested in blocks.items():
        nested.owner = binding
        nested.changed = True
        binding.blocks[name] = nested
    binding.changed = True
    at.emitted.append(binding)
    return tuple(v for v in binding.outputs if v is not None)


def nested_block(name: str) -> BindingBlock:
    """An empty block to be nested in a binding of the block now emitted into (see
    `emit_with_blocks`).
    """
    outer = emitter().block
    block = BindingBlock(
        outer.program, GraphProto(name=outer.program.names.fresh(name)), outer.opsets
    )
    block.changed = True
    return block
