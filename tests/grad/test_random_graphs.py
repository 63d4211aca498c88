"""Random graphs: gradients against central differences; with the optimiser before or after; fixed and symbolic batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, assume, given, settings
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

from onnxgrad.grad import gradient
from onnxgrad.ir.load import load
from onnxgrad.ir.save import to_proto
from onnxgrad.passes.pipeline import Pipeline
from onnxgrad.rewrite.trace import Trace
from onnxgrad.verify.reference import Reference
from onnxgrad.verify.run import run
from tests.grad.random_models import Drawn, models

# the same examples in every run: a rare near-tie of float32 is not to fail somebody else's change
FEW = settings(max_examples=40, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
MANY = settings(FEW, max_examples=400)


def differentiated(model: ModelProto, drawn: Drawn, wrt: list[str] | None = None, **options: Any) -> ModelProto:
    seed = "ones" if drawn.scalar else "input"
    return gradient(model, drawn.wrt if wrt is None else wrt, drawn.targets, seed=seed, **options)


def seeds(drawn: Drawn, shapes: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """A random adjoint for each target, in float32."""
    if drawn.scalar:
        return {}
    rng = np.random.default_rng(5)
    return {f"{t}_grad": rng.standard_normal(np.shape(shapes[t])).astype(np.float32) for t in drawn.targets}


def numbers(graph: ModelProto, wrt: list[str], values: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Requested value -> its adjoint; the adjoints are the last outputs, in the order asked."""
    names = [v.name for v in graph.graph.output][-len(wrt) :]
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


def check_differences(drawn: Drawn) -> int:
    """<g, v> of the gradient graph, in onnxruntime and in float64; answers how many values could be judged."""
    graph = differentiated(drawn.fixed, drawn)
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
    assume(np.isfinite(scale))
    rng = np.random.default_rng(6)
    middle = sum(float(np.sum((np.float64(u[f"{t}_grad"]) if u else 1.0) * base[t])) for t in drawn.targets)
    judged = 0
    for w, g in exact.items():
        v = rng.standard_normal(g.shape)

        def at(h: float, w: str = w, v: np.ndarray = v) -> float:
            found = along.run({**drawn.feeds, **still, f"{w}_delta": h * v})
            return sum(float(np.sum((np.float64(u[f"{t}_grad"]) if u else 1.0) * found[n])) for t, n in names.items())

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


# ---- the optimiser, and a symbolic batch --------------------------------------------------------------------------


def unequal(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray], tolerance: float) -> list[str]:
    """The values whose adjoints differ by more than `tolerance` of the largest entry of all."""
    scale = max(float(np.max(np.abs(g), initial=0.0)) for g in a.values())
    return [w for w, g in a.items() if np.max(np.abs(g - b[w]), initial=0.0) > tolerance * scale + 1e-12]


def optimized(model: ModelProto) -> ModelProto:
    """All that `optimize` does to a model that is to be trained, cost aside."""
    program = load(model)
    Pipeline.of("training-safe", merge="always").run(program, Trace())
    return to_proto(program)


def parameters(model: ModelProto) -> set[str]:
    return {v.name for v in (*model.graph.input, *model.graph.initializer)}


def check_optimized(drawn: Drawn) -> None:
    """optimize before, after, and a batch that stays symbolic: the same gradients in float64."""
    graph = differentiated(drawn.fixed, drawn)
    given = {**drawn.feeds, **seeds(drawn, Reference(drawn.fixed).run(drawn.feeds))}
    expected = numbers(graph, drawn.wrt, Reference(graph).run(given))
    assume(all(np.isfinite(g).all() for g in expected.values()))
    text = onnx.printer.to_text(drawn.symbolic)

    symbolic = differentiated(drawn.symbolic, drawn)
    found = numbers(symbolic, drawn.wrt, Reference(symbolic).run(given))
    assert not unequal(expected, found, 1e-6), f"symbolic batch: {unequal(expected, found, 1e-6)}\n{text}"
    program = load(symbolic)
    Pipeline.of(merge="always").run(program, Trace())
    found = numbers(symbolic, drawn.wrt, Reference(to_proto(program)).run(given))
    assert not unequal(expected, found, 1e-5), f"optimised: {unequal(expected, found, 1e-5)}\n{text}"
    better = optimized(drawn.symbolic)
    # weights that no output depends on are gone, and a value between may now stand for an equal one too
    wrt = [w for w in drawn.wrt if w in parameters(better)]
    before = differentiated(better, drawn, wrt)
    found = numbers(before, wrt, Reference(before).run(given))
    gone = {w: np.zeros_like(g) for w, g in expected.items() if w not in wrt and w in parameters(drawn.fixed)}
    assert not unequal(expected, {**expected, **gone, **found}, 1e-6), f"of the optimised: {wrt}\n{text}"


# ---- tests --------------------------------------------------------------------------------------------------------


@given(drawn=models())
@FEW
@pytest.mark.filterwarnings("ignore:no requested value reaches", "ignore:.* is taken")
def test_gradients_agree_with_differences(drawn: Drawn) -> None:
    check_differences(drawn)


@given(drawn=models())
@FEW
@pytest.mark.filterwarnings("ignore:no requested value reaches", "ignore:.* is taken")
def test_optimizing_changes_nothing(drawn: Drawn) -> None:
    check_optimized(drawn)


@pytest.mark.slow
@given(drawn=models())
@MANY
@pytest.mark.filterwarnings("ignore:no requested value reaches", "ignore:.* is taken")
def test_many_gradients_agree_with_differences(drawn: Drawn) -> None:
    check_differences(drawn)


@pytest.mark.slow
@given(drawn=models())
@MANY
@pytest.mark.filterwarnings("ignore:no requested value reaches", "ignore:.* is taken")
def test_optimizing_changes_nothing_on_many(drawn: Drawn) -> None:
    check_optimized(drawn)
