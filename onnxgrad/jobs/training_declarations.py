"""The declarations of training: what can be set of each. As little to import as `--help` needs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, TypeAlias

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
)
from onnxgrad.limits import SECONDS
from onnxgrad.vocabulary import LOSSES, OPTIMIZERS, SCHEDULES

if TYPE_CHECKING:
    from collections.abc import Callable

    from onnxgrad.ir.var import Var
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
Limit: TypeAlias = options.Positive
Batches: TypeAlias = options.Count
Ratio: TypeAlias = Annotated[
    float, options.Range(0, math.nextafter(1, 0), words="from 0 to below 1")
]


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
class FitOptions(StepOptions):
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
    data: str = option(
        REQUIRED,
        "arrays by the names of the model's inputs, and of what the loss compares with "
        "(labels or target)",
        metavar="NPZ",
    )
    validation: str | None = option(None, "held-out data, for each epoch's end", metavar="NPZ")
    epochs: Several = option(1, "epochs to train (default: 1)", metavar="N")
    steps: Several | None = option(None, "steps to train, in place of --epochs", metavar="N")
    batch_size: Several | None = option(
        None, "examples of a batch (default: 32, or the size that the model fixes)", metavar="N"
    )
    rate: str = option(
        "",
        "the learning rate (default: the optimiser's), or a schedule such as "
        f"cosine{{lr=1e-3,T_max=1000}}: {', '.join(SCHEDULES)}",
        metavar="NUMBER|SCHEDULE",
    )
    accuracy: Labels | None = option(
        None,
        "evaluate the share of labels that the highest score of an output names",
        metavar="OUTPUT=LABELS",
    )
    seed: Seed = option(0, "seed of the order of the data (default: 0)", metavar="N")
    shuffle: bool = option(True, "keep the order of the data", flag="--no-shuffle")
    patience: Several | None = option(
        None, "stop after this many epochs without a smaller held-out loss", metavar="N"
    )
    folder: str | None = option(
        None, "save here after each epoch; resume from the checkpoint that is there", metavar="DIR"
    )
    every: Several | None = option(None, "also save every N steps", metavar="N")
    force: bool = option(
        False, "go on from a checkpoint of another run, with its values that fit the step"
    )
    log: str | None = option(
        None,
        "write a line of JSON for each step, with the norm of gradients if --clip-norm or "
        "--metric gradient_norm is set",
        metavar="FILE",
    )
    plot: str | None = option(None, "plot the loss into a .png", metavar="FILE")
    data_parallel: bool = option(
        False, "share out every batch among the processes that mpiexec started"
    )
    provider: Provider = option("cpu", "where to train (default: cpu)")
    threads: Threads | None = option(None, "threads of onnxruntime", metavar="N")
    engine: Literal["auto", "graph", "blocks"] = option(
        "auto",
        "graph: run the step graph unchanged; blocks: apply the update in NumPy, block by "
        "block (default: auto)",
    )
