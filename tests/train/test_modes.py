"""Modes are asked for, or as the file has them; what cannot train is refused, and what is not there is said."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from onnxgrad.errors import InputError
from onnxgrad.ir.save import to_proto
from onnxgrad.train import SGD, AdamW, CrossEntropy, Trainer, read_step, save_step, training_step
from onnxgrad.train.engines.graph import GraphEngine
from tests.helpers import ROOT, stored_arrays
from tests.train.modes_common import DROPOUT, batches, network

GPT2 = ROOT / "models" / "training" / "gpt2.onnx"
FUNCTION = """
<ir_version: 10, opset_import: ["": 18, "mine": 1]>
net (float[N, 3] x) => (float[N, 3] logits)
<float[3] w = {1, 2, 3}, float[3] b = {0, 1, 0}, float[3] mean = {0, 0, 0}, float[3] var = {1, 1, 1}>
{ logits = mine.outer (x, w, b, mean, var) }
<domain: "mine", opset_import: ["": 18, "mine": 1]>
outer (x, w, b, m, v) => (y) { y = mine.block (x, w, b, m, v) }
<domain: "mine", opset_import: ["": 18]>
block (x, w, b, m, v) => (y) { n = BatchNormalization (x, w, b, m, v)  y = Dropout (n) }
"""
NESTED = """
<ir_version: 10, opset_import: ["": 18]>
net (float[N, 3] x, bool c) => (float[N, 3] logits)
<float[3] w = {1, 2, 3}, float[3] b = {0, 1, 0}, float[3] mean = {0, 0, 0}, float[3] var = {1, 1, 1}>
{
  logits = If (c) <
    then_branch = t () => (float[N, 3] y) { y = BatchNormalization (x, w, b, mean, var) },
    else_branch = e () => (float[N, 3] z) { z = Dropout (x) }
  >
}
"""
DATA = {"x": np.arange(12, dtype=np.float32).reshape(4, 3) / 7, "labels": np.array([0, 1, 2, 0])}


def test_what_no_mode_is() -> None:
    with pytest.raises(InputError, match="batch_norm must be one of frozen, train, not 'on'"):
        training_step("models/training/mlp.onnx", batch_norm="on")


def test_what_is_not_there_is_said() -> None:
    step = training_step(
        network("f2 = Identity (f)"), CrossEntropy(), SGD(), batch_norm="frozen", dropout="train"
    )
    assert len(step.notes) == 1
    assert "no Dropout" in step.notes[0]
    found = training_step(network(DROPOUT), CrossEntropy(), batch_norm="train", dropout="train")
    assert found.notes == ("1 BatchNormalization in training", "1 Dropout in training")
    both = training_step(GPT2, batch_norm="train", dropout=0.1)
    assert [note[:11] for note in both.notes] == ["there is no", "there is no"]
    assert training_step(network(DROPOUT), CrossEntropy()).notes == ()


def test_what_functions_hold_trains() -> None:
    model = onnx.parser.parse_model(FUNCTION)
    step = training_step(model, CrossEntropy(), SGD(), batch_norm="train", dropout=0.5)
    assert [fed.name for fed in step.manifest.running()] == ["mean", "var"]
    assert len(step.manifest.of_role("seed")) == 1
    trainer = Trainer(step, 0.1)
    trainer.step(DATA)
    mean = 0.1 * DATA["x"].mean(0)
    np.testing.assert_allclose(trainer.weights["mean"], mean, atol=1e-6)
    expected = Trainer(training_step(model, CrossEntropy(), SGD()), 0.1).evaluate([DATA])
    held = Trainer(step, 0.1).evaluate([DATA])
    np.testing.assert_allclose(held["loss"], expected["loss"], rtol=1e-6)


@pytest.mark.parametrize("options", [{"batch_norm": "train"}, {"dropout": "train"}])
def test_what_branches_hold_cannot_train(options: dict[str, Any]) -> None:
    model = onnx.parser.parse_model(NESTED)
    with pytest.raises(InputError, match="inside of If, where it cannot train"):
        training_step(model, CrossEntropy(), SGD(), **options)
    assert training_step(model, CrossEntropy(), SGD()).manifest.running() == []


def test_a_step_with_modes_is_saved_and_read(tmp_path: Any) -> None:
    step = training_step(
        network(DROPOUT), CrossEntropy(), AdamW(), batch_norm="train", dropout="train"
    )
    save_step(step, tmp_path)
    found, expected = Trainer(read_step(tmp_path), 0.01), Trainer(step, 0.01)
    for batch in batches(3):
        assert found.step(batch) == expected.step(batch)
    for name, value in expected.weights.items():
        np.testing.assert_array_equal(found.weights[name], value)
    assert found.evaluate(batches(1)) == expected.evaluate(batches(1))


def test_modes_with_other_options_of_a_step() -> None:
    """Clipping, accumulation and an average leave the statistics and the masks what they are."""
    plain, rich = (
        training_step(
            network(DROPOUT), CrossEntropy(), SGD(), batch_norm="train", dropout="train", **options
        )
        for options in ({}, {"clip_norm": 1e9, "average": 0.9, "accumulate": 2})
    )
    engine, expected, batch = GraphEngine(rich), GraphEngine(plain), batches(1)[0]
    loss = engine.run(batch, 1, 0.1).loss
    assert loss == expected.run(batch, 1, 0.0).loss
    for fed in plain.manifest.running():
        np.testing.assert_array_equal(engine.values[fed.name], expected.values[fed.name])


def test_statistics_are_none_of_the_weights_to_train() -> None:
    with pytest.raises(InputError, match="bn_mean"):
        training_step(network(), CrossEntropy(), SGD(), ["conv_w", "bn_mean"], batch_norm="train")


def test_the_same_bytes_each_time() -> None:
    options: dict[str, Any] = {"batch_norm": "train", "dropout": "train"}
    found = [
        to_proto(training_step(network(DROPOUT), CrossEntropy(), **options).train, weights=True)
        for _ in range(2)
    ]
    assert found[0].SerializeToString() == found[1].SerializeToString()


@pytest.mark.slow
@pytest.mark.parametrize("checkpoint", ["auto", 160_000])
def test_checkpoints_change_no_loss(checkpoint: Any) -> None:
    stored = stored_arrays(GPT2.with_suffix(".npz"))
    batch = {k.removeprefix("in:"): stored[k] for k in stored if k.startswith("in:")}
    losses = []
    sizes = []
    for choice in (None, checkpoint):
        step = training_step(GPT2, optimizer=AdamW(), checkpoint=choice)
        trainer = Trainer(step, 1e-3, engine="graph", threads=1)
        losses.append([trainer.step(batch) for _ in range(5)])
        sizes.append(len(step.train.main.bindings))
    assert sizes[1] > sizes[0]
    np.testing.assert_allclose(losses[0], losses[1], atol=1e-6)


def test_a_recomputed_normalisation_moves_its_statistics_once() -> None:
    found = []
    for choice in (None, ["c", "f"]):
        step = training_step(
            network(DROPOUT), CrossEntropy(), SGD(), batch_norm="train", dropout="train",
            checkpoint=choice,
        )  # fmt: skip
        trainer = Trainer(step, 0.05, engine="graph", threads=1)
        found.append(([trainer.step(b) for b in batches(5)], trainer.weights))
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-6)
    for name, value in found[0][1].items():
        np.testing.assert_allclose(found[1][1][name], value, atol=1e-6)
