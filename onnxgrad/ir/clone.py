"""Copies of bindings: a function body at its call, a segment to recompute, the body of a loop in
another block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any

from onnx import AttributeProto, GraphProto, NodeProto, SparseTensorProto

from onnxgrad.errors import InternalError
from onnxgrad.ir import attributes, domains
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.type_inference import per_binding
from onnxgrad.ir.types import TensorType, Type, TypeMismatch
from onnxgrad.ir.var import Var, names_of


def clone_bindings(
    bindings: Iterable[Binding],
    into: BindingBlock,
    mapping: dict[Var, Var | None],
    *,
    bound: Mapping[str, AttributeProto] | None = None,
    prefix: str = "",
    fold: Callable[[Binding], Var | None] | None = None,
) -> list[Binding]:
    """Appends copies of `bindings`, operands before readers, to `into`; returns the copies.

    `mapping` holds replacements of values (None omits the operand) and receives each copied result.
    The copies read other values unchanged. `bound` replaces references to a function's attributes;
    an attribute whose reference `bound` lacks is dropped, as ONNX specifies. `fold` may return a
    value that replaces a copy's only result. New names are `prefix` plus the old ones, with a
    number if they are taken. Results are typed again from the operands, because a function body has
    no types.
    """
    copies = []
    for b in bindings:
        node = _copy_node(b.node, bound)
        inputs = [v if v is None else mapping.get(v, v) for v in b.inputs]
        while inputs and inputs[-1] is None and b.inputs[len(inputs) - 1] is not None:
            inputs.pop()
        node.input[:] = names_of(inputs)
        program = into.program
        node.output[:] = [
            "" if v is None else program.names.fresh(prefix + v.name) for v in b.outputs
        ]
        node.name = program.names.fresh(prefix + (b.node.name or b.op))
        copy = into.append(node, inputs, _types(b, node, inputs, into))
        copy.changed = True
        for old, new in zip(b.outputs, copy.outputs, strict=True):
            if old is not None and new is not None:
                new.source = old.source
        for name, nested in b.blocks.items():
            copy.blocks[name] = clone_block(
                nested, into, mapping, owner=copy, bound=bound, prefix=prefix
            )
        folded = None if fold is None or len(copy.outputs) != 1 else fold(copy)
        if folded is not None and b.outputs[0] is not None:
            mapping[b.outputs[0]] = folded
            into.remove(copy)
            continue
        for old, new in zip(b.outputs, copy.outputs, strict=True):
            if old is not None:
                mapping[old] = new
        copies.append(copy)
    return copies


def clone_block(
    source: BindingBlock,
    outer: BindingBlock,
    mapping: dict[Var, Var | None],
    *,
    owner: Binding,
    bound: Mapping[str, AttributeProto] | None,
    prefix: str,
) -> BindingBlock:
    """Returns a copy of a nested block for a binding of `outer`, with fresh names. Captured values
    are looked up in `mapping`.
    """
    program = outer.program
    block = BindingBlock(
        program, GraphProto(name=program.names.fresh(prefix + source.name)), outer.opsets, owner
    )
    for v in source.inputs:
        mapping[v] = block.add_input(program.names.fresh(prefix + v.name), v.type)
    for v in source.initializers.values():
        if v.initializer is None:
            continue
        if v.is_input:
            raise InternalError(
                f"parameter '{v.name}' of a nested block has a default: such a "
                "block cannot be copied"
            )
        tensor = deepcopy(v.initializer)
        tensor.name = program.names.fresh(prefix + v.name)
        mapping[v] = block.add_initializer(tensor, v)
    clone_sparse(source, block, mapping)
    source.schedule()  # a rewrite may have left a reader before what it reads
    clone_bindings(source.bindings, block, mapping, bound=bound, prefix=prefix)
    for v in source.outputs:
        returned = mapping.get(v, v)
        if returned is None:
            raise InternalError(f"block '{source.name}' returns '{v.name}', which is left out here")
        if returned.rank is None and isinstance(v.type, TensorType) and v.type.shape is not None:
            # onnxruntime wants the rank of a Scan's results, and that of an operand may be unknown
            returned.type = TensorType(v.type.dtype, (None,) * len(v.type.shape))
        block.add_output(returned)
    block.changed = True
    return block


def clone_sparse(source: BindingBlock, into: BindingBlock, mapping: dict[Var, Var | None]) -> None:
    """Copies the sparse initializers of `source` as sparse Constants of the block `into`. `mapping`
    receives the new values.
    """
    for v, tensor in sparse_tensors(source):
        mapping[v] = add_sparse(into, tensor, into.program.names.fresh(v.name))


def sparse_tensors(block: BindingBlock) -> list[tuple[Var, SparseTensorProto]]:
    """The sparse initializers of a graph."""
    return (
        list(zip(block.sparse, block.proto.sparse_initializer))
        if isinstance(block.proto, GraphProto)
        else []
    )


def add_sparse(block: BindingBlock, tensor: SparseTensorProto, name: str) -> Var:
    """Appends a Constant of the sparse tensor, under a free name."""
    node = NodeProto(op_type="Constant", name=block.program.names.fresh("Constant"), output=[name])
    node.attribute.add(
        name="sparse_value", type=AttributeProto.SPARSE_TENSOR
    ).sparse_tensor.CopyFrom(tensor)
    return block.append(node, [], [TensorType(tensor.values.data_type, tuple(tensor.dims))]).out


def _types(
    b: Binding, node: NodeProto, inputs: Sequence[Var | None], into: BindingBlock
) -> list[Type | None]:
    if b.blocks:
        return [None if v is None else v.type for v in b.outputs]
    schema = attributes.schema(b.op, into.opsets.get(b.domain, 0), b.domain)
    try:
        types = per_binding.result_types(schema, node, inputs, into)
    except TypeMismatch as e:
        raise InternalError(f"the copy of '{b}' does not type: {e}") from e
    return [
        new if new is not None else None if v is None else v.type
        for new, v in zip(types, b.outputs, strict=True)
    ]


def _copy_node(source: NodeProto, bound: Mapping[str, AttributeProto] | None) -> NodeProto:
    """Returns the node without its graphs, which the copy gets itself, and with references to
    function attributes bound.
    """
    node = NodeProto(op_type=source.op_type)
    for field in ("domain", "overload", "doc_string"):
        # a field that is set to an empty text differs from one that is not set
        if source.HasField(field):
            setattr(node, field, getattr(source, field))
    domains.respell(node)  # the copy may stand in a function
    node.metadata_props.extend(source.metadata_props)
    node.device_configurations.extend(source.device_configurations)
    for a in source.attribute:
        if a.type in attributes.GRAPH_KINDS:
            if a.type == AttributeProto.GRAPHS:
                node.attribute.add(name=a.name, type=a.type).graphs.extend(
                    GraphProto() for _ in a.graphs
                )
            continue
        if not a.ref_attr_name or bound is None:
            node.attribute.append(a)
        elif a.ref_attr_name in bound:
            copy: Any = node.attribute.add()
            copy.CopyFrom(bound[a.ref_attr_name])
            copy.name = a.name
    return node
