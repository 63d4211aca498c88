"""Callbacks of training: logs as JSON lines or CSV, a plot of the loss, and early stopping."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import secrets
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeAlias

from onnxgrad.errors import InputError
from onnxgrad.ir.storage.atomic_files import opened_to_change, write_whole
from onnxgrad.results import InNotebooks
from onnxgrad.wording import install, option, printable_json

TENSORBOARD = "tensorboard"  # as a log: event files in the folder of the run


@dataclass(frozen=True)
class Event:
    """The argument of callbacks, which are called after each step and after each evaluation.

    step: counts from 1. epoch: counts from 0. evaluation: loss and metrics of the held-out data, or
    None. gradient_norm: norm of all gradients before clipping, if the step clips by norm or has the
    norm among its metrics. without_labels: batches of the step in which no label counts.
    """

    step: int
    epoch: int
    loss: float
    rate: float
    evaluation: Mapping[str, float] | None = None
    gradient_norm: float | None = None
    without_labels: int = 0


# True ends training
Callback: TypeAlias = "Callable[[Event], bool | None]"


@dataclass
class JsonLines:
    """A callback that appends a line of JSON to a file for each event."""

    path: str | PathLike[str]

    def __call__(self, event: Event) -> None:
        """Writes the line. Raises InputError if the file cannot be written."""
        line: dict[str, Any] = {
            "step": event.step,
            "epoch": event.epoch,
            "loss": event.loss,
            "rate": event.rate,
        }
        if event.gradient_norm is not None:
            finite = math.isfinite(event.gradient_norm)  # JSON has no NaN or Inf
            line["gradient_norm"] = event.gradient_norm if finite else None
        if event.without_labels:
            line["without_labels"] = event.without_labels
        if event.evaluation is not None:
            line = {"step": event.step, "epoch": event.epoch, "evaluation": dict(event.evaluation)}
        self._add(printable_json(line, indent=None, allow_nan=True) + "\n")

    @property
    def size(self) -> int:
        """The number of bytes in the file; 0 if it is missing."""
        with suppress(OSError):
            return os.stat(self.path).st_size
        return 0

    def _add(self, text: str) -> None:
        try:
            with opened_to_change(Path(self.path), "a") as file:
                file.write(text)
        except OSError as error:
            raise InputError(f"{self.path}: cannot be written: {error.strerror or error}") from None

    def cut(self, size: int, step: int) -> None:
        """Removes the lines after this many bytes, which a run wrote after the step from which it
        resumes. Does nothing if the file is not the log of that run. Raises InputError if the file
        cannot be written.
        """
        if self.size <= size:
            return
        try:
            with opened_to_change(Path(self.path), "r+b") as file:
                file.seek(max(size - 1, 0))
                rest = file.read()
                lines = rest[min(size, 1) :].splitlines()
                if (not size or rest[:1] == b"\n") and all(self._after(x, step) for x in lines):
                    file.truncate(size)
        except OSError as error:
            raise InputError(f"{self.path}: cannot be written: {error.strerror or error}") from None

    def _after(self, line: bytes, step: int) -> bool:
        """Returns whether a line is of a step after that one, or was left unfinished."""
        try:
            return bool(json.loads(line)["step"] >= step)
        except ValueError:
            return True
        except (KeyError, TypeError):
            return False


@dataclass
class CsvLines(JsonLines):
    """A callback that appends a CSV row for each event, below a row with the names of the columns.

    results: the names of the results on held-out data, whose columns begin with held_out. Rows of
    steps leave these columns empty, rows of evaluations the others. Raises InputError if the file
    has other columns.
    """

    results: Sequence[str] = ()

    def __post_init__(self) -> None:
        held_out = [f"held_out_{name}" for name in self.results]
        self._columns = ["step", "epoch", "loss", "rate", "gradient_norm", *held_out]
        if self.size and self._first() != self._columns:
            raise InputError(
                f"{self.path}: its columns are {','.join(self._first())[:200]}, those of this run "
                f"{','.join(self._columns)}: choose another file"
            )

    def _first(self) -> list[str]:
        """Returns the names of the columns in the file."""
        try:
            with open(self.path, encoding="utf-8", errors="replace", newline="") as file:
                return next(csv.reader([file.readline(1 << 16)]), [])
        except (OSError, csv.Error):
            return []

    def __call__(self, event: Event) -> None:
        """Writes the row. Raises InputError if it cannot be written."""
        line: dict[str, Any] = {"step": event.step, "epoch": event.epoch}
        if event.evaluation is None:
            line |= {"loss": event.loss, "rate": event.rate, "gradient_norm": event.gradient_norm}
        else:
            line |= {f"held_out_{name}": x for name, x in event.evaluation.items()}
        text = io.StringIO()
        writer = csv.DictWriter(text, self._columns, lineterminator="\n", extrasaction="ignore")
        if not self.size:
            writer.writeheader()
        writer.writerow(line)
        self._add(text.getvalue())

    def _after(self, line: bytes, step: int) -> bool:
        first = line.split(b",")[0]
        return int(first) >= step if first.isdigit() else line.startswith(b"step")


class EventFiles(JsonLines):
    """A callback that writes event files for TensorBoard into a folder, up to each checkpoint. A
    resumed run declares the steps after its checkpoint void. Raises InputError if tensorboardX is
    not installed.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        super().__init__(path)
        try:
            import tensorboardX  # noqa: F401
        except ImportError:
            raise InputError(f"tensorboardX is not installed: {install('tensorboard')}") from None
        self._writer: Any = None
        self._from: int | None = None

    @property
    def size(self) -> int:
        """Writes what is buffered, because a checkpoint follows; 0: nothing will be cut."""
        if self._writer is not None:
            self._writer.flush()
        return 0

    def cut(self, size: int, step: int) -> None:
        """Lets TensorBoard hide what a run wrote after this step, from which it resumes."""
        self._from = step + 1

    def __call__(self, event: Event) -> None:
        """Adds the values. Raises InputError if the file cannot be made."""
        found = {"loss": event.loss, "rate": event.rate, "gradient_norm": event.gradient_norm}
        if event.evaluation is not None:
            found = {f"held_out/{name}": x for name, x in event.evaluation.items()}
        values = [{"tag": k, "simple_value": x} for k, x in found.items() if x is not None]
        if self._writer is None:
            self._open()
        self._add_event(event.step, summary={"value": values})

    def _open(self) -> None:
        from tensorboardX.event_file_writer import EventsWriter

        # two runs may begin in the second that the name has
        prefix, suffix = os.path.join(self.path, "events"), f".{secrets.token_hex(4)}"
        try:
            self._writer = EventsWriter(prefix, suffix)
        except OSError as error:
            raise InputError(f"{self.path}: cannot be written: {error.strerror or error}") from None
        weakref.finalize(self, self._writer.close)
        if self._from is not None:
            self._add_event(self._from, session_log={"status": 1})  # START

    def _add_event(self, step: int, **content: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event as Record

        self._writer.write_event(Record(wall_time=time.time(), step=step, **content))


def log_to(
    path: str | PathLike[str],
    results: Sequence[str],
    folder: str | PathLike[str] | None = None,
) -> JsonLines:
    """Returns the callback for a log file: event files in the folder if its name is `tensorboard`,
    CSV if its name ends with .csv, else lines of JSON. Raises InputError.
    """
    if os.fspath(path) == TENSORBOARD:
        if folder is None:
            log, place = option("--log", "log="), option("--folder DIR", "folder")
            raise InputError(f"{log} {TENSORBOARD} needs a folder: pass {place}")
        return EventFiles(folder)
    if os.fspath(path).lower().endswith(".csv"):
        return CsvLines(path, results)
    return JsonLines(path)


def check_plotting() -> None:
    """Raises InputError if matplotlib is not installed."""
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
    """Raises InputError for an option that needs held-out data, or a folder, if there is none."""
    held_out = option("--validation NPZ", "validation")
    place = option("--folder DIR", "folder")
    needs = (
        ("--patience", "patience", patience is not None, validation, "needs held-out data",
         held_out),
        ("--accuracy or --measure", "metrics", metrics, validation, "needs held-out data",
         held_out),
        ("--keep best", 'keep="best"', "best" in (keep or ()), validation, "needs held-out data",
         held_out),
        ("--rate reduceonplateau", "ReduceOnPlateau", plateau, validation, "needs held-out data",
         held_out),
        ("--keep N", "keep", {*(keep or ())} - {"best"}, folder, "needs a folder",
         place),
        ("--every", "every", every is not None, folder, "needs a folder", place),
    )  # fmt: skip
    for flag, keyword, given, needed, what, missing in needs:
        if given and needed is None:
            raise InputError(f"{option(flag, keyword)} {what}: pass {missing}")


@dataclass
class EarlyStopping:
    """A callback that stops training if the held-out loss has not become smaller for `patience`
    evaluations.
    """

    patience: int
    best: float | None = None
    stale: int = 0

    def __call__(self, event: Event) -> bool:
        """Returns whether training should stop."""
        if event.evaluation is None:
            return False
        loss = event.evaluation["loss"]
        if not math.isnan(loss) and (self.best is None or loss < self.best):
            self.best, self.stale = loss, 0
        else:
            self.stale += 1
        return self.stale >= self.patience


@dataclass(repr=False)
class History(InNotebooks):
    """Every event of a run, in order.

    best, last: the steps of these weights, and their loss and metrics on the held-out data, if any.
    kept: which of the two `export` writes.
    """

    events: list[Event] = field(default_factory=list)
    best: Mapping[str, float] | None = None
    last: Mapping[str, float] | None = None
    kept: Literal["best", "last"] = "last"

    def __repr__(self) -> str:
        """Returns the number of steps, and the first and the last loss."""
        found = self.losses
        went = f", loss {found[0]:.4g} -> {found[-1]:.4g}" if found else ""
        return f"History({len(found)} step{'s' * (len(found) != 1)}{went})"

    def __call__(self, event: Event) -> None:
        """Appends the event."""
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
        """Returns the last evaluation if it followed this step, else None."""
        found = [e for e in self.events if e.evaluation is not None]
        return found[-1].evaluation if found and found[-1].step == step else None

    @property
    def without_labels(self) -> int:
        """The number of batches in which no label counts: their loss and gradient are 0."""
        return sum(e.without_labels for e in self.events)

    def compare(
        self, best: Mapping[str, float] | None, last: Mapping[str, float], *, wanted: bool
    ) -> None:
        """Records the evaluations of the best and the last weights, and which of them are kept: the
        best only if `wanted` and if a held-out loss was a number.
        """
        better = best is not None and not last["loss"] <= best["loss"]
        self.last, self.best = last, best if better else last
        self.kept = "best" if wanted and better else "last"

    def plot(self, path: str | PathLike[str], over: Literal["step", "rate"] = "step") -> None:
        """Writes a plot of the loss over the steps, or over the learning rates. Raises InputError
        if matplotlib is not installed.
        """
        check_plotting()
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7, 4), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot(xscale="log" if over == "rate" else "linear")
        steps = [getattr(e, over) for e in self.events if e.evaluation is None]
        axes.plot(steps, self.losses, linewidth=1, label="training")
        if self.evaluations:
            steps = [e.step for e in self.events if e.evaluation is not None]
            axes.plot(steps, [found["loss"] for found in self.evaluations], "o-", label="held out")
            axes.legend()
        axes.set_xlabel("learning rate" if over == "rate" else over)
        axes.set_ylabel("loss")
        picture = io.BytesIO()
        figure.savefig(picture, format="png", dpi=120)
        write_whole(Path(path), picture.getvalue())


