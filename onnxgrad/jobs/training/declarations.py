"""The declarations of training: what can be set of each. As little to import as `--help` needs."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

from onnxgrad import options
from onnxgrad.errors import InputError
from onnxgrad.jobs.declared import REQUIRED, Declaration, option
from onnxgrad.jobs.gradient_declarations import Checkpointing
from onnxgrad.jobs.groups import (
    Instance,
    Labels,
    Memory,
    Names,
    Provider,
    Running,
    Seconds,
    Seed,
    Several,
    Threads,
    Word,
)
from onnxgrad.limits import SECONDS
from onnxgrad.options import Range
from onnxgrad.vocabulary import LOSSES, OPTIMIZERS, SCHEDULES, EngineName

if TYPE_CHECKING:
    from collections.abc import Callable

    from onnxgrad.ir.var import Var
    from onnxgrad.train.callbacks import Callback
    from onnxgrad.train.data import Data, Given
    from onnxgrad.train.evaluation import Metric
    from onnxgrad.train.losses.base import Loss
    from onnxgrad.train.optimizers.base import Optimizer
    from onnxgrad.train.schedules import Schedule
    from onnxgrad.train.update.mixed_precision import LossScaling
    from onnxgrad.train.update.moving_average import ExponentialMovingAverage
    from onnxgrad.train.update.options import Groups

# ---- kinds of values ----------------------------------------------------------------------------


class _Groups:
    """Optimisers by globs of weights, in order."""

    def read(self, text: str, flag: str) -> tuple[str, str]:
        glob, _, optimizer = text.partition("=")
        if not glob or not optimizer:
            raise InputError(f"{flag} {text[:80]}: write GLOB=NAME or GLOB=NAME{{option=value}}")
        return glob, optimizer

    def join(self, values: Sequence[tuple[str, str]], _: str) -> tuple[tuple[str, str], ...]:
        return tuple(values)


class _Data(Word):
    """Batches, or what they are cut from."""

    what = "arrays by name, an .npz of them, a list of batches, or a function that makes them"

    def check(self, value: Any, where: str) -> Any:
        known = isinstance(value, (Iterable, os.PathLike)) or callable(value)
        if isinstance(value, (bytes, bytearray)) or not (known or hasattr(value, "epoch")):
            raise InputError(f"{where} must be {self.what}, not {type(value).__name__}")
        return value


class _Kept:
    """One word or number, or several."""

    def check(self, value: Any, where: str) -> tuple[Any, ...] | None:
        return value if value is None or isinstance(value, tuple) else (value,)

    def join(self, values: Sequence[Any], _: str) -> tuple[Any, ...]:
        return tuple(values)


class _Rate(Word):
    """A learning rate, or how it goes with the step."""

    what = "a number, the text of a schedule, or a function of the step's number"

    def check(self, value: Any, where: str) -> Any:
        if isinstance(value, bool) or not (isinstance(value, (str, Real)) or callable(value)):
            raise InputError(f"{where} must be {self.what}, not {repr(value)[:80]}")
        return value


class _Function:
    """A function of the caller."""

    what = "a function"

    def check(self, value: Any, where: str) -> Any:
        if not callable(value):
            raise InputError(f"{where} must be {self.what}, not {repr(value)[:80]}")
        return value


DataLike: TypeAlias = "Annotated[Given | Data, _Data()]"
RateLike: TypeAlias = "Annotated[float | str | Callable[[int], float], _Rate()]"
MetricLike: TypeAlias = "Annotated[Metric, _Function()]"
CallbackLike: TypeAlias = "Annotated[Callback, _Function()]"
Keep: TypeAlias = 'Literal["best"] | Several'
LossLike: TypeAlias = "str | Annotated[Loss, Instance('Loss')] | Callable[[dict[str, Var]], Var]"
OptimizerLike: TypeAlias = "Annotated[Optimizer, Instance('Optimizer')] | str"
ScheduleLike: TypeAlias = "Annotated[Schedule, Instance('Schedule')] | str"
GroupsLike: TypeAlias = "Annotated[Groups, _Groups()]"
AverageLike: TypeAlias = (
    "float | Annotated[ExponentialMovingAverage, Instance('ExponentialMovingAverage')]"
)
ScalingLike: TypeAlias = (
    "Literal['dynamic'] | float | Annotated[LossScaling, Instance('LossScaling')]"
)
RunSeed: TypeAlias = Annotated[int, Range(0, 2**31 - 1, words="from 0 to 2^31 - 1")]
Limit: TypeAlias = options.Positive
Batches: TypeAlias = options.Count
Ratio: TypeAlias = Annotated[float, Range(0, math.nextafter(1, 0), words="from 0 to below 1")]


@dataclass(frozen=True, kw_only=True)
class Update(Declaration):
    """How a training step moves the weights."""

    title: ClassVar[str] = "update"

    groups: GroupsLike | None = option(
        None,
        "another optimiser for these weights; the first group that fits decides",
        flag="--group",
        metavar="GLOB=NAME{option=value,...}",
    )
    clip_norm: Limit | None = option(None, "limit of the norm of all gradients", metavar="X")
    clip_value: Limit | None = option(None, "limit of each element of the gradients", metavar="X")
    accumulate: Batches = option(1, "micro-batches of one step (default: 1)", metavar="N")
    average: AverageLike | None = option(
        None, "keep a moving average of the weights", metavar="DECAY"
    )
    loss_scale: ScalingLike | None = option(
        None,
        "loss scale of a float16 model; a step that overflows is skipped",
        metavar="dynamic|NUMBER",
    )
    schedule: ScheduleLike | None = option(
        None,
        f"the learning rate, inside the graph: {', '.join(SCHEDULES)}",
        metavar="NAME{option=value,...}",
    )


@dataclass(frozen=True, kw_only=True)
class StepOptions(Update, Checkpointing):
    """Options of `training_step`: the weights to train, the loss and the optimiser."""

    job: ClassVar[str] = "training_step"
    title: ClassVar[str] = "training step"
    titles: ClassVar[Mapping[str, str]] = {"Checkpointing": "training step"}

    loss: LossLike | None = option(
        None,
        "NAME{option=value,...}, terms with + and factors with *: "
        f"{', '.join(sorted(LOSSES))}; or a scalar of the model; default: its only output. Labels "
        "are inputs, or values of the model held fixed: mse{output=a,target=b}",
        metavar="LOSS",
        positional=True,
    )
    optimizer: OptimizerLike | None = option(
        None,
        f"{', '.join(OPTIMIZERS)} (default: adamw)",
        metavar="NAME{option=value,...}",
        positional=True,
    )
    wrt: Names | None = option(
        ("params",),
        "the weights to train; params (default): all of them; !GLOB takes away",
        metavar="NAME|GLOB",
        positional=True,
    )
    stop: Names | None = option(
        None,
        "values at which gradients stop: the weights before them are frozen",
        metavar="NAME|GLOB",
    )
    inputs_at: Names = option(
        (),
        "values that become the inputs: what comes before them is frozen and no part of the "
        "step (fit runs it once over the data)",
        metavar="NAME",
    )
    tie: Names = option(
        ("auto",),
        "train weights with equal elements as one parameter; auto (default): a table of "
        "embeddings and the matrix of a product; off: none",
        metavar="auto|off|NAME=NAME",
    )
    untie: Names = option(
        ("auto",),
        "train each layer's part of a shared weight by itself; auto (default): scales of ones and "
        "biases of zeros that an exporter merged or left out; off: none",
        metavar="auto|off|NAME",
    )
    metrics: Names = option(
        (),
        "an output of the model that the step returns beside the loss",
        flag="--metric",
        metavar="OUTPUT",
    )
    batch_norm: Literal["frozen", "train"] | None = option(
        None, "train: normalise by the batch; running statistics become states (default: frozen)"
    )
    dropout: Literal["off", "train"] | Ratio | None = option(
        None,
        "train: drop as the model's Dropout nodes say, with a seed per step (default: off)",
        metavar="off|train|RATIO",
    )


@dataclass(frozen=True, kw_only=True)
class TrainStepOptions(StepOptions, Running):
    """Options of `train-step`."""

    job: ClassVar[str] = "train-step"
    title: ClassVar[str] = "proof"
    titles: ClassVar[Mapping[str, str]] = {
        **StepOptions.titles,
        "Limits": "proof",
        "Running": "proof",
    }

    seed: Seed = option(0, "seed of generated values (default: 0)", metavar="N")
    verify: bool = option(True, "skip the numeric check (needs no onnxruntime)", flag="--no-verify")


@dataclass(frozen=True, kw_only=True)
class Engine(Declaration):
    """Where a training step runs, and at which rate."""

    title: ClassVar[str] = "run"

    rate: RateLike | None = option(
        None,
        "the learning rate (default: the optimiser's), or a schedule such as "
        f"cosine{{lr=1e-3,T_max=1000}}: {', '.join(SCHEDULES)}",
        metavar="NUMBER|SCHEDULE",
        positional=True,
    )
    provider: Provider = option("cpu", "where to train (default: cpu)")
    threads: Threads | None = option(None, "threads of onnxruntime", metavar="N")
    engine: EngineName = option(
        "auto",
        "graph: run the step graph unchanged; blocks: apply the update in NumPy, block by "
        "block (default: auto)",
    )
    data_parallel: bool = option(
        False, "share out every batch among the processes that mpiexec started"
    )


@dataclass(frozen=True, kw_only=True)
class TrainerOptions(Engine):
    """Options of `Trainer`."""

    job: ClassVar[str] = "Trainer"

    seed: RunSeed = option(
        0, "seed of what the steps draw (Dropout); a resumed run keeps its own (default: 0)"
    )


@dataclass(frozen=True, kw_only=True)
class Batched(Declaration):
    """The examples, and how they are cut."""

    title: ClassVar[str] = "run"

    data: DataLike = option(
        REQUIRED,
        "arrays by the names of the model's inputs, and of what the loss compares with "
        "(labels or target); or a folder of NAME.npy, which may pass the memory",
        metavar="NPZ|FOLDER",
        positional=True,
    )
    batch_size: Several | None = option(
        None, "examples of a batch (default: 32, or the size that the model fixes)", metavar="N"
    )


@dataclass(frozen=True, kw_only=True)
class Measured(Declaration):
    """What is computed beside the loss on held-out data."""

    metrics: Mapping[str, MetricLike] | None = option(
        None, "metrics of the held-out data, such as `accuracy(...)`, by name"
    )


@dataclass(frozen=True, kw_only=True)
class RestoreOptions(Declaration):
    """Options of `Trainer.restore`, which a run shares."""

    job: ClassVar[str] = "restore"
    title: ClassVar[str] = "run"

    force: bool = option(
        False, "go on from a checkpoint of another run, with its values that fit the step"
    )


@dataclass(frozen=True, kw_only=True)
class Epochs(Batched, RestoreOptions):
    """How long training goes on, and what it keeps."""

    title: ClassVar[str] = "run"

    validation: DataLike | None = option(None, "held-out data, for each epoch's end", metavar="NPZ")
    epochs: Several = option(1, "epochs to train (default: 1)", metavar="N")
    steps: Several | None = option(None, "steps to train, in place of --epochs", metavar="N")
    seed: Seed | None = option(0, "seed of the order of the data (default: 0)", metavar="N")
    patience: Several | None = option(
        None, "stop after this many epochs without a smaller held-out loss", metavar="N"
    )
    folder: str | os.PathLike[str] | None = option(
        None, "save here after each epoch; resume from the checkpoint that is there", metavar="DIR"
    )
    every: Several | None = option(None, "also save every N steps", metavar="N")
    keep: Annotated[Keep | tuple[Keep, ...], _Kept()] | None = option(
        None,
        "best: the result has the weights of the smallest held-out loss, as with --patience; N: "
        "the last N checkpoints stay in --folder; repeat for both",
        metavar="best|N",
    )
    log: str | os.PathLike[str] | None = option(
        None,
        "write a line of JSON for each step, with the norm of gradients if --clip-norm or "
        "--metric gradient_norm is set",
        metavar="FILE",
    )


@dataclass(frozen=True, kw_only=True)
class RunOptions(Epochs, Measured):
    """Options of `Trainer.fit`."""

    job: ClassVar[str] = "fit"

    callbacks: Sequence[CallbackLike] = option(
        (), "functions of each `Event`; training ends if one returns true"
    )


@dataclass(frozen=True, kw_only=True)
class Averaged(Declaration):
    """Which weights are meant."""

    averaged: bool = option(False, "the moving averages of the weights, in place of the weights")


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(Batched, Measured, Averaged):
    """Options of `Trainer.evaluate`."""

    job: ClassVar[str] = "evaluate"


@dataclass(frozen=True, kw_only=True)
class ExportOptions(Averaged):
    """Options of `Trainer.export`."""

    job: ClassVar[str] = "export"

    path: str | os.PathLike[str] | None = option(
        None, "write the model there, of any size, in place of returning it", positional=True
    )
    weights: Literal["best", "last"] | None = option(
        None, "the weights of the smallest held-out loss, or the last; default: as `fit` kept them"
    )


@dataclass(frozen=True, kw_only=True)
class FitOptions(StepOptions, Engine, Epochs):
    """Options of `fit`."""

    job: ClassVar[str] = "fit"
    title: ClassVar[str] = "run"

    timeout: Seconds | None = option(
        None,
        f"for everything, the training included; default: {SECONDS:g} for reading and "
        "opening alone",
        metavar="SECONDS",
    )
    max_memory: Memory | None = option(
        None,
        "likewise, such as 4GB; default: half of what the machine or its cgroup has, for "
        "reading and opening alone",
        metavar="SIZE",
    )
    accuracy: Labels | None = option(
        None,
        "evaluate the share of labels that the highest score of an output names",
        metavar="OUTPUT=LABELS",
    )
    shuffle: bool = option(True, "keep the order of the data", flag="--no-shuffle")
    plot: str | None = option(None, "plot the loss into a .png", metavar="FILE")
