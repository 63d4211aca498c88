"""Where a run stands, as a checkpoint has it."""

from __future__ import annotations

from dataclasses import dataclass


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
