"""onnxgrad/ir/protobufs.py: walks, elements and counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxgrad.ir.protobufs import (
    DATA_FIELDS,
    clear_data,
    elements,
    every_graph,
    every_node,
    graphs_of,
    operator,
    stats_of,
    tensor_of,
)
from tests.helpers import parse
from tests.rewriting import model_of


def test_a_tensor_without_data_keeps_name_dtype_and_shape() -> None:
    described = {"name", "dims", "data_type", "doc_string", "metadata_props", "segment"}
    assert {*DATA_FIELDS} == {*onnx.TensorProto.DESCRIPTOR.fields_by_name} - described
    tensor = numpy_helper.from_array(np.ones((2, 3), np.float32), "w")
    clear_data(tensor)
    assert tensor == onnx.TensorProto(name="w", dims=[2, 3], data_type=onnx.TensorProto.FLOAT)


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


ARRAYS: dict[str, Any] = {
    "a number": np.array(3.5, np.float32),
    "nothing": np.zeros((0, 3), np.float32),
    "float64": np.arange(3.0),
    "int64": np.arange(6).reshape(2, 3),
    "int32": np.arange(6, dtype=np.int32),
    "bool": np.array([[True, False]]),
    "transposed": np.arange(6, dtype=np.float32).reshape(2, 3).T,
    "every second": np.arange(6)[::2],
    "float16": np.arange(3, dtype=np.float16),
    "bfloat16": np.arange(3).astype(ml_dtypes.bfloat16),
    "uint8": np.arange(3, dtype=np.uint8),
    "strings": np.array(["a", "ö"], object),
}


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
def test_a_tensor_is_that_of_onnx(array: Any) -> None:
    made, expected = tensor_of(array, "n"), numpy_helper.from_array(array, "n")
    assert made == expected and made.SerializeToString() == expected.SerializeToString()
    back = elements(made)
    assert back.shape == array.shape and (back == array).all()


def test_nodes_of_branches_and_functions_count() -> None:
    text = """<ir_version: 10, opset_import: ["" : 20, "f" : 1]> g (float[2] x, bool c) => (float[2] y) {
        z = f.twice (x)
        y = If (c) <then_branch = t () => (float[2] p) { p = Neg (z) }, else_branch = e () => (float[2] q) { q = Neg (x) }> }
      <domain: "f", opset_import: ["" : 20]> twice (x) => (y) { y = Add (x, x) }"""
    found = stats_of(parse(text))
    assert (
        dict(found.operators) == {"f::twice": 1, "If": 1, "Neg": 2, "Add": 1} and found.nodes == 5
    )
    assert list(found.to_dict()["operators"]) == ["Add", "If", "Neg", "f::twice"], "sorted"


def test_parameters_are_those_of_initializers_and_constants_alike() -> None:
    text = """g (float[2,3] x) => (float[2,3] y) {
        k = Constant <value = float[3] {1, 2, 3}> ()  a = Add (x, w)  y = Mul (a, k) }"""
    found = stats_of(
        model_of(text, {"w": np.ones((2, 3), np.float16), "i": np.zeros((), np.int64)})
    )
    assert found.parameters == 10 and dict(found.dtypes) == {"f16": 6, "f32": 3, "i64": 1}


def test_external_data_counts_once_and_is_not_read(tmp_path: Path) -> None:
    model = model_of(
        "g (float[64] x) => (float[64] y) { y = Add (x, w) }", {"w": np.ones(64, np.float32)}
    )
    inside = stats_of(model)
    assert inside.bytes == model.ByteSize()
    onnx.save(
        model, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0
    )
    outside = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    (tmp_path / "w.bin").unlink()
    assert stats_of(outside).bytes == outside.ByteSize() + 256
    outside.graph.initializer.add().CopyFrom(
        outside.graph.initializer[0]
    )  # two names for one place
    outside.graph.initializer[1].name = "v"
    assert stats_of(outside).bytes == outside.ByteSize() + 256
    for tensor in outside.graph.initializer:  # the length may be left out
        kept = [e for e in tensor.external_data if e.key != "length"]
        del tensor.external_data[:]
        tensor.external_data.extend(kept)
    assert stats_of(outside).bytes == outside.ByteSize() + 256


def test_names_of_operators() -> None:
    node = onnx.helper.make_node
    assert [operator(node("Conv", [], [], domain=d)) for d in ("", "ai.onnx", "com.x")] == [
        "Conv",
        "Conv",
        "com.x::Conv",
    ]
