"""The update beside the gradient gives the same numbers as the update in the graph."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from onnxgrad.errors import InputError
from onnxgrad.train import Manifest, Optimizer, Trainer, training_step
from onnxgrad.train.engines import blocks, session
from onnxgrad.train.engines.blocks import BlocksEngine, fits, gradient_graph
from onnxgrad.train.engines.flat_buffers import optimizer_of
from onnxgrad.train.engines.graph import GraphEngine
from onnxgrad.train.optimizers import OPTIMIZERS, SGD, Adafactor, Adam, NAdam
from onnxgrad.train.schedules import Schedule
from tests.helpers import ROOT, stored_arrays
from tests.train.common import examples, step
from tests.train.update.test_emission import OPTIONS

ELEMENTWISE = [SGD(momentum=0.9), *(cls() for cls in OPTIMIZERS.values() if cls.elementwise)]


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [
        pytest.param(
            name,
            optimizer,
            id=f"{name}-{optimizer.name}",
            # every optimiser on one model, every model with one optimiser
            marks=[pytest.mark.slow] * (name != "mlp" and not isinstance(optimizer, Adam)),
        )
        for name in ("mlp", "gpt2", "lstm_tagger")
        for optimizer in ELEMENTWISE
    ],
)
def test_the_same_numbers(name: str, optimizer: Optimizer) -> None:
    path = ROOT / "models" / "training" / f"{name}.onnx"
    stored = stored_arrays(path.with_suffix(".npz"))
    task = training_step(path, optimizer=optimizer)
    batch = {fed.name: stored[f"in:{fed.name}"] for fed in task.manifest.of_role("batch")}
    graph, blocks = GraphEngine(task, threads=1), BlocksEngine(task, threads=1)
    losses = [[engine.run(batch, t, 1e-2).loss for t in range(1, 9)] for engine in (graph, blocks)]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
    expected, found = graph.values, blocks.values
    assert found.keys() == expected.keys()
    for key, value in found.items():
        np.testing.assert_allclose(value, expected[key], rtol=1e-4, atol=1e-6, err_msg=key)


def test_the_gradient_graph_has_no_update() -> None:
    program = gradient_graph(step())
    assert [v.name for v in program.main.inputs] == ["x", "labels", "w1", "b1", "w2", "b2"]
    assert [v.name for v in program.main.outputs[:2]] == ["loss", "loss.divisor"]
    assert len(program.main.outputs) == 6
    assert not any(b.is_op("Sqrt") for b in program.main.bindings)


def test_a_loss_that_is_no_number_changes_nothing() -> None:
    engine = BlocksEngine(step(), threads=1)
    before = engine.values
    data = examples(4)
    assert not np.isfinite(engine.run({**data, "x": data["x"] * np.inf}, 1, 0.1).loss)
    assert all(np.array_equal(value, before[key]) for key, value in engine.values.items())


def test_the_optimiser_comes_back_from_the_manifest() -> None:
    made = Adam(betas=(0.8, 0.9), eps=1e-6, weight_decay=0.1)
    manifest = Manifest.from_json(step(made).manifest.to_json())
    assert optimizer_of(manifest.optimizer) == made


def test_metrics_come_with_the_loss() -> None:
    engine = BlocksEngine(step(metrics=["logits"]), threads=1)
    assert engine.run(examples(5), 1, 0.1).metrics["logits"].shape == (5, 3)


def test_who_may_choose() -> None:
    assert fits(step())
    assert not fits(step(Adafactor()))
    with pytest.raises(
        InputError, match=r"^Trainer: engine must be one of auto, graph, blocks, not "
    ):
        Trainer(step(), engine="steam")  # type: ignore[arg-type]
    with pytest.raises(InputError, match='engine="blocks" runs on the CPU'):
        Trainer(step(), provider="cuda", engine="blocks")


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: ",".join(o) or "plain")
@pytest.mark.parametrize("accumulate", [1, 2])
def test_every_option_beside_the_graph(options: dict[str, Any], accumulate: int) -> None:
    task = step(accumulate=accumulate, **options)
    if "loss_scale" in options:
        assert not fits(task)
        return
    assert fits(task)
    graph, blocks = GraphEngine(task, threads=1), BlocksEngine(task, threads=1)
    for number in range(12):
        batch = examples(8, seed=number)
        graph.part = blocks.part = number % accumulate
        expected, found = (e.run(batch, 1 + number // accumulate, 0.0625) for e in (graph, blocks))
        assert found.loss == pytest.approx(expected.loss, rel=1e-5)
        assert found.metrics.keys() == expected.metrics.keys()
        if norm := task.manifest.gradient_norm:
            assert found.metrics.get(norm, 0) == pytest.approx(expected.metrics.get(norm, 0), 1e-5)
    values = graph.values
    assert blocks.values.keys() == values.keys()
    for name, value in blocks.values.items():
        np.testing.assert_allclose(value, values[name], rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    ("groups", "wrt"),
    [
        ([("w1", NAdam(lr=0.01)), ("b2", {"lr": 0.05}), ("w2", SGD())], "params"),
        ([("w1", NAdam(lr=0.01)), ("w2", SGD())], "w*"),  # no weight is left for the optimiser
    ],
    ids=["some", "all"],
)
@pytest.mark.parametrize("optimizer", [cls() for cls in OPTIMIZERS.values() if cls.elementwise])
def test_each_group_has_its_optimiser(optimizer: Optimizer, groups: Any, wrt: str) -> None:
    task = step(optimizer, groups=groups, wrt=wrt)
    graph, blocks = GraphEngine(task, threads=1), BlocksEngine(task, threads=1)
    for number in range(1, 9):
        for engine in (graph, blocks):
            engine.run(examples(8, seed=number), number, 0.01)
    values = graph.values
    assert blocks.values.keys() == values.keys()
    for name, value in blocks.values.items():
        np.testing.assert_allclose(value, values[name], rtol=1e-5, atol=1e-6, err_msg=name)


def test_no_norm_makes_no_step_beside_the_graph() -> None:
    engine = BlocksEngine(step(clip_norm=1.0), threads=1)
    before = engine.values
    data = examples(4)
    found = engine.run({**data, "x": data["x"] * np.float32(1e37)}, 1, 0.1)
    assert not np.isfinite(found.metrics["gradient_norm"])
    if np.isfinite(found.loss):
        assert all(np.array_equal(value, before[key]) for key, value in engine.values.items())


def test_what_has_a_schedule_of_ones_own_or_a_group_of_another_stays_in_the_graph() -> None:
    @dataclass(frozen=True)
    class Own(Schedule):
        def after(self, done: Any, math: Any) -> Any:
            return np.float64(0.5) / (done + 1.0)

    assert not fits(step(schedule=Own()))
    assert not fits(step(groups={"w1": Adafactor()}))


@pytest.mark.slow
def test_the_graph_that_was_built_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[weakref.ref[Any]] = []

    def noted(task: Any) -> Any:
        graph = gradient_graph(task)
        built.append(weakref.ref(graph.main))
        return graph

    monkeypatch.setattr(blocks, "gradient_graph", noted)
    monkeypatch.setattr(session, "_LARGE", 1)
    engine = BlocksEngine(step(), threads=1)
    assert [graph() for graph in built] == [None]
    assert np.isfinite(engine.run(examples(4), 1, 0.1).loss)
