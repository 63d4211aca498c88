"""The suite's cases of `ai.onnx.preview.training`, lowered and run in stock onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from onnxgrad.errors import InputError
from onnxgrad.functions import optimize
from onnxgrad.plugins.onnx_training.preview_operators import (
    DOMAIN,
    StandardAdagrad,
    StandardAdam,
    StandardMomentum,
)
from onnxgrad.train.optimizers.base import Optimizer
from onnxgrad.verify.running.session import run
from tests.backend_suite import Case, usable
from tests.helpers import parse
from tests.train.optimizers.problem import by_arrays, by_graph, flat


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
        ('Gradient <xs = ["q"], y = "y"> (x)', "names 'q', which the graph does not have"),
        ('Gradient <xs = ["x"], y = "q"> (x)', "names 'q', which the graph does not have"),
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


X, G, V, H = (np.float32(v) for v in ([1, -2], [0.5, 0.25], [0.1, -0.2], [0.3, 0.4]))
CASES: list[tuple[Optimizer, str, dict[str, Any]]] = [
    (StandardAdam(), "Adam", {"v": V, "h": H}),
    (StandardAdam(0.1, 0.8, 0.95, 1e-3, 0.25), "Adam", {"v": V, "h": H}),
    (StandardAdagrad(0.1, 0.3, 1e-3), "Adagrad", {"h": H}),
    (StandardMomentum(0.1, 0.9, 0.7, "standard"), "Momentum", {"v": V}),
    (StandardMomentum(0.1, 0.9, 0.7, "nesterov"), "Momentum", {"v": V}),
]


@pytest.mark.parametrize("t", [0, 1, 7])
@pytest.mark.parametrize(("optimizer", "operator", "states"), CASES)
def test_as_the_operators(
    optimizer: Optimizer, operator: str, states: dict[str, Any], t: int
) -> None:
    options = {k: v for k, v in optimizer.to_dict().items() if k not in ("name", "lr", "maximize")}
    attributes = ", ".join(
        f'{k} = "{v}"' if isinstance(v, str) else f"{k} = {float(v)}" for k, v in options.items()
    )
    model = parse(f"""<ir_version: 8, opset_import: ["": 18, "ai.onnx.preview.training": 1]>
        g (float r, int64 t, float[2] x, float[2] g{"".join(f", float[2] {k}" for k in states)})
        => (float[2] x2{"".join(f", float[2] {k}2" for k in states)}) {{
            x2{"".join(f", {k}2" for k in states)}
                = ai.onnx.preview.training.{operator} <{attributes}> (r, t, x, g{"".join(f", {k}" for k in states)})
        }}""")
    feeds = {"r": np.float32(0.1), "t": np.array(t), "x": X, "g": G, **states}
    reference = dict(
        zip(
            [v.name for v in model.graph.output],
            ReferenceEvaluator(model).run(None, feeds),
            strict=True,
        )
    )
    lowered = run(optimize(model, passes="lower-training", verify=False), feeds)
    new, kept = optimizer.apply(X, G, states, step=t, rate=0.1)
    for name, value in {"x": new, **kept}.items():
        assert value.dtype == np.float32
        np.testing.assert_allclose(value, lowered[f"{name}2"], rtol=1e-6)
        np.testing.assert_allclose(value, reference[f"{name}2"], rtol=1e-6)


@pytest.mark.parametrize("optimizer", [case[0] for case in CASES])
def test_they_train(optimizer: Optimizer) -> None:
    np.testing.assert_allclose(
        flat(by_graph(optimizer, 2**-6)[0]), flat(by_arrays(optimizer, 2**-6)[0]), rtol=1e-4
    )
