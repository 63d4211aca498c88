"""Micro-batches give the loss curve and the weights of the batch that they make."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from onnxgrad.errors import InputError
from onnxgrad.train import SGD, CrossEntropy, Trainer, training_step
from onnxgrad.train.schedules import Cosine
from tests.train.common import TEXT, classifier, examples, step
from tests.train.follower import Follower

OPTIONS: list[dict[str, Any]] = [
    {},
    {"clip_norm": 0.1},
    {"clip_value": 0.01, "clip_norm": 0.02},
    {"groups": {"b*": {"weight_decay": 0.0}, "w2": SGD(lr=0.01)}, "average": 0.9},
    {"loss_scale": "dynamic", "clip_norm": 0.1},
    {"schedule": Cosine(0.0625, T_max=10), "metrics": ["gradient_norm"]},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: ",".join(o) or "plain")
def test_the_loss_curve_is_that_of_one_batch(options: dict[str, Any]) -> None:
    whole = [examples(12, seed=i) for i in range(8)]
    parts = [{k: a[i : i + 4] for k, a in batch.items()} for batch in whole for i in (0, 4, 8)]
    one, several = Follower(step(**options)), Follower(step(accumulate=3, **options))
    np.testing.assert_allclose(several.losses(parts), one.losses(whole), rtol=1e-6)
    for name, value in one.values.items():
        np.testing.assert_allclose(several.values[name], value, rtol=1e-5, atol=1e-6, err_msg=name)
    if norm := one.task.manifest.gradient_norm:
        np.testing.assert_allclose(several.outputs[norm], one.outputs[norm], rtol=1e-5)


def test_a_micro_batch_updates_nothing_but_sums() -> None:
    task = step(accumulate=2, metrics=["logits"])
    program = task.train
    sums = [f"{name}.accumulated.new" for name in ("w1", "b1", "w2", "b2")]
    assert [v.name for v in program.main.outputs] == ["logits", "loss", *sums]
    assert not {v.name for v in program.main.inputs} & {"step", "learning_rate", "w1.exp_avg"}
    assert task.update is not None
    assert not {v.name for v in task.update.main.inputs} & {"x", "labels"}


def test_a_sum_that_overflowed_begins_anew_with_zeros() -> None:
    own = Follower(step(SGD(), accumulate=2, loss_scale=2.0))
    data = examples(4)
    before = dict(own.values)
    own.values["w1.accumulated"] = np.full((8, 16), np.inf, np.float32)
    own.losses([data, data])
    assert not own.values["w1.accumulated"].any()
    np.testing.assert_array_equal(own.values["w1"], before["w1"])
    assert own.values["loss.skipped"] == 1


def test_an_input_of_the_model_may_be_called_as_one_of_the_update() -> None:
    model = onnx.parser.parse_model(TEXT.replace("x)", "step)").replace("(x,", "(step,"))
    model.graph.initializer.extend(classifier().graph.initializer)
    task = training_step(model, CrossEntropy(), SGD(), accumulate=2)
    assert [f.name for f in task.manifest.of_role("step")] == ["step_2"]
    data = examples(4)
    Follower(task).losses([{"step": data["x"], "labels": data["labels"]}] * 2)


def test_fewer_micro_batches_than_a_step_takes_train_nothing_and_say_so(tmp_path: Path) -> None:
    task = step(accumulate=3)
    with pytest.raises(InputError, match="3 micro-batches make a step, and there were 2"):
        Trainer(task).fit(examples(8), batch_size=4)
    # a folder keeps them for the next run
    Trainer(task).fit(examples(8), batch_size=4, folder=tmp_path)
    assert len(Trainer(task).fit(examples(8), batch_size=4, epochs=2, folder=tmp_path).losses) == 1
