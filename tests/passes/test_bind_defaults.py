"""bind-defaults: inputs that have an initializer become constants, below IR 4 by default."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import onnxgrad
from onnxgrad.cli.app import main

SHAPES = {"w": (4, 3, 3, 3), "b": (4,), "s": (4,), "o": (4,), "m": (4,), "v": (4,)}


def conv_bn(ir: int) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array((rng.random(shape) + 0.5).astype(np.float32), name)
        for name, shape in SHAPES.items()
    ]
    inputs = {"x": ("N", 3, 8, 8), **SHAPES}
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
            helper.make_node("BatchNormalization", ["c", "s", "o", "m", "v"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info(name, 1, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info("y", 1, ("N", 4, 8, 8))],
        weights,
    )
    return helper.make_model(
        graph, ir_version=ir, opset_imports=[helper.make_opsetid("", 8)], producer_name="t"
    )


def done(ir: int, **options: Any) -> Any:
    return onnxgrad.optimize(conv_bn(ir), report=True, **options)


def test_onnxruntime_lets_nobody_override_weights_below_ir_4() -> None:
    for ir, names in ((3, []), (4, [*SHAPES])):
        session = onnxruntime.InferenceSession(conv_bn(ir).SerializeToString())
        assert [v.name for v in session.get_overridable_initializers()] == names


def test_below_ir_4_weights_become_constants() -> None:
    found = done(3)
    model = found.model
    assert [v.name for v in model.graph.input] == ["x"] and model.ir_version == 4
    assert [n.op_type for n in model.graph.node] == ["Conv"]
    assert model.ByteSize() < 0.9 * conv_bn(3).ByteSize()
    assert any("below IR 4" in note for note in found.outcome.notes)


def test_from_ir_4_on_they_stay_and_a_hint_says_what_binding_wins() -> None:
    found = done(8)
    assert len(found.model.graph.input) == 7 and len(found.model.graph.node) == 2
    (hint,) = found.outcome.notes
    assert "callers may override 6 inputs with an initializer" in hint
    assert "bind_defaults=True" in hint and "leaves 1 of 2 nodes" in hint


def test_binding_is_asked_for_from_ir_4_on() -> None:
    found = done(8, bind_defaults=True)
    assert [v.name for v in found.model.graph.input] == ["x"] and found.model.ir_version == 8
    assert [n.op_type for n in found.model.graph.node] == ["Conv"] and found.proof.ok
    assert onnxgrad.optimize(conv_bn(8), passes="bind-defaults,clean").graph.input[0].name == "x"


def test_without_leaves_the_inputs() -> None:
    assert len(done(3, without=["bind-defaults"]).model.graph.input) == 7


@pytest.mark.parametrize("ir", [3, 8])
def test_derivatives_still_see_the_weights(ir: int) -> None:
    small = onnxgrad.optimize(conv_bn(ir), preset="training-safe", bind_defaults=True)
    assert {t.name for t in small.graph.initializer} == {*SHAPES}
    gradients = onnxgrad.gradient(small, target="y[:, 0]", wrt=["w", "s"]).graph.output
    assert [v.name for v in gradients] == ["y", "w_grad", "s_grad"]


def test_the_flag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(conv_bn(8), tmp_path / "a.onnx")
    out = tmp_path / "b.onnx"
    words = ["optimize", str(tmp_path / "a.onnx"), "-o", str(out), "--bind-defaults"]
    assert main(words) == 0
    assert "6 inputs with an initializer became constants" in capsys.readouterr().out
    assert [v.name for v in onnx.load(out).graph.input] == ["x"]
