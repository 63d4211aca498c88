"""The standard's own formulas: over arrays as its operators give them, in the reference and lowered in onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from onnxgrad.report.optimize import optimize
from onnxgrad.train.optimizers.base import Optimizer
from onnxgrad.train.optimizers.standard import StandardAdagrad, StandardAdam, StandardMomentum
from onnxgrad.verify.running.run import run
from tests.helpers import parse
from tests.train.optimizers.problem import by_arrays, by_graph, flat

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
