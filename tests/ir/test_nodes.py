"""Walks over protobufs reach what is nested, outer before inner."""

from __future__ import annotations

import onnx

from onnxgrad.ir.nodes import every_graph, every_node, graphs_of
from tests.helpers import parse


def test_nested_nodes_and_graphs() -> None:
    model = parse(
        """g (bool k, float[2] x) => (float[2] o) {
          o = If (k) <then_branch = t () => (float[2] u) {
              u = If (k) <then_branch = a () => (float[2] c) { c = Neg (x) }, else_branch = b () => (float[2] d) { d = Abs (x) }>
            }, else_branch = e () => (float[2] v) { v = Exp (x) }> }"""
    )
    assert [n.op_type for n in every_node(model.graph.node)] == ["If", "If", "Neg", "Abs", "Exp"]
    assert [g.name for g in every_graph(model.graph)] == ["g", "t", "a", "b", "e"]
    assert [g.name for g in graphs_of(model.graph.node[0])] == ["t", "e"]


def test_lists_of_graphs() -> None:
    node = onnx.NodeProto(op_type="Choose", domain="my")
    node.attribute.add(name="cases", type=onnx.AttributeProto.GRAPHS).graphs.extend(
        onnx.GraphProto(name=name, node=[onnx.NodeProto(op_type=name)]) for name in "AB"
    )
    assert [g.name for g in graphs_of(node)] == ["A", "B"]
    assert [n.op_type for n in every_node([node])] == ["Choose", "A", "B"]
