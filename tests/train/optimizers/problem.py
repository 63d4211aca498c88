"""A small problem to optimise: least squares with a matrix, a vector and a scalar, by arrays, by a graph, by PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import onnx

from onnxgrad.ir.save import to_proto
from onnxgrad.train import Optimizer, TrainingStep, training_step
from onnxgrad.verify.running.session import run
from tests.helpers import parse

Arrays = dict[str, Any]
# an optimiser, a learning rate, and the problem's parameters after 20 steps of torch.optim in float64
Recorded = tuple[Optimizer, float, list[float]]

X = np.array([[1.0, -0.5, 2.0], [0.25, 1.5, -1.0], [-2.0, 0.75, 0.5], [0.5, 1.0, 1.25]])
T = np.array([[0.5, -1.0], [2.0, 0.25], [-0.75, 1.0], [1.5, -2.0]])
START = {
    "w": np.array([[0.3, -0.2], [0.8, 0.5], [-0.6, 0.9]]),
    "b": np.array([0.1, -0.4]),
    "s": np.array(0.7),
}


def gradient(p: Mapping[str, Any], x: Any = X, t: Any = T) -> Arrays:
    """Of the mean of (s x w + b - t)^2."""
    d = 2 * (p["s"] * (x @ p["w"]) + p["b"] - t) / t.size
    return {"w": p["s"] * (x.T @ d), "b": d.sum(0), "s": np.sum(d * (x @ p["w"]))}


def by_arrays(
    optimizer: Optimizer, rate: float, steps: int = 20, dtype: Any = np.float64, first: int = 1
) -> tuple[Arrays, dict[str, Arrays]]:
    """Parameters, and their states, after so many steps of the optimiser's formula over arrays."""
    p = {name: value.astype(dtype) for name, value in START.items()}
    states = {name: optimizer.state(value) for name, value in p.items()}
    for step in range(first, first + steps):
        g = gradient(p, X.astype(dtype), T.astype(dtype))
        for name in p:
            before = {k: (v.shape, v.dtype) for k, v in {"": p[name], **states[name]}.items()}
            p[name], states[name] = optimizer.apply(
                p[name], g[name], states[name], step=step, rate=rate
            )
            assert {
                k: (v.shape, v.dtype) for k, v in {"": p[name], **states[name]}.items()
            } == before
    return p, states


def model(dtype: Any = np.float32) -> onnx.ModelProto:
    kind = {np.float16: "float16", np.float32: "float", np.float64: "double"}[dtype]
    made = parse(f"""g ({kind}[4, 3] x, {kind}[4, 2] t) => ({kind} loss) {{
        m = MatMul (x, w)  n = Mul (m, s)  y = Add (n, b)
        d = Sub (y, t)  e = Mul (d, d)  loss = ReduceMean <keepdims = 0> (e)
    }}""")
    made.graph.initializer.extend(
        onnx.numpy_helper.from_array(v.astype(dtype), k) for k, v in START.items()
    )
    return made


def by_graph(
    optimizer: Optimizer, rate: float, steps: int = 20, dtype: Any = np.float32, first: int = 1
) -> tuple[Arrays, TrainingStep]:
    """Parameters and states after so many steps of the training graph in onnxruntime."""
    step = training_step(model(dtype), optimizer=optimizer, wrt=list(START))
    proto, following = (
        to_proto(step.train),
        {f.name: f.next for f in step.manifest.inputs if f.next},
    )
    values: Arrays = dict(step.initial)
    for number in range(first, first + steps):
        at = {
            "step": np.array(number),
            "learning_rate": np.array(rate, np.result_type(dtype, "f4")),
        }
        feeds = {**values, **at, "x": X.astype(dtype), "t": T.astype(dtype)}
        found = run(proto, feeds, outputs=list(following.values()))
        values = {name: found[new] for name, new in following.items()}
    return values, step


def flat(p: Mapping[str, Any]) -> Any:
    return np.concatenate([np.ravel(p[name]) for name in START])


def by_torch(optimizer: Optimizer, rate: float, steps: int = 20) -> Any:
    """By the class of the same name in torch.optim with options of the same names, in float64."""
    import torch

    p = {k: torch.tensor(v, requires_grad=True) for k, v in START.items()}
    options = {**asdict(optimizer), "lr": rate}
    theirs = getattr(torch.optim, type(optimizer).__name__)(list(p.values()), **options)
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # which NAdam's mu_product takes
    for _ in range(steps):
        theirs.zero_grad()
        ((p["s"] * (torch.tensor(X) @ p["w"]) + p["b"] - torch.tensor(T)) ** 2).mean().backward()
        theirs.step()
    torch.set_default_dtype(usual)
    return flat({k: v.detach().numpy() for k, v in p.items()})


def assert_follows(optimizer: Optimizer, rate: float, expected: list[float]) -> None:
    """By arrays in float64 and by the graph in float32."""
    np.testing.assert_allclose(
        flat(by_arrays(optimizer, rate)[0]), expected, rtol=1e-12, atol=1e-12
    )
    np.testing.assert_allclose(flat(by_graph(optimizer, rate)[0]), expected, rtol=1e-5, atol=1e-5)


def assert_recorded(optimizer: Optimizer, rate: float, expected: list[float]) -> None:
    np.testing.assert_allclose(by_torch(optimizer, rate), expected, rtol=1e-12, atol=1e-12)
