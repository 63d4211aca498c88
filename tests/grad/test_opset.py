"""onnxgrad/grad/opset.py: older models mean the same after they were raised."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxgrad.errors import InputError
from onnxgrad.grad import gradient
from tests.grad.numeric import check_model, normal, run


def test_slopes_per_channel_of_opset_6() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 3, opset_import: ["" : 6]> m (float[2,3,4,3] x, float[3] s) => (float[2,3,4,3] y) '
        "{ y = PRelu (x, s) }"
    )
    check_model(model, {"x": normal(2, 3, 4, 3), "s": normal(3, seed=1)}, onnxruntime=False)


def test_weights_below_ir_4_stay_constants() -> None:
    """They are listed as inputs there, and would become run-time operands: this Reshape would not type."""
    model = onnx.parser.parse_model(
        '<ir_version: 3, opset_import: ["" : 11]> m (float[2,3] x, float[3,2] w, int64[1] shape) => (float[4] y) '
        "{ p = MatMul (x, w) y = Reshape (p, shape) }"
    )
    model.graph.initializer.append(numpy_helper.from_array(normal(3, 2), "w"))
    model.graph.initializer.append(numpy_helper.from_array(np.array([-1]), "shape"))
    graph = gradient(model, "params", seed="input")
    assert [v.name for v in graph.graph.input] == ["x", "y_grad"]
    assert [v.name for v in graph.graph.output] == ["y", "w_grad"]
    feeds = {"x": normal(2, 3), "y_grad": normal(4, seed=1)}
    found = run(graph, feeds)
    np.testing.assert_allclose(found["w_grad"], feeds["x"].T @ feeds["y_grad"].reshape(2, 2), rtol=1e-5)


SCAN = (
    '<ir_version: 3, opset_import: ["" : 8]> m (float[2,2] a, float[2,3,1,2] x, int64[2] n) => (float[2,2] y, float[2,3,2] z) '
    "{{ y, z = Scan <num_scan_inputs = 1, directions = [{}], body = b (float[2] s, float[1,2] e) => (float[2] t, float[2] o) "
    "{{ f = Squeeze <axes = [0]> (e) p = Mul (s, f) t = Tanh (p) o = Sin (t) }}> ({}, a, x) }}"
)


@pytest.mark.parametrize("direction", [0, 1])
def test_the_batch_axis_of_scan_is_kept(direction: int) -> None:
    """onnx.version_converter drops it; the body is raised as well, and what the graph declares stays."""
    feeds = {"a": normal(2, 2), "x": normal(2, 3, 1, 2), "n": np.array([1, 2])}
    model = onnx.parser.parse_model(SCAN.format(direction, '""'))
    check_model(model, feeds, ["a", "x"], onnxruntime=True)
    graph = gradient(model, ["a"], 0, seed="input")
    assert list(graph.graph.input)[:2] == list(model.graph.input)[:2]
    assert list(graph.graph.output)[:2] == list(model.graph.output)


def test_a_batched_scan_with_lengths_is_refused() -> None:
    with pytest.raises(InputError, match="batch axis and lengths"):
        gradient(onnx.parser.parse_model(SCAN.format(0, "n")), "x", 0, seed="input")


def test_a_model_without_the_default_domain() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 3, opset_import: ["ai.onnx.ml" : 1]> m (float[3,4] x, int64[2] at) => (float[3,2] y) '
        "{ y = ai.onnx.ml.ArrayFeatureExtractor (x, at) }"
    )
    graph = gradient(model, "x", seed="input")
    assert {o.domain: o.version for o in graph.opset_import} == {"": 18, "ai.onnx.ml": 1}
    check_model(model, {"x": normal(3, 4), "at": np.array([2, 0])}, ["x"])
