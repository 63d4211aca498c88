"""The update of a step: half-precision weights with a scaled loss, and what its manifest names."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import pytest

from onnxgrad.errors import InputError, RunWarning
from onnxgrad.ir.save import to_proto
from onnxgrad.train import SGD, AdamW, CrossEntropy, Trainer, TrainingStep, training_step
from onnxgrad.train.schedules import Cosine
from onnxgrad.train.update.mixed_precision import LossScaling
from onnxgrad.verify.running.session import run
from tests.helpers import parse
from tests.train.common import TEXT, classifier, examples, step
from tests.train.follower import Follower


def half(**options: Any) -> TrainingStep:
    model = onnx.parser.parse_model(TEXT.replace("float[", "float16["))
    for tensor in classifier().graph.initializer:
        value = onnx.numpy_helper.to_array(tensor).astype(np.float16)
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, tensor.name))
    return training_step(model, CrossEntropy(), **options)


def batches(count: int) -> list[dict[str, Any]]:
    found = [examples(32, seed=i) for i in range(count)]
    return [{**b, "x": b["x"].astype(np.float16)} for b in found]


@pytest.mark.parametrize("scale", ["dynamic", 1024])
def test_half_precision_follows_single(scale: Any) -> None:
    trainer = Trainer(half(loss_scale=scale), 0.01, threads=1)
    single = Trainer(step(), 0.01, threads=1)
    losses = trainer.fit(batches(60)).losses
    expected = single.fit([{**b, "x": b["x"].astype(np.float32)} for b in batches(60)]).losses
    np.testing.assert_allclose(losses, expected, rtol=2e-2)
    assert trainer.parameters["w1"].dtype == np.float16


def test_updates_that_overflow_leave_no_trace_but_a_smaller_scale() -> None:
    def run_from(scale: float, data: list[dict[str, Any]]) -> Follower:
        options = {"clip_norm": 0.5, "average": 0.5, "groups": {"b*": {"weight_decay": 0.0}}}
        follower = Follower(half(loss_scale=LossScaling(scale, growth_interval=99), **options))
        follower.losses(data)
        return follower

    # the runtime may compute in float32 what a CPU has no float16 for
    data = [{**b, "x": 64 * b["x"]} for b in batches(1) * 8 + batches(6)]
    found = run_from(2.0**127, data)
    skipped = int(found.values["loss.skipped"])
    assert 2 <= skipped <= 8
    expected = run_from(2.0 ** (127 - skipped), data[skipped:])
    assert expected.values["loss.skipped"] == 0
    for name, value in expected.values.items():
        if name != "loss.skipped":
            np.testing.assert_array_equal(found.values[name], value, err_msg=name)


def test_the_average_of_half_precision_is_of_the_master_weights() -> None:
    follower = Follower(half(optimizer=SGD(), average=0.0))
    follower.losses(batches(3))
    assert follower.values["w1.average"].dtype == np.float32
    np.testing.assert_array_equal(follower.values["w1.average"], follower.values["w1.master"])


def test_the_manifest_names_each_gradient_as_the_optimiser_gets_it() -> None:
    task = step(SGD(), clip_norm=0.1)
    fed = task.manifest.of_role("parameter")
    proto = to_proto(task.train)
    proto.graph.output.extend(onnx.ValueInfoProto(name=f.gradient) for f in fed)
    data = examples(8)
    follower = Follower(task, rate=0.5)
    before = dict(follower.values)
    follower.step(data)
    found = run(proto, {**before, **data, "step": np.array(1), "learning_rate": np.float32(0.5)})
    for f in fed:
        moved = (before[f.name] - follower.values[f.name]) / 0.5
        np.testing.assert_allclose(found[f.gradient or ""], moved, atol=1e-6)


def test_a_norm_may_be_asked_for_without_a_limit() -> None:
    task = step(SGD(), metrics=["gradient_norm"])
    follower = Follower(task, rate=1.0)
    before = dict(follower.values)
    follower.step(examples(8))
    moved = np.sqrt(sum(((before[n] - follower.values[n]) ** 2).sum() for n in before))
    np.testing.assert_allclose(follower.outputs["gradient_norm"], moved, rtol=1e-5)
    assert step(AdamW()).manifest.gradient_norm is None


OPTIONS: list[dict[str, Any]] = [
    {},
    {"clip_norm": 0.1},
    {"clip_value": 0.01, "clip_norm": 0.02},
    {"groups": {"b*": {"weight_decay": 0.0}, "w2": SGD(lr=0.01)}, "average": 0.9},
    {"loss_scale": "dynamic", "clip_norm": 0.1},
    {"schedule": Cosine(0.0625, T_max=10), "metrics": ["gradient_norm"]},
]


@pytest.mark.slow
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
    assert [v.name for v in program.main.outputs] == ["logits", "loss", "loss.divisor", *sums]
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
    with pytest.raises(InputError, match="3 micro-batches make a step, but there were 2"):
        Trainer(task).fit(examples(8), batch_size=4)
    # a folder keeps them for the next run
    Trainer(task).fit(examples(8), batch_size=4, folder=tmp_path)
    with pytest.warns(RunWarning, match="2 epochs"):
        losses = Trainer(task).fit(examples(8), batch_size=4, epochs=2, folder=tmp_path).losses
    assert len(losses) == 1


@pytest.mark.parametrize("engine", ["graph", "blocks"])
def test_the_rate_of_a_float64_model_has_its_digits(engine: Literal["graph", "blocks"]) -> None:
    """0.1 in float32 is off by 1.5e-8: so were the weights."""
    rng = np.random.default_rng(3)
    x, target, w = (rng.normal(size=size) for size in ((16, 4), (16, 2), (4, 2)))
    model = parse("g (double[N,4] x) => (double[N,2] y) { y = MatMul (x, w) }")
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    trainer = Trainer(training_step(model, "mse", SGD(lr=0.1)), engine=engine)
    for _ in range(50):
        trainer.step({"x": x, "target": target})
        w = w - 0.1 * 2 / target.size * x.T @ (x @ w - target)
    np.testing.assert_allclose(trainer.parameters["w"], w, rtol=1e-13, atol=1e-14)
