"""Gradients of random models against central differences: in onnxruntime, in float64, each output by its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

from onnxgrad import gradient
from onnxgrad.verify.reference.evaluate import Reference
from onnxgrad.verify.running.session import run
from tests.grad.random_models import Drawn


def differentiated(
    model: ModelProto, drawn: Drawn, wrt: list[str] | None = None, **options: Any
) -> ModelProto:
    adjoint = "ones" if drawn.scalar else "input"
    return gradient(
        model, drawn.wrt if wrt is None else wrt, drawn.targets, adjoint=adjoint, **options
    )


def seeds(drawn: Drawn, shapes: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """A random adjoint for each target, in float32."""
    if drawn.scalar:
        return {}
    rng = np.random.default_rng(5)
    return {
        f"{t}_grad": rng.standard_normal(np.shape(shapes[t])).astype(np.float32)
        for t in drawn.targets
    }


def numbers(graph: ModelProto, wrt: list[str], values: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Requested value -> its adjoint, each by its own name; the adjoints are the last outputs, in the order asked."""
    names = [v.name for v in graph.graph.output][-len(wrt) :]
    given = {v.name for v in graph.graph.input}
    expected = [f"{w}_grad_2" if f"{w}_grad" in given else f"{w}_grad" for w in wrt]
    assert names == expected, f"outputs {names} for {wrt}"
    return {w: np.asarray(values[n], np.float64) for w, n in zip(wrt, names, strict=True)}


# ---- differences --------------------------------------------------------------------------------------------------


def renamed(node: NodeProto, names: Mapping[str, str]) -> None:
    """Read other values, in nested graphs too."""
    for i, name in enumerate(node.input):
        node.input[i] = names.get(name, name)
    for attribute in node.attribute:
        for inner in attribute.g.node:
            renamed(inner, names)


def probe(model: ModelProto, wrt: list[str]) -> ModelProto:
    """The model with `w + w_delta` wherever it read w."""
    copy = ModelProto()
    copy.CopyFrom(model)
    graph: GraphProto = copy.graph
    for w in wrt:
        for node in graph.node:
            renamed(node, {w: f"{w}_moved"})
        made = next((i + 1 for i, n in enumerate(graph.node) if w in n.output), 0)
        graph.node.insert(made, helper.make_node("Add", [w, f"{w}_delta"], [f"{w}_moved"]))
        graph.input.append(helper.make_tensor_value_info(f"{w}_delta", TensorProto.FLOAT, None))
        for v in graph.output:
            v.name = f"{w}_moved" if v.name == w else v.name
    return copy


def check_differences(drawn: Drawn, **options: Any) -> int | None:
    """<g, v> of the gradient graph, in onnxruntime and in float64; how many values could be judged, None where the
    numbers of the model are not finite. Raises AssertionError that names the value that is off.
    """
    graph = differentiated(drawn.fixed, drawn, **options)
    onnx.checker.check_model(graph)
    moved = probe(drawn.fixed, drawn.wrt)
    along = Reference(moved)
    still = {f"{w}_delta": np.zeros(()) for w in drawn.wrt}
    names = {t: f"{t}_moved" if t in drawn.wrt else t for t in drawn.targets}
    base = Reference(drawn.fixed).run(drawn.feeds)
    u = seeds(drawn, base)
    given = {**drawn.feeds, **u}
    exact = numbers(graph, drawn.wrt, Reference(graph).run(given))
    found = numbers(graph, drawn.wrt, run(graph, given, threads=1))
    scale = np.sqrt(sum(float(np.sum(g * g)) for g in exact.values()))
    if not np.isfinite(scale):
        assert not all(np.isfinite(v).all() for v in base.values()), "a gradient that is not finite"
        return None
    rng = np.random.default_rng(6)
    middle = sum(
        float(np.sum((np.float64(u[f"{t}_grad"]) if u else 1.0) * base[t])) for t in drawn.targets
    )
    judged = 0
    for w, g in exact.items():
        v = rng.standard_normal(g.shape)

        def at(h: float, w: str = w, v: np.ndarray = v) -> float:
            found = along.run({**drawn.feeds, **still, f"{w}_delta": h * v})
            return sum(
                float(np.sum((np.float64(u[f"{t}_grad"]) if u else 1.0) * found[n]))
                for t, n in names.items()
            )

        h = 1e-5
        plus, minus, plus2, minus2 = at(h), at(-h), at(2 * h), at(-2 * h)
        small, large = (plus - minus) / (2 * h), (plus2 - minus2) / (4 * h)
        # the difference of the one-sided slopes: h f'' where f is smooth, the jump itself at a kink
        bend, bend2 = (plus - 2 * middle + minus) / h, (plus2 - 2 * middle + minus2) / (2 * h)
        size = max(1.0, np.sqrt(g.size))
        tolerance = 1e-7 * size * max(scale, abs(small), 1e-3)
        if abs(small - large) > tolerance or abs(2 * bend - bend2) > tolerance:
            continue  # a kink within the step
        judged += 1
        expected = (4 * small - large) / 3
        text = onnx.printer.to_text(drawn.fixed)
        assert abs(np.sum(g * v) - expected) <= 1e-6 * size * scale + 1e-9, (
            f"float64, {w}: {np.sum(g * v)}, differences {expected}\n{text}"
        )
        assert abs(np.sum(found[w] * v) - expected) <= 1e-4 * size * scale + 1e-5, (
            f"onnxruntime, {w}: {np.sum(found[w] * v)}, differences {expected}\n{text}"
        )
    return judged
