"""20 updates of a classifier with each option of a step are PyTorch's: recorded, and by a run beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest

from onnxgrad.train import SGD, AdamW, CrossEntropy, Trainer, TrainingStep, training_step
from onnxgrad.train.schedules import Cosine, OneCycle, warm_up
from tests.train.common import TEXT, classifier, examples
from tests.train.follower import Follower

STEPS, RATE = 20, 0.0625
CASES: dict[str, dict[str, Any]] = {
    "clip_value": {"optimizer": SGD(lr=RATE, momentum=0.875), "clip_value": 0.02},
    "clip_norm": {"optimizer": AdamW(lr=RATE), "clip_norm": 0.1},
    "accumulate": {"optimizer": AdamW(lr=RATE, weight_decay=0.1), "accumulate": 4},
    "groups": {
        "optimizer": AdamW(lr=RATE, weight_decay=0.25),
        "groups": {"b*": {"weight_decay": 0.0}, "w2": {"lr": 2 * RATE}},
    },
    "schedule": {"optimizer": SGD(lr=RATE), "schedule": warm_up(Cosine(RATE, T_max=15), 5, 0.25)},
    "one_cycle": {"optimizer": SGD(lr=RATE), "schedule": OneCycle(0.5, total_steps=STEPS)},
    "average": {"optimizer": SGD(lr=0.5), "average": 0.875},
    "all": {
        "optimizer": AdamW(lr=RATE, weight_decay=0.25),
        "groups": {"b*": {"weight_decay": 0.0}, "w2": {"lr": 2 * RATE}},
        "clip_norm": 0.1, "accumulate": 4, "average": 0.875, "schedule": Cosine(RATE, T_max=30),
    },
}  # fmt: skip
# of PyTorch in float64: the loss of the last update, and sums of |w| over the weights, or their averages
RECORDED: dict[str, tuple[float, float]] = {
    "clip_value": (0.7413431082009553, 46.97295788750685),
    "clip_norm": (0.416364776936087, 76.23451297386293),
    "accumulate": (0.09625161126399091, 77.90473396082974),
    "groups": (0.2855405903130518, 65.61299236752946),
    "schedule": (0.8423087853120024, 46.045381139342346),
    "one_cycle": (0.531145720331216, 50.87742457617388),
    "average": (0.3351992370371717, 52.036808215252385),
    "all": (0.08040561025832876, 66.94881384480126),
}


def batches(dtype: Any, count: int) -> list[dict[str, Any]]:
    found = [examples(16, seed=i) for i in range(count)]
    return [{"x": b["x"].astype(dtype), "labels": b["labels"]} for b in found]


def made(name: str, dtype: Any) -> TrainingStep:
    kind = {np.float64: "double", np.float32: "float"}[dtype]
    model = onnx.parser.parse_model(TEXT.replace("float[", f"{kind}["))
    for tensor in classifier().graph.initializer:
        value = onnx.numpy_helper.to_array(tensor).astype(dtype)
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, tensor.name))
    return training_step(model, CrossEntropy(), **CASES[name])


def size(values: Mapping[str, Any], name: str) -> float:
    end = ".average" if CASES[name].get("average") else ""
    return float(sum(np.abs(values[f"{p}{end}"]).sum() for p in ("w1", "b1", "w2", "b2")))


def by_graph(name: str, dtype: Any) -> tuple[list[float], float]:
    """The losses, and the size of the weights."""
    follower = Follower(made(name, dtype), RATE if name != "average" else 0.5)
    losses = follower.losses(batches(dtype, STEPS * CASES[name].get("accumulate", 1)))
    return losses, size(follower.values, name)


def by_trainer(name: str, dtype: Any) -> tuple[list[float], float]:
    trainer = Trainer(made(name, dtype), threads=1, engine="blocks")
    losses = trainer.fit(batches(dtype, STEPS * CASES[name].get("accumulate", 1))).losses
    return losses, size(trainer._engine.values, name)


@pytest.mark.covering
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("way", [by_graph, by_trainer])
@pytest.mark.parametrize(("dtype", "near"), [(np.float64, 1e-9), (np.float32, 1e-5)])
def test_as_pytorch_was(name: str, way: Any, dtype: Any, near: float) -> None:
    losses, weights = way(name, dtype)
    assert (losses[-1], weights) == pytest.approx(RECORDED[name], rel=near)


def by_torch(name: str) -> tuple[list[float], float]:
    import torch

    case = CASES[name]
    ours, accumulate = case["optimizer"], case.get("accumulate", 1)
    p = {
        t.name: torch.tensor(onnx.numpy_helper.to_array(t).astype(np.float64), requires_grad=True)
        for t in classifier().graph.initializer
    }
    groups: list[Any] = [{"params": list(p.values())}]
    if "groups" in case:
        groups = [
            {"params": [p["w1"]]},
            {"params": [p["b1"], p["b2"]], "weight_decay": 0.0},
            {"params": [p["w2"]], "lr": 2 * RATE},
        ]
    if isinstance(ours, SGD):
        theirs: Any = torch.optim.SGD(groups, lr=ours.lr, momentum=ours.momentum)
    else:
        theirs = torch.optim.AdamW(groups, lr=ours.lr, weight_decay=ours.weight_decay)
    schedule = torch_schedule(name, theirs)
    averages = {k: v.detach().clone() for k, v in p.items()}
    losses = []
    data = batches(np.float64, STEPS * accumulate)
    for i in range(STEPS):
        theirs.zero_grad()
        total = 0.0
        for b in data[i * accumulate : (i + 1) * accumulate]:
            h = torch.relu(torch.tensor(b["x"]) @ p["w1"] + p["b1"])
            logits = h @ p["w2"] + p["b2"]
            loss = torch.nn.functional.cross_entropy(logits, torch.tensor(b["labels"]))
            (loss / accumulate).backward()
            total += loss.item() / accumulate
        if "clip_value" in case:
            torch.nn.utils.clip_grad_value_(p.values(), case["clip_value"])
        if "clip_norm" in case:
            torch.nn.utils.clip_grad_norm_(p.values(), case["clip_norm"])
        theirs.step()
        if schedule is not None:
            schedule.step()
        losses.append(total)
        decay = 0.0 if i == 0 else case.get("average", 0.0)
        averages = {k: decay * averages[k] + (1 - decay) * v.detach() for k, v in p.items()}
    kept = averages if "average" in case else {k: v.detach() for k, v in p.items()}
    return losses, float(sum(v.abs().sum() for v in kept.values()))


def torch_schedule(name: str, theirs: Any) -> Any:
    from torch.optim import lr_scheduler as lr

    if name == "schedule":
        each = [lr.LinearLR(theirs, 0.25, 1.0, 5), lr.CosineAnnealingLR(theirs, 15)]
        return lr.SequentialLR(theirs, each, [5])
    if name == "one_cycle":
        return lr.OneCycleLR(theirs, 0.5, total_steps=STEPS, cycle_momentum=False)
    return lr.CosineAnnealingLR(theirs, 30) if name == "all" else None


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_as_pytorch_is(name: str) -> None:
    expected, weights = by_torch(name)
    assert (expected[-1], weights) == pytest.approx(RECORDED[name], rel=1e-12)
    for way in (by_graph, by_trainer):
        losses, own = way(name, np.float64)
        np.testing.assert_allclose(losses, expected, rtol=1e-9)
        assert own == pytest.approx(weights, rel=1e-9)
