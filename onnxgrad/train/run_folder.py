"""The checkpoints of a run in its folder: the last one, from which the run resumes, the best one,
and earlier ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from onnxgrad.errors import InputError
from onnxgrad.ir.storage.atomic_files import discard, link_whole

CHECKPOINT = "checkpoint.safetensors"
BEST = "best.safetensors"
_OF_STEP = re.compile(r"checkpoint-(\d+)\.safetensors")

Write = Callable[[Path], None]


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run. keep: the number of checkpoints that stay under names with
    their steps.
    """

    path: Path
    keep: int = 0

    @property
    def last(self) -> Path:
        """The checkpoint from which the run resumes."""
        return self.path / CHECKPOINT

    @property
    def best(self) -> Path:
        """The checkpoint of the smallest held-out loss."""
        return self.path / BEST

    def save(self, write: Write, steps: int) -> None:
        """Writes the last checkpoint, taken after this many steps. Raises InputError."""
        self._make()
        write(self.last)
        self.link(steps)

    def save_best(self, write: Write) -> None:
        """Writes the best checkpoint. Call it before `save`, so that a run killed in between writes
        it again.
        """
        self._make()
        write(self.best)

    def _make(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{self.path}: cannot be made: {error.strerror or error}") from None

    def link(self, steps: int) -> None:
        """Links the last checkpoint to a name with its steps, and removes the oldest of these names
        beyond `keep`. Raises InputError if the disk is full.
        """
        if not self.keep:
            return
        name = self.path / f"checkpoint-{steps}.safetensors"
        try:
            link_whole(self.last, name)
        except OSError as error:
            raise InputError(f"{name}: cannot be written: {error.strerror or error}") from None
        discard(self.kept()[: -self.keep])

    def kept(self) -> list[Path]:
        """Returns the checkpoints with steps in their names, the oldest first."""
        found = {int(m[1]): p for p in self.path.iterdir() if (m := _OF_STEP.fullmatch(p.name))}
        return [found[steps] for steps in sorted(found)]
