"""The moving average of the weights begins with the first ones and follows PyTorch's formula."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from onnxgrad.errors import InputError
from onnxgrad.ir.ops import op
from onnxgrad.train import array_math
from onnxgrad.train.optimizers import Moment
from onnxgrad.train.update.clipping import element_type
from onnxgrad.train.update.moving_average import ExponentialMovingAverage
from tests.train.emitted import computed

WEIGHTS = [np.float64([1, -2]), np.float64([3, 0.5]), np.float64([-1, 4])]
# by AveragedModel with get_ema_multi_avg_fn(0.75)
RECORDED = [[1, -2], [1.5, -1.375], [0.875, -0.03125]]


def by_arrays(p: Any, average: Any, step: int) -> Any:
    at = Moment(np.float64(0.1), np.float64(step), array_math, element_type(p))
    return ExponentialMovingAverage(0.75).update(average, p, at)


def by_graph(p: Any, average: Any, step: int) -> Any:
    def formula(v: dict[str, Any]) -> dict[str, Any]:
        at = Moment(v["rate"], v["step"], op, v["p"].dtype)
        return {"new": ExponentialMovingAverage(0.75).update(v["average"], v["p"], at)}

    feeds = {"p": p, "average": average, "step": np.float64(step), "rate": np.float32(0.1)}
    return computed(formula, feeds)["new"]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("way", [by_arrays, by_graph])
def test_as_pytorch(way: Any, dtype: Any) -> None:
    average = dict(ExponentialMovingAverage(0.75).state(np.full(2, 7, dtype)))["average"]
    assert average.dtype == (np.float64 if dtype == np.float64 else np.float32)
    for step, (p, expected) in enumerate(zip(WEIGHTS, RECORDED, strict=True), 1):
        new = way(p.astype(dtype), average, step)
        assert new.dtype == average.dtype
        np.testing.assert_allclose(new, expected, rtol=1e-6)
        average = new


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
