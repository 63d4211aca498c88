"""The suite's cases of `ai.onnx.preview.training`, lowered and run in stock onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from onnxgrad.errors import InputError
from onnxgrad.report.optimize import optimize
from onnxgrad.train.preview_training import DOMAIN
from onnxgrad.verify.running.run import run
from tests.backend_suite import Case, usable
from tests.helpers import parse


def cases() -> list[Case]:
    return [c for c in usable() if any(o.domain == DOMAIN for o in c.model.opset_import)]


def lowered(model: onnx.ModelProto) -> onnx.ModelProto:
    return optimize(model, passes="lower-training", verify=False)


def test_every_case_of_the_suite() -> None:
    found = cases()
    assert {n.op_type for c in found for n in c.model.graph.node} >= {
        "Gradient",
        "Adam",
        "Adagrad",
        "Momentum",
    }
    for c in found:
        model = lowered(c.model)
        assert all(n.domain != DOMAIN for n in model.graph.node), c.name
        got = run(model, c.inputs)
        for value, expected in zip(model.graph.output, c.outputs, strict=True):
            np.testing.assert_allclose(
                got[value.name], expected, rtol=1e-4, atol=1e-6, err_msg=c.name
            )


GRADIENT = """<ir_version: 8, opset_import: ["" : 18, "ai.onnx.preview.training" : 1]>
g (float[3] x, float[3] h) => (float[3] y, float[3] d) {
    t = Tanh (x)
    y = Mul (t, x)
    d = ai.onnx.preview.training.Gradient <xs = ["x"], y = "y"> (%s)
}"""


@pytest.mark.parametrize("operand", ["x", "h"])
def test_gradient_at_the_operands_value(operand: str) -> None:
    model = lowered(onnx.parser.parse_model(GRADIENT % operand))
    feeds = {"x": np.float32([0.1, -2, 3]), "h": np.float32([1, 0.5, -1])}
    at = feeds[operand].astype(np.float64)
    expected = np.tanh(at) + at * (1 - np.tanh(at) ** 2)
    np.testing.assert_allclose(run(model, feeds)["d"], expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("binding", "words"),
    [
        ('Gradient <xs = ["q"], y = "y"> (x)', "names 'q', which is no value"),
        ('Gradient <xs = ["x"], y = "q"> (x)', "names 'q', which is no value"),
        ('Gradient <xs = ["x"], y = "y"> (x, h)', "2 operands for 1 names"),
        ("Momentum (r, i, x, h)", "2 tensors, not 3 for each"),
    ],
)
def test_bindings_that_say_nothing(binding: str, words: str) -> None:
    text = GRADIENT.partition("d = ai")[0].replace("(float[3] x", "(float r, int64 i, float[3] x")
    with pytest.raises(InputError, match=words):
        lowered(onnx.parser.parse_model(f"{text}d = ai.onnx.preview.training.{binding} }}"))


def test_what_it_does_not_touch() -> None:
    model = parse("g (float[3] x) => (float[3] y) { y = Tanh (x) }")
    assert lowered(model) == model
