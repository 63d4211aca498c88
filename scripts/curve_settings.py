"""Optimisers and training options in onnxgrad and in PyTorch, which share their names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import lr_scheduler as lr

from onnxgrad import train
from onnxgrad.train import schedules

Scheduler = Callable[[torch.optim.Optimizer], lr.LRScheduler]


@dataclass(frozen=True)
class Setting:
    """One training setting.

    hyper: hyperparameters of the optimiser `name`, for both. schedule: ours and PyTorch's.
    """

    name: str
    hyper: dict[str, Any]
    clip_value: float | None = None
    clip_norm: float | None = None
    accumulate: int = 1
    schedule: tuple[schedules.Schedule, Scheduler] | None = None

    def step(
        self, model: Any, loss: train.Loss, weights: list[str] | str, **more: Any
    ) -> train.TrainingStep:
        """Returns our training step, with the schedule in the graph."""
        return train.training_step(
            model, loss, getattr(train, self.name)(**self.hyper), weights,
            clip_value=self.clip_value, clip_norm=self.clip_norm, accumulate=self.accumulate,
            schedule=self.schedule[0] if self.schedule else None, **more,
        )  # fmt: skip

    def optimizer(self, parameters: Iterable[Any]) -> torch.optim.Optimizer:
        """Returns PyTorch's optimiser."""
        made: torch.optim.Optimizer = getattr(torch.optim, self.name)(parameters, **self.hyper)
        return made

    def clip(self, parameters: list[Any]) -> bool:
        """Clips gradients as PyTorch does. Returns whether a gradient exceeded the limit."""
        cut = False
        if self.clip_value is not None:
            cut = any(float(p.grad.abs().max()) > self.clip_value for p in parameters)
            torch.nn.utils.clip_grad_value_(parameters, self.clip_value)
        if self.clip_norm is not None:
            norm = torch.nn.utils.clip_grad_norm_(parameters, self.clip_norm)
            cut |= float(norm) > self.clip_norm
        return cut


OPTIMIZERS = {
    "sgd": Setting("SGD", {"lr": 0.1}),
    "momentum": Setting("SGD", {"lr": 0.02, "momentum": 0.9}),
    "nesterov, decay": Setting(
        "SGD", {"lr": 0.02, "momentum": 0.9, "nesterov": True, "weight_decay": 1e-3}
    ),
    "adam": Setting("Adam", {"lr": 1e-3}),
    "adamw": Setting("AdamW", {"lr": 1e-3}),
    "nadam": Setting("NAdam", {"lr": 1e-3}),
    "radam": Setting("RAdam", {"lr": 1e-3}),
    "adagrad": Setting("Adagrad", {"lr": 1e-2}),
    "rmsprop": Setting("RMSprop", {"lr": 1e-3}),
    "adadelta": Setting("Adadelta", {"lr": 1.0}),
    "adafactor": Setting("Adafactor", {"lr": 1e-2}),
}


def _warm_up(optimizer: torch.optim.Optimizer, steps: int) -> lr.LRScheduler:
    up = lr.LinearLR(optimizer, 0.1, 1.0, steps // 10)
    down = lr.CosineAnnealingLR(optimizer, steps - steps // 10)
    return lr.SequentialLR(optimizer, [up, down], [steps // 10])


def options(steps: int) -> dict[str, Setting]:
    """Returns settings with each option alone and all together; schedules have this many steps."""
    adamw: dict[str, Any] = {"lr": 1e-3}
    momentum: dict[str, Any] = {"lr": 0.02, "momentum": 0.9}
    warm = schedules.warm_up(
        schedules.Cosine(1e-3, T_max=steps - steps // 10), steps // 10, start_factor=0.1
    )
    third, rate = steps // 3, 1e-3
    warming: tuple[schedules.Schedule, Scheduler] = (warm, lambda o: _warm_up(o, steps))
    return {
        "clip by value": Setting("SGD", momentum, clip_value=0.01),
        "clip by norm": Setting("AdamW", adamw, clip_norm=0.2),
        "clip by norm, momentum": Setting("SGD", momentum, clip_norm=0.2),
        "accumulate 2": Setting("AdamW", adamw, accumulate=2),
        "accumulate 2, momentum": Setting("SGD", momentum, accumulate=2),
        "weight decay, sgd": Setting("SGD", {"lr": 0.1, "weight_decay": 0.01}),
        "weight decay, adam": Setting("Adam", {"lr": rate, "weight_decay": 0.01}),
        "weight decay, adamw": Setting("AdamW", {"lr": rate, "weight_decay": 0.5}),
        "constant": Setting(
            "AdamW", adamw,
            schedule=(schedules.Constant(rate), lambda o: lr.LambdaLR(o, lambda _: 1.0)),
        ),
        "linear": Setting(
            "AdamW", adamw,
            schedule=(
                schedules.Linear(rate, 1.0, 0.1, steps - third),
                lambda o: lr.LinearLR(o, 1.0, 0.1, steps - third),
            ),
        ),
        "cosine": Setting(
            "AdamW", adamw,
            schedule=(
                schedules.Cosine(rate, steps - third, 1e-5),
                lambda o: lr.CosineAnnealingLR(o, steps - third, 1e-5),
            ),
        ),
        "warm-up, cosine": Setting("AdamW", adamw, schedule=warming),
        "warm restarts": Setting(
            "AdamW", adamw,
            schedule=(
                schedules.CosineWarmRestarts(rate, steps // 10, 2, 1e-5),
                lambda o: lr.CosineAnnealingWarmRestarts(o, steps // 10, 2, 1e-5),
            ),
        ),
        "one-cycle": Setting(
            "AdamW", adamw,
            schedule=(
                schedules.OneCycle(3e-3, steps),
                lambda o: lr.OneCycleLR(o, 3e-3, steps, cycle_momentum=False),
            ),
        ),
        "step": Setting(
            "AdamW", adamw,
            schedule=(
                schedules.Step(rate, third, 0.3), lambda o: lr.StepLR(o, third, 0.3)
            ),
        ),
        "all together": Setting(
            "AdamW", {"lr": rate, "weight_decay": 0.1},
            clip_value=0.05, clip_norm=0.2, accumulate=2, schedule=warming,
        ),
    }  # fmt: skip