@dataclass
class RangeTest(InNotebooks):
    """A learning rate that grows from `low` to `high` by the same factor in each of `steps` steps,
    and a callback that ends training when the moving mean of the loss is 4 times its least.

    Source: Smith, "Cyclical Learning Rates for Training Neural Networks", 2017.

        test = RangeTest()
        Trainer(step, rate=test.rate).fit(data, steps=test.steps, callbacks=[test])
        test.steepest
    """

    low: float = 1e-6
    high: float = 10.0
    steps: int = 100
    history: History = field(default_factory=History)

    def rate(self, step: int) -> float:
        """Returns the rate of a step, which counts from 1."""
        return float(self.low * (self.high / self.low) ** ((step - 1) / (self.steps - 1)))

    def __call__(self, event: Event) -> bool:
        """Keeps the event. Returns whether training should end."""
        self.history(event)
        return self.means[-1] > 4 * min(self.means)

    @property
    def means(self) -> list[float]:
        """The moving mean of the loss after each step, in which each step counts 0.9 times the next
        one.
        """
        found, total, weight = [], 0.0, 0.0
        for loss in self.history.losses:
            total, weight = 0.9 * total + loss, 0.9 * weight + 1
            found.append(total / weight)
        return found

    @property
    def steepest(self) -> float | None:
        """The rate at which the mean falls most in a step, on its way to its least; the first tenth
        of the steps is left out. None if it never falls.
        """
        means, rates = self.means, [event.rate for event in self.history.events]
        falls = [(a - b, rate) for (a, b), rate in zip(pairwise(means), rates)]
        least = means.index(min(means)) if means else 0
        fall, rate = max(falls[self.steps // 10 : least], default=(0.0, 0.0))
        return rate if fall > 0 else None
