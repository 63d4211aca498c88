"""Random graphs: gradients against central differences; with the optimiser before or after; fixed and symbolic batch."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, assume, given, settings
from onnx import ModelProto

from onnxgrad.grad import vjp
from onnxgrad.ir.load import load
from onnxgrad.ir.save import to_proto
from onnxgrad.passes.pipeline import Pipeline
from onnxgrad.rewrite.trace import Trace
from onnxgrad.verify.reference.evaluate import Reference
from scripts.sweep_gradients import sweep
from tests.grad.judge import check_differences, differentiated, numbers, seeds
from tests.grad.random_models import Drawn, models

# the same examples in every run: a rare near-tie of float32 is not to fail somebody else's change
FEW = settings(
    max_examples=40, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck)
)
MANY = settings(FEW, max_examples=400)


# ---- the optimiser, and a symbolic batch --------------------------------------------------------------------------


def unequal(
    a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray], tolerance: float
) -> list[str]:
    """The values whose adjoints differ by more than `tolerance` of the largest entry of all."""
    scale = max(float(np.max(np.abs(g), initial=0.0)) for g in a.values())
    return [
        w for w, g in a.items() if np.max(np.abs(g - b[w]), initial=0.0) > tolerance * scale + 1e-12
    ]


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
    assert not unequal(expected, found, 1e-6), (
        f"symbolic batch: {unequal(expected, found, 1e-6)}\n{text}"
    )
    program = load(symbolic)
    Pipeline.of(merge="always").run(program, Trace())
    found = numbers(symbolic, drawn.wrt, Reference(to_proto(program)).run(given))
    assert not unequal(expected, found, 1e-5), (
        f"optimised: {unequal(expected, found, 1e-5)}\n{text}"
    )
    better = optimized(drawn.symbolic)
    # weights that no output depends on are gone, and a value between may now stand for an equal one too
    wrt = [w for w in drawn.wrt if w in parameters(better)]
    before = differentiated(better, drawn, wrt)
    found = numbers(before, wrt, Reference(before).run(given))
    gone = {
        w: np.zeros_like(g)
        for w, g in expected.items()
        if w not in wrt and w in parameters(drawn.fixed)
    }
    assert not unequal(expected, {**expected, **gone, **found}, 1e-6), (
        f"of the optimised: {wrt}\n{text}"
    )


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


# ---- everything asked for, at every opset ---------------------------------------------------------------------------


def test_a_sweep_with_everything_asked_for() -> None:
    counts, failures = sweep(0, models=12)
    assert not failures
    assert counts["models"] == 12 and counts["adjoints requested"] > 60


@pytest.mark.slow
def test_a_long_sweep_with_everything_asked_for() -> None:
    counts, failures = sweep(300, models=300)
    assert not failures
    assert counts["with checkpointing"] > 50


def test_a_failure_is_made_small_and_saved(tmp_path: Path) -> None:
    """A wrong rule is found, and what is left of the model is about it."""
    vjp("Tanh", lambda g, y, x: g * (1.0 - y), replace=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, failures = sweep(0, models=2, save=tmp_path)
    assert failures and "AssertionError" in failures[0]
    for path in tmp_path.glob("*.onnx"):
        left = onnx.load(path)
        assert "Tanh" in {n.op_type for n in left.graph.node} and len(left.graph.node) <= 6
        assert path.with_suffix(".npz").is_file() and "wrt " in path.with_suffix(".txt").read_text()
