"""A training step run as any reader of its manifest would: by `next` alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from onnxgrad.ir.program import Program
from onnxgrad.ir.save import to_proto
from onnxgrad.train import TrainingStep
from onnxgrad.verify.running.session import run


class Follower:
    """Values that go from each output to the input whose `next` it is."""

    def __init__(self, task: TrainingStep, rate: float = 0.0625) -> None:
        self.task, self.rate = task, rate
        self.values: dict[str, Any] = dict(task.initial)
        self.number, self.count = 1, 0
        self.outputs: dict[str, Any] = {}

    def step(self, batch: Mapping[str, Any]) -> float:
        """A batch, or micro-batch; its loss."""
        self._run(self.task.train, batch)
        loss = float(self.outputs[self.task.manifest.loss])
        self.count += 1
        if self.count % self.task.manifest.accumulate == 0:
            if self.task.update is not None:
                self._run(self.task.update, {})
            self.number += 1
        return loss

    def losses(self, batches: Sequence[Mapping[str, Any]]) -> list[float]:
        """Of each update: the mean over its micro-batches."""
        each = np.array([self.step(batch) for batch in batches])
        return list(each.reshape(-1, self.task.manifest.accumulate).mean(1))

    def _run(self, program: Program, batch: Mapping[str, Any]) -> None:
        names = {v.name for v in program.main.inputs}
        known = {**self.values, **batch}
        for fed in self.task.manifest.inputs:
            if fed.role == "step":
                known[fed.name] = np.array(self.number)
            if fed.role == "learning_rate":
                known[fed.name] = np.array(self.rate, fed.dtype)
        found = run(to_proto(program), {name: known[name] for name in names})
        self.outputs = dict(found)
        for fed in self.task.manifest.inputs:
            if fed.next in found:
                self.values[fed.name] = found[fed.next]
