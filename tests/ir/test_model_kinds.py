"""What users hold in their hands goes in, is not changed, and the same kind comes out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnx_ir
import pytest
from onnx.reference import ReferenceEvaluator

import onnxgrad
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.load import load, to_kind_of
from onnxgrad.ir.program import Program
from tests.helpers import parse

TEXT = """g (float[N,2] x, bool c) => (float[N,2] y) <float[2,2] w = {1, 2, 3, 4}> {
  t = MatMul(x, w)
  y = If (c) <then_branch = a () => (float[N,2] p) { p = Neg(t) }, else_branch = b () => (float[N,2] p) { p = Abs(t) }>
}"""


def doubled(program: Program) -> Program:
    """The first output times two, so that something changed."""
    block = program.main
    y = block.outputs[0]
    with emitting(block):
        twice = y * 1.0 * 2.0
    inner = twice.definition.inputs[0].definition  # type: ignore[union-attr]
    block.replace(y, twice)
    block.set_operand(inner, 0, y)
    block.check()
    return program


def run(model: onnx.ModelProto) -> Any:
    x = np.array([[1, -2], [3, 4]], np.float32)
    return [
        ReferenceEvaluator(model).run(None, {"x": x, "c": np.array(c)})[0] for c in (True, False)
    ]


@pytest.fixture
def model() -> onnx.ModelProto:
    return parse(TEXT)


def test_graphsurgeon(model: onnx.ModelProto) -> None:
    graph = gs.import_onnx(parse(TEXT))
    before = gs.export_onnx(graph.copy()).SerializeToString()
    found = to_kind_of(doubled(load(graph)), graph)
    assert type(found) is gs.Graph
    assert gs.export_onnx(graph.copy()).SerializeToString() == before
    after = gs.export_onnx(found, ir_version=10)
    assert (after.opset_import[0].version, load(graph).ir_version) == (20, 10)
    np.testing.assert_allclose(run(after), 2 * np.array(run(model)))


def test_to_graphsurgeon(model: onnx.ModelProto) -> None:
    program = load(model)
    for given in (program, program.main, model):
        graph = onnxgrad.to_graphsurgeon(given)
        assert isinstance(graph, gs.Graph)
        graph.outputs[0].name = "renamed"
        again = load(graph).main
        assert [v.name for v in again.outputs] == ["renamed"] and [
            v.name for v in program.main.outputs
        ] == ["y"]


def test_onnx_ir(model: onnx.ModelProto) -> None:
    given = onnx_ir.from_proto(model)
    before = onnx_ir.to_proto(given).SerializeToString()
    found = to_kind_of(doubled(load(given)), given)
    assert type(found) is onnx_ir.Model
    assert onnx_ir.to_proto(given).SerializeToString() == before
    np.testing.assert_allclose(run(onnx_ir.to_proto(found)), 2 * np.array(run(model)))


def test_model_proto_path_and_bytes_give_a_model_proto(
    model: onnx.ModelProto, tmp_path: Path
) -> None:
    before = model.SerializeToString()
    path = tmp_path / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, size_threshold=0, convert_attribute=True)
    for given in (parse(TEXT), before, path, str(path)):
        found = to_kind_of(doubled(load(given)), given)
        assert isinstance(found, onnx.ModelProto)
        np.testing.assert_allclose(run(found), 2 * np.array(run(parse(TEXT))))
    assert all(t.data_location == onnx.TensorProto.DEFAULT for t in found.graph.initializer), (
        "weights are loaded"
    )
    again = parse(TEXT)
    doubled(load(again))
    assert again.SerializeToString() == before
