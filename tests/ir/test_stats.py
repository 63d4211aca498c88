"""Counts of a model: nested nodes, parameters of every kind of constant, bytes inside and outside of the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

from onnxgrad.ir.stats import operator, stats_of
from tests.helpers import parse
from tests.rewriting import model_of


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
