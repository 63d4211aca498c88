"""Sparse tensors of a model whose opset is raised: onnx.version_converter knows none, and no
version changed them.
"""

from __future__ import annotations

from onnx import AttributeProto, GraphProto, NodeProto, SparseTensorProto, helper

from onnxgrad.ir import domains
from onnxgrad.ir.nodes import every_graph

# what was taken by its number, which the operator that stands for it bears
Taken = dict[str, NodeProto | SparseTensorProto]
_SPARSE = (AttributeProto.SPARSE_TENSOR, AttributeProto.SPARSE_TENSORS)


def take_sparse(graph: GraphProto, domain: str) -> Taken:
    """Take the sparse initializers, Constants and attributes out of the graph and those nested in
    it.

    In the place of each stands an operator of `domain` without operands, whose result has the dense
    type; in that of an initializer that is an input as well, the input; in that of a call's
    attributes, one that numbers them.
    """
    taken: Taken = {}
    # a nested one before the node that holds it is copied
    for inner in reversed(list(every_graph(graph))):
        declared = {v.name for v in (*inner.input, *inner.output, *inner.value_info)}
        inputs = {v.name for v in inner.input}
        stands, nodes = [], list(inner.node)
        for tensor in inner.sparse_initializer:
            number = f"Sparse{len(taken)}"
            taken[number] = SparseTensorProto()
            taken[number].CopyFrom(tensor)
            if tensor.values.name not in inputs:
                stands.append(_stand(inner, number, tensor.values.name, tensor, domain, declared))
        del inner.sparse_initializer[:]
        for node in nodes:
            if _is_sparse_constant(node):
                number = f"Sparse{len(taken)}"
                kept = taken[number] = NodeProto()
                kept.CopyFrom(node)
                value = kept.attribute[0].sparse_tensor
                node.CopyFrom(_stand(inner, number, kept.output[0], value, domain, declared))
            elif given := [a for a in node.attribute if a.type in _SPARSE and not a.ref_attr_name]:
                number = f"Sparse{len(taken)}"
                kept = taken[number] = NodeProto(attribute=given)
                for a in given:
                    node.attribute.remove(a)
                node.attribute.add(name=domain, type=AttributeProto.STRING, s=number.encode())
        if stands:
            del inner.node[:]
            inner.node.extend([*stands, *nodes])
    return taken


def put_back_sparse(taken: Taken, graph: GraphProto, domain: str) -> None:
    """The inverse of `take_sparse`, in the converted graph, under the names that values have
    there.
    """
    waiting = dict(taken)
    for inner in reversed(list(every_graph(graph))):
        for node in [n for n in inner.node if n.domain == domain and n.op_type in taken]:
            original, name = waiting.pop(node.op_type), node.output[0]
            if isinstance(original, NodeProto):
                node.CopyFrom(original)
                node.output[0] = name
            else:
                inner.node.remove(node)
                inner.sparse_initializer.append(original)
                inner.sparse_initializer[-1].values.name = name
        for node in inner.node:
            for a in [a for a in node.attribute if a.name == domain]:
                node.attribute.remove(a)
                node.attribute.extend(taken[a.s.decode()].attribute)
    graph.sparse_initializer.extend(t for t in waiting.values() if isinstance(t, SparseTensorProto))


def _is_sparse_constant(node: NodeProto) -> bool:
    if node.op_type != "Constant" or not domains.is_default(node.domain):
        return False
    return [a.name for a in node.attribute if not a.ref_attr_name] == ["sparse_value"]


def _stand(
    graph: GraphProto,
    number: str,
    name: str,
    tensor: SparseTensorProto,
    domain: str,
    declared: set[str],
) -> NodeProto:
    """The operator that stands for `tensor`, which `graph` calls `name`; its type is declared
    there.
    """
    if name not in declared:
        graph.value_info.append(
            helper.make_tensor_value_info(name, tensor.values.data_type, list(tensor.dims))
        )
    return helper.make_node(number, [], [name], domain=domain)
