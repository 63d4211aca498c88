"""Where a training run stands, as its checkpoint stores it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from onnxgrad.errors import InputError


@dataclass(frozen=True)
class Progress:
    """Where a run stands: steps taken, the epoch, and how many batches of it are done.

    micro: the micro-batches since the last step, of which micro_loss is the sum of the losses.
    """

    steps: int = 0
    epoch: int = 0
    batches: int = 0
    best: float | None = None
    stale: int = 0
    seed: int = 0
    micro: int = 0
    micro_loss: float = 0.0

    def nothing_left(self, epochs: int, steps: int | None) -> str:
        """Why a run to so many epochs, or steps, has nothing to do; empty where it has."""
        done, wanted, unit = self.epoch, epochs, "epochs"
        if steps is not None:
            done, wanted, unit = self.steps, steps, "steps"
        if not 0 < wanted <= done:
            return ""
        return (
            f"nothing was trained: {unit}={wanted} counts from the trainer's first step, and it "
            f"has taken {done}; {unit}={done + wanted} goes on for as long again"
        )

    def check_trained(self, accumulate: int) -> None:
        """Raises InputError where a run without a step leaves micro-batches behind."""
        if self.micro:
            raise InputError(
                f"nothing was trained: {accumulate} micro-batches make a step, and there were "
                f"{self.micro}; take smaller ones, or more epochs"
            )

    def words(self) -> dict[str, str]:
        """The same as a checkpoint says it."""
        return {"progress": json.dumps(asdict(self))}

    @staticmethod
    def of(stored: Mapping[str, str], where: str) -> Progress:
        """Returns the progress that `words` wrote. Raises InputError for anything else."""
        try:
            return Progress(**json.loads(stored["progress"]))
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"{where} does not say where training stands ({error!r}): it is no checkpoint"
            ) from None
