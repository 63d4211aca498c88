"""Averages of the weights begin with the first ones and follow PyTorch's formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from onnxgrad.errors import InputError
from onnxgrad.ir.ops import op
from onnxgrad.train import Trainer, array_math, read_step, save_step
from onnxgrad.train.optimizers import AdamW, Moment
from onnxgrad.train.update.clipping import element_type
from onnxgrad.train.update.moving_average import (
    ExponentialMovingAverage,
    StochasticWeightAverage,
    average_of,
)
from tests.train.common import examples, step
from tests.train.emitted import computed

WEIGHTS = [np.float64([1, -2]), np.float64([3, 0.5]), np.float64([-1, 4])]
# by AveragedModel with get_ema_multi_avg_fn(0.75)
RECORDED = [[1, -2], [1.5, -1.375], [0.875, -0.03125]]


EMA = ExponentialMovingAverage(0.75)


def by_arrays(p: Any, average: Any, step: int, rule: Any = EMA) -> Any:
    at = Moment(np.float64(0.1), np.float64(step), array_math, element_type(p))
    return rule.update(average, p, at)


def by_graph(p: Any, average: Any, step: int, rule: Any = EMA) -> Any:
    def formula(v: dict[str, Any]) -> dict[str, Any]:
        at = Moment(v["rate"], v["step"], op, v["p"].dtype)
        return {"new": rule.update(v["average"], v["p"], at)}

    feeds = {"p": p, "average": average, "step": np.float64(step), "rate": np.float32(0.1)}
    return computed(formula, feeds)["new"]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("way", [by_arrays, by_graph])
def test_as_pytorch(way: Any, dtype: Any) -> None:
    average = dict(ExponentialMovingAverage(0.75).state(np.full(2, 7, dtype)))["average"]
    assert average.dtype == (np.float64 if dtype == np.float64 else np.float32)
    for number, (p, expected) in enumerate(zip(WEIGHTS, RECORDED, strict=True), 1):
        new = way(p.astype(dtype), average, number)
        assert new.dtype == average.dtype
        np.testing.assert_allclose(new, expected, rtol=1e-6)
        average = new


@pytest.mark.parametrize("way", [by_arrays, by_graph])
@pytest.mark.parametrize(("start", "every"), [(0, 1), (0, 3), (4, 2), (20, 1)])
def test_the_mean_of_weights_from_a_step_on(way: Any, start: int, every: int) -> None:
    rule = StochasticWeightAverage(start, every)
    weights = np.random.default_rng(2).standard_normal((11, 2)).astype(np.float32)
    average = rule.state(weights[0])["average"]
    for number, p in enumerate(weights[1:], 1):
        average = way(p, average, number, rule)
        counted = weights[start + every : number + 1 : every]
        expected = counted.mean(0) if len(counted) else p
        np.testing.assert_allclose(average, expected, atol=1e-6)


@pytest.mark.parametrize("engine", ["graph", "blocks"])
def test_both_engines_average(engine: Any) -> None:
    """`Trainer.averaged` after each step, also of a step that was read from its folder."""
    made = step(AdamW(), average="swa{start=2,every=2}")
    trainer, seen = Trainer(made, engine=engine, threads=1, rate=0.1), []
    for number in range(8):
        trainer.step(examples(8, seed=number))
        seen.append(trainer.parameters["w1"])
        counted = seen[3::2] or seen[-1:]  # after the steps 4, 6, 8
        np.testing.assert_allclose(trainer.averaged["w1"], np.mean(counted, 0), atol=1e-6)


def test_a_folder_keeps_the_average(tmp_path: Any) -> None:
    save_step(step(AdamW(), average="swa{every=2}"), tmp_path / "step")
    assert read_step(tmp_path / "step").manifest.average == {"name": "swa", "start": 0, "every": 2}
    with pytest.raises(InputError, match="the step's average is not one of ema, swa"):
        average_of({"name": "median"})


@pytest.mark.torch
def test_the_mean_is_that_of_pytorch() -> None:
    import torch
    from torch.optim.swa_utils import AveragedModel

    model = torch.nn.Linear(2, 1, bias=False).double()
    averaged, average = AveragedModel(model), np.float64([7, 7])
    for number, p in enumerate(WEIGHTS, 1):
        with torch.no_grad():
            model.weight.copy_(torch.tensor(p)[None])
        averaged.update_parameters(model)
        average = by_arrays(p, average, number, StochasticWeightAverage())
        np.testing.assert_allclose(averaged.module.weight.detach().numpy()[0], average, rtol=1e-15)


def test_the_digits_of_float64() -> None:
    at = Moment(np.float64(0.1), np.float64(2), array_math, TensorProto.DOUBLE)
    new = ExponentialMovingAverage(0.999).update(np.float64([1.0]), np.float64([2.0]), at)
    np.testing.assert_allclose(new, 1.001, rtol=1e-15)


@pytest.mark.parametrize("decay", [-0.1, 1.1, float("nan"), "0.5"])
def test_decays_that_are_none(decay: Any) -> None:
    with pytest.raises(InputError, match="average: decay must be"):
        ExponentialMovingAverage(decay)


@pytest.mark.torch
def test_the_record_is_what_pytorch_computes() -> None:
    import torch
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    model = torch.nn.Linear(2, 1, bias=False).double()
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.75))
    for p, expected in zip(WEIGHTS, RECORDED, strict=True):
        with torch.no_grad():
            model.weight.copy_(torch.tensor(p)[None])
        averaged.update_parameters(model)
        np.testing.assert_allclose(averaged.module.weight.detach().numpy()[0], expected, rtol=1e-15)
