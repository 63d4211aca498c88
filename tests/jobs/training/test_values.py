"""Checkpoints that are refused, averaged weights, and which weights are exported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from onnxgrad.errors import InputError, RunWarning
from onnxgrad.train import Trainer, training_step
from onnxgrad.train.callbacks import Event
from onnxgrad.train.divergence import Diverged
from onnxgrad.train.run_folder import CHECKPOINT
from tests.train.common import classifier, examples, step, write_model


def trainer(rate: float = 1e-2) -> Trainer:
    return Trainer(step(), rate, threads=1)


def test_a_checkpoint_of_another_model_or_a_damaged_one(tmp_path: Path) -> None:
    Trainer(step(wrt=["w1"]), threads=1).save(tmp_path / "a")
    with pytest.raises(InputError, match=r"parameters b1, b2, w2 \(was none\)"):
        trainer().restore(tmp_path / "a")
    trainer().save(tmp_path / "b")
    (tmp_path / "b").write_bytes((tmp_path / "b").read_bytes()[:-50])
    with pytest.raises(InputError, match="not a safetensors file"):
        trainer().restore(tmp_path / "b")
    with pytest.raises(InputError, match="cannot be read"):
        trainer().restore(tmp_path / "c")


def test_only_the_trained_weights_differ(tmp_path: Path) -> None:
    model = write_model(tmp_path)
    own = Trainer(step(wrt=["w2"]), 1e-2, threads=1)
    own.fit(examples(64))
    before, after = onnx.load(model), own.export(model)
    for old, new in zip(before.graph.initializer, after.graph.initializer, strict=True):
        assert (old == new) is (old.name != "w2")
    assert before.graph.node == after.graph.node
    assert json.loads(after.metadata_props[0].value)["weights"] == ["w2"]


def test_averaged_weights_are_evaluated_and_exported(tmp_path: Path) -> None:
    own = Trainer(step(average=0.9), 0.01, threads=1)
    data = examples(64)
    own.fit(data, epochs=3)
    exported = {
        t.name: onnx.numpy_helper.to_array(t)
        for t in own.export(write_model(tmp_path), averaged=True).graph.initializer
    }
    assert all(np.array_equal(exported[name], value) for name, value in own.averaged.items())
    assert not np.array_equal(own.averaged["w1"], own.parameters["w1"])
    plain, averaged = own.evaluate(data)["loss"], own.evaluate(data, averaged=True)["loss"]
    assert plain != averaged
    with pytest.raises(InputError, match="has no average of its weights"):
        trainer().evaluate(data, averaged=True)


def test_states_that_a_diverged_step_took_are_neither_saved_nor_gone_on_from(
    tmp_path: Path,
) -> None:
    own = Trainer(step(), lambda number: 1e-2 if number < 2 else 1e38, threads=1, engine="graph")
    data = examples(64)
    own.step(data)
    own.save(tmp_path / "good")
    own.step(data)  # its rate takes the parameters away
    with pytest.raises(Diverged):
        own.step(data)
    for again in (lambda: own.step(data), lambda: own.save(tmp_path / "bad")):
        with pytest.raises(InputError, match="overwrote the optimiser's states"):
            again()
    assert not (tmp_path / "bad").exists()
    own.restore(tmp_path / "good")
    assert np.isfinite(own.step(data))


def overfitted(**given: Any) -> tuple[Trainer, Any]:
    """A run whose held-out loss is smallest long before its end."""
    rng, data = np.random.default_rng(3), examples(32)
    data["labels"] = np.where(rng.random(32) < 0.1, rng.integers(0, 3, 32), data["labels"])
    own = Trainer(step(average=0.5), 0.1, threads=1)
    held_out = examples(64, seed=2)
    return own, own.fit(data, **({"epochs": 12, "validation": held_out} | given))


def loss_of(model: Any) -> float:
    task = training_step(model, "cross_entropy")
    return Trainer(task, threads=1).evaluate(examples(64, seed=2))["loss"]


@pytest.mark.parametrize("given", [{"patience": 3}, {"keep": "best"}, {"keep": ("best", 2)}])
@pytest.mark.parametrize("folder", [True, False])
def test_the_best_weights_are_exported(tmp_path: Path, given: Any, folder: bool) -> None:
    if "patience" not in given and not folder and given["keep"] != "best":
        given = {"keep": "best"}
    own, history = overfitted(**given, folder=tmp_path / "run" if folder else None)
    losses = [found["loss"] for found in history.evaluations]
    assert history.kept == "best" and min(losses) < 0.9 * losses[-1]
    assert history.best == {"step": losses.index(min(losses)) + 1, "loss": min(losses)}
    assert history.last == {"step": len(losses), "loss": losses[-1]}
    for weights, expected in ((None, min(losses)), ("best", min(losses)), ("last", losses[-1])):
        found = own.export(classifier(), weights=weights)
        assert loss_of(found) == pytest.approx(expected, rel=1e-6), weights
        assert json.loads(found.metadata_props[0].value)["steps"] == (
            len(losses) if weights == "last" else history.best["step"]
        )
    averaged = own.export(classifier(), averaged=True)
    assert loss_of(averaged) < losses[-1] and loss_of(averaged) != min(losses)
    if folder:
        best = Trainer(step(average=0.5), 0.1, threads=1)
        best.restore(tmp_path / "run" / "best.safetensors")
        assert best.evaluate(examples(64, seed=2))["loss"] == min(losses)


def test_the_last_weights_are_exported_by_default(tmp_path: Path) -> None:
    own, history = overfitted(folder=tmp_path, keep=3)
    assert history.kept == "last" and history.best["loss"] < history.last["loss"]
    assert loss_of(own.export(classifier())) == pytest.approx(history.last["loss"], rel=1e-6)
    assert loss_of(own.export(classifier(), weights="best")) == pytest.approx(
        history.best["loss"], rel=1e-6
    )
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "best.safetensors", *(f"checkpoint-{n}.safetensors" for n in (10, 11, 12)), CHECKPOINT
    ]  # fmt: skip
    unkept, _ = overfitted()
    with pytest.raises(InputError, match="the best weights are not kept: fit with validation="):
        unkept.export(classifier(), weights="best")


def test_a_run_that_has_ended_by_patience_stays_so(tmp_path: Path) -> None:
    _, whole = overfitted(patience=2, folder=tmp_path)
    before = (tmp_path / CHECKPOINT).read_bytes()
    with pytest.warns(
        RunWarning, match="training has ended: .* for 2 epochs; continue with a larger patience"
    ):
        own, history = overfitted(patience=2, folder=tmp_path)
    assert history.losses == [] and history.kept == "best" and history.best == whole.best
    assert (tmp_path / CHECKPOINT).read_bytes() == before
    assert loss_of(own.export(classifier())) == pytest.approx(whole.best["loss"], rel=1e-6)
    assert len(overfitted(patience=3, folder=tmp_path)[1].losses) >= 1


def test_the_best_of_a_run_that_was_killed_is_that_of_one_that_was_not(tmp_path: Path) -> None:
    overfitted(keep=("best", 2), folder=tmp_path / "whole")

    for at in (1, 2, 5, 9):  # before and behind the best

        def killed(event: Event, at: int = at) -> None:
            if event.evaluation is not None and event.step == at:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            overfitted(keep=("best", 2), folder=tmp_path / "broken", callbacks=[killed])
    _, history = overfitted(keep=("best", 2), folder=tmp_path / "broken")
    for path in (tmp_path / "whole").iterdir():
        assert (tmp_path / "broken" / path.name).read_bytes() == path.read_bytes()
    assert history.kept == "best"


def test_steps_that_end_within_an_epoch_are_evaluated_too() -> None:
    own = trainer()
    history = own.fit(examples(96), steps=5, validation=examples(32, seed=2), keep="best")
    assert len(history.evaluations) == 1  # of the epoch's end
    assert history.last["step"] == 5 and history.best["step"] in (3, 5)
    assert history.last["loss"] == own.evaluate(examples(32, seed=2))["loss"]
