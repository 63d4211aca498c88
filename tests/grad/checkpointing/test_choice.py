"""The choice of segments for a budget."""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest

from onnxgrad import gradient
from onnxgrad.errors import InputError
from onnxgrad.grad import differentiation
from onnxgrad.verify.running.session import run
from tests.grad.numeric import normal, scalar_model

LAYERS = 40


def chain() -> onnx.ModelProto:
    """Returns layers of one size. Kept values are freed from the last on, while gradients by weights
    come to stay, so that segments of equal bytes are not the best.
    """
    nodes = [f"h{i} = MatMul (t{i}, w{i}) t{i + 1} = Relu (h{i})" for i in range(LAYERS)]
    text = f"""<ir_version: 10, opset_import: ["" : 20]> g (float[1024,64] x) => (float loss) {{
        t0 = Sin (x) {" ".join(nodes)} q = Mul (t{LAYERS}, t{LAYERS})
        loss = ReduceMean <keepdims = 0> (q) }}"""
    return scalar_model(text, **{f"w{i}": normal(64, 64) / 8 for i in range(LAYERS)})


def least(model: onnx.ModelProto) -> int:
    """Returns the bytes that a refusal names."""
    with pytest.raises(InputError, match="the least found needs about") as e:
        gradient(model, None, "loss", checkpoint="1KB")
    return int(re.findall(r"\d+", str(e.value))[-1])


@pytest.mark.slow
def test_a_refusal_names_the_least_after_moving_boundaries_and_it_is_met(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, feeds = chain(), {"x": normal(1024, 64)}
    found = least(model)
    marked = run(gradient(model, None, "loss", checkpoint=found), feeds)
    for name, value in run(gradient(model, None, "loss"), feeds).items():
        np.testing.assert_array_equal(marked[name], value)
    monkeypatch.setattr(differentiation, "neighbours", lambda *_: [])
    assert found < least(model)
