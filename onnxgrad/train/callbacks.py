"""Callbacks of training: a log as JSON lines, a plot of the loss, and early stopping."""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeAlias

from onnxgrad.errors import InputError
from onnxgrad.ir.storage.atomic_files import write_whole
from onnxgrad.wording import install, option, printable_json


@dataclass(frozen=True)
class Event:
    """The argument of callbacks, which are called after each step and after each evaluation.

    step counts from 1 on, epoch from 0; evaluation: the loss and metrics on the held-out data, or
    None. gradient_norm: of all gradients before they were clipped, where the step clips by it or
    has it among its metrics.
    """

    step: int
    epoch: int
    loss: float
    rate: float
    evaluation: Mapping[str, float] | None = None
    gradient_norm: float | None = None


# True ends training
Callback: TypeAlias = "Callable[[Event], bool | None]"


@dataclass
class JsonLines:
    """A line of JSON for each event, added to a file."""

    path: str | PathLike[str]

    def __call__(self, event: Event) -> None:
        """Write the line. Raises InputError when it cannot be written."""
        line: dict[str, Any] = {
            "step": event.step,
            "epoch": event.epoch,
            "loss": event.loss,
            "rate": event.rate,
        }
        if event.gradient_norm is not None:
            finite = math.isfinite(event.gradient_norm)  # JSON has no other numbers
            line["gradient_norm"] = event.gradient_norm if finite else None
        if event.evaluation is not None:
            line = {"step": event.step, "epoch": event.epoch, "evaluation": dict(event.evaluation)}
        self._add(printable_json(line, indent=None, allow_nan=True) + "\n")

    @property
    def size(self) -> int:
        """The bytes that are written."""
        with suppress(OSError):
            return os.stat(self.path).st_size
        return 0

    def _add(self, text: str) -> None:
        try:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise InputError(f"{self.path}: cannot be written: {error.strerror or error}") from None

    def cut(self, size: int, step: int) -> None:
        """Remove the lines behind so many bytes, which a run wrote after the step that it goes on
        from; nothing if the file there is not the log of that run. Raises InputError if it cannot
        be written.
        """
        if self.size <= size:
            return
        try:
            with open(self.path, "r+b") as file:
                file.seek(max(size - 1, 0))
                rest = file.read()
                lines = rest[min(size, 1) :].splitlines()
                if (not size or rest[:1] == b"\n") and all(_is_after(x, step) for x in lines):
                    file.truncate(size)
        except OSError as error:
            raise InputError(f"{self.path}: cannot be written: {error.strerror or error}") from None


def _is_after(line: bytes, step: int) -> bool:
    """Whether a line of a log is of a step after that one, or was left unfinished."""
    try:
        return bool(json.loads(line)["step"] >= step)
    except ValueError:
        return True
    except (KeyError, TypeError):
        return False


def check_plotting() -> None:
    """Raises InputError without matplotlib, which draws."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise InputError(f"matplotlib is not installed: {install('plot')}") from None


def check_needs(
    validation: object,
    folder: object,
    *,
    patience: object,
    metrics: object,
    every: object,
    keep: Sequence[object] | None = None,
    plateau: bool = False,
) -> None:
    """Raise InputError for an option that needs held-out data, or a folder, if there is none."""
    held_out = option("--validation NPZ", "validation")
    place = option("--folder DIR", "folder")
    needs = (
        ("--patience", "patience", patience is not None, validation, "looks at held-out data",
         held_out),
        ("--accuracy", "metrics", metrics, validation, "looks at held-out data", held_out),
        ("--keep best", 'keep="best"', "best" in (keep or ()), validation, "looks at held-out data",
         held_out),
        ("--rate reduceonplateau", "ReduceOnPlateau", plateau, validation, "looks at held-out data",
         held_out),
        ("--keep N", "keep", {*(keep or ())} - {"best"}, folder, "says which checkpoints stay",
         place),
        ("--every", "every", every is not None, folder, "says when to save", place),
    )  # fmt: skip
    for flag, keyword, given, needed, what, missing in needs:
        if given and needed is None:
            raise InputError(f"{option(flag, keyword)} {what}: give {missing}")


@dataclass
class EarlyStopping:
    """Stop when the loss on the held-out data has not been smaller for so many evaluations."""

    patience: int
    best: float | None = None
    stale: int = 0

    def __call__(self, event: Event) -> bool:
        """Whether that is so now."""
        if event.evaluation is None:
            return False
        if self.best is None or event.evaluation["loss"] < self.best:
            self.best, self.stale = event.evaluation["loss"], 0
        else:
            self.stale += 1
        return self.stale >= self.patience


@dataclass(repr=False)
class History:
    """Every event, in order.

    best, last: the step of those weights, and their loss and metrics on the held-out data, where
    there is any. kept: which of them `export` writes.
    """

    events: list[Event] = field(default_factory=list)
    best: Mapping[str, float] | None = None
    last: Mapping[str, float] | None = None
    kept: Literal["best", "last"] = "last"

    def __repr__(self) -> str:
        """How many steps, and where the loss went."""
        found = self.losses
        went = f", loss {found[0]:.4g} -> {found[-1]:.4g}" if found else ""
        return f"History({len(found)} step{'s' * (len(found) != 1)}{went})"

    def __call__(self, event: Event) -> None:
        """Remember it."""
        self.events.append(event)

    @property
    def losses(self) -> list[float]:
        """The loss of each step."""
        return [e.loss for e in self.events if e.evaluation is None]

    @property
    def evaluations(self) -> list[Mapping[str, float]]:
        """The loss and metrics of each evaluation."""
        return [e.evaluation for e in self.events if e.evaluation is not None]

    def evaluated_at(self, step: int) -> Mapping[str, float] | None:
        """The evaluation after that step, if it is the last one."""
        found = [e for e in self.events if e.evaluation is not None]
        return found[-1].evaluation if found and found[-1].step == step else None

    def compare(
        self, best: Mapping[str, float], last: Mapping[str, float], *, wanted: bool
    ) -> None:
        """Note what the best and the last weights evaluate to, and which are kept: the best only
        if they are `wanted`.
        """
        self.last, self.best = last, last if last["loss"] <= best["loss"] else best
        self.kept = "best" if wanted and self.best is best else "last"

    def plot(self, path: str | PathLike[str]) -> None:
        """The loss over the steps as a picture. Raises InputError without matplotlib."""
        check_plotting()
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7, 4), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        steps = [e.step for e in self.events if e.evaluation is None]
        axes.plot(steps, self.losses, linewidth=1, label="training")
        if self.evaluations:
            steps = [e.step for e in self.events if e.evaluation is not None]
            axes.plot(steps, [found["loss"] for found in self.evaluations], "o-", label="held out")
            axes.legend()
        axes.set_xlabel("step")
        axes.set_ylabel("loss")
        picture = io.BytesIO()
        figure.savefig(picture, format="png", dpi=120)
        write_whole(Path(path), picture.getvalue())
