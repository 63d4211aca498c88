"""The options of training steps and runs. Imports only what `--help` needs."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

from onnxgrad import options
from onnxgrad.jobs.declared import REQUIRED, Declaration, option
from onnxgrad.jobs.gradient_declarations import Checkpointing, Formulas, LossLike
from onnxgrad.jobs.groups import Running
from onnxgrad.jobs.kinds import (
    Files,
    Instance,
    Labels,
    Memory,
    Names,
    Provider,
    Seconds,
    Seed,
    Several,
    Threads,
    Word,
)
from onnxgrad.jobs.training.kinds import (
    ByGlob,
    Examples,
    ExamplesOrShare,
    Function,
    MetricsByName,
    OneOrMore,
    RateOrText,
    Scales,
)
from onnxgrad.limits import SECONDS
from onnxgrad.options import Range
from onnxgrad.vocabulary import LOSSES, METRICS, OPTIMIZERS, SCHEDULES, EngineName

if TYPE_CHECKING:
    from collections.abc import Callable

    from onnxgrad.ir.load import ModelLike
    from onnxgrad.ir.types import Array
    from onnxgrad.train.augmentation import Augmentation
    from onnxgrad.train.callbacks import Callback
    from onnxgrad.train.data import Data, Given
    from onnxgrad.train.initialization import Initialization
    from onnxgrad.train.metrics import Metric
    from onnxgrad.train.optimizers.base import Optimizer
    from onnxgrad.train.schedules import Schedule
    from onnxgrad.train.update.mixed_precision import LossScaling
    from onnxgrad.train.update.moving_average import WeightAverage
    from onnxgrad.train.update.options import Groups

# ---- kinds of values ----------------------------------------------------------------------------


DataLike: TypeAlias = "Annotated[Given | Data, Examples()]"
HeldOutLike: TypeAlias = "Annotated[Given | Data | float, ExamplesOrShare()]"
RateLike: TypeAlias = "Annotated[float | str | Callable[[int], float], RateOrText()]"
MetricsLike: TypeAlias = (
    "Annotated[Mapping[str, Metric | str] | Sequence[str] | str, MetricsByName()]"
)
ScaleLike: TypeAlias = Annotated[Mapping[str, options.Finite], Scales()]
CallbackLike: TypeAlias = "Annotated[Callback, Function()]"
Keep: TypeAlias = 'Literal["best"] | Several'
OptimizerLike: TypeAlias = "Annotated[Optimizer, Instance('Optimizer')] | str"
ScheduleLike: TypeAlias = "Annotated[Schedule, Instance('Schedule')] | str"
GroupsLike: TypeAlias = "Annotated[Groups, ByGlob()]"
AverageLike: TypeAlias = "float | Annotated[WeightAverage, Instance('WeightAverage')] | str"
ScalingLike: TypeAlias = (
    "Literal['dynamic'] | float | Annotated[LossScaling, Instance('LossScaling')]"
)
AugmentLike: TypeAlias = (
    "Annotated[Mapping[str, str | Augmentation] | Sequence[tuple[str, Any]], ByGlob()]"
)
InitLike: TypeAlias = "Annotated[Initialization, Instance('Initialization')] | str"
Original: TypeAlias = "Annotated[ModelLike, Word()]"
RunSeed: TypeAlias = Annotated[int, Range(0, 2**31 - 1, words="from 0 to 2^31 - 1")]
Limit: TypeAlias = options.Positive
Batches: TypeAlias = options.Count
Ratio: TypeAlias = Annotated[float, Range(0, math.nextafter(1, 0), words="from 0 to below 1")]


@dataclass(frozen=True, kw_only=True)
class Update(Declaration):
    """The update of a training step: from gradients to new weights."""

    title: ClassVar[str] = "update"

    groups: GroupsLike | None = option(
        None,
        "another optimiser for these weights; the first group that matches decides",
        flag="--group",
        metavar="GLOB=NAME{option=value,...}",
    )
    clip_norm: Limit | None = option(
        None, "largest norm of all gradients together (gradient clipping)", metavar="X"
    )
    clip_value: Limit | None = option(
        None, "largest magnitude of each element of the gradients", metavar="X"
    )
    accumulate: Batches = option(
        1, "micro-batches per step, whose gradients are averaged (default: 1)", metavar="N"
    )
    accumulate_by: Literal["labels", "batches"] | None = option(
        None,
        "labels: micro-batches count by their labels, as if they were one batch; batches: all "
        "alike (default: labels for sequences and if ignore_index or weights are set)",
    )
    average: AverageLike | None = option(
        None,
        "keep an exponential moving average of the weights, with this decay, or with "
        "swa{start=1000,every=100} the mean of the weights after those steps",
        metavar="DECAY|swa{option=value,...}",
    )
    loss_scale: ScalingLike | None = option(
        None,
        "loss scale of a float16 model; steps that overflow are skipped",
        metavar="dynamic|NUMBER",
    )
    schedule: ScheduleLike | None = option(
        None,
        "schedule of the learning rate, computed in the graph: "
        f"{', '.join(name for name in SCHEDULES if name != 'reduceonplateau')}",
        metavar="NAME{option=value,...}",
    )


@dataclass(frozen=True, kw_only=True)
class StepOptions(Update, Formulas, Checkpointing):
    """The weights to train, the loss and the optimiser."""

    job: ClassVar[str] = "training_step"
    title: ClassVar[str] = "training step"
    titles: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("Formulas", "Checkpointing"), "training step"
    )

    loss: LossLike | None = option(
        None,
        "a scalar of the model (default: its only output), or NAME{option=value,...}, terms with "
        f"+ and factors with *: {', '.join(sorted(LOSSES))}. sequence_cross_entropy compares the "
        "scores at i with the label at i + 1 (shift=0: at i). Labels are new inputs, or values of "
        "the model that are held fixed: mse{output=a,target=b}",
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
        "weights to train; params (default): all weights; !GLOB excludes names",
        metavar="NAME|GLOB",
        positional=True,
    )
    stop: Names | None = option(
        None,
        "values at which gradients stop, so that the weights before them are frozen",
        metavar="NAME|GLOB",
    )
    inputs_at: Names = option(
        (),
        "values that become the inputs of the step; the nodes before them are frozen and not part "
        "of the step (fit runs them once over the data)",
        metavar="NAME",
    )
    tie: Names = option(
        ("auto",),
        "train weights with equal elements as one parameter (tied weights); auto (default): a "
        "table of embeddings and the matrix of a product; off: none",
        metavar="auto|off|NAME=NAME",
    )
    untie: Names = option(
        ("auto",),
        "train a weight that several layers share as one parameter per layer; auto (default): "
        "scales of ones and biases of zeros that an exporter merged or left out; off: none",
        metavar="auto|off|NAME",
    )
    init: InitLike | None = option(
        None,
        "draw the trained matrices and kernels whose elements are all 0: kaiming, xavier (seed=0)",
        metavar="NAME{option=value}",
    )
    standardize: Names = option(
        (),
        "inputs from which fit subtracts the mean of the training data, and divides by the "
        "deviation, along an axis (default: 1), in the model that it writes, too",
        metavar="NAME[=AXIS]",
    )
    original: Original | None = option(
        None,
        "the model from which MODEL was made. With --ste, the float model that was quantised, at "
        "whose weights training starts. For the folder of a step, the model into which -o writes "
        "the weights (default: the model in inference that the step has)",
        metavar="FILE",
        file="read",
    )
    metrics: Names = option(
        (),
        "an output of the model that the step returns in addition to the loss",
        flag="--metric",
        metavar="OUTPUT",
    )
    batch_norm: Literal["frozen", "train"] | None = option(
        None,
        "train: normalise by the statistics of the batch, and update the running ones (default: "
        "frozen)",
    )
    dropout: Literal["off", "train"] | Ratio | None = option(
        None,
        "train: drop with the ratios of the Dropout nodes; RATIO: with this ratio (default: off)",
        metavar="off|train|RATIO",
    )


@dataclass(frozen=True, kw_only=True)
class TrainStepOptions(StepOptions, Running):
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
    """The device, engine and learning rate of a run."""

    title: ClassVar[str] = "run"

    rate: RateLike | None = option(
        None,
        "learning rate (default: the optimiser's), or a schedule such as "
        f"cosine{{lr=1e-3,T_max=1000}}: {', '.join(SCHEDULES)}",
        metavar="NUMBER|SCHEDULE",
        positional=True,
    )
    provider: Provider = option("cpu", "where to train (default: cpu)")
    threads: Threads | None = option(
        None, "threads of onnxruntime (default: onnxruntime chooses)", metavar="N"
    )
    engine: EngineName = option(
        "auto",
        "graph: run the step graph unchanged; blocks: apply the update in NumPy, block by "
        "block; auto (default): blocks on the CPU if the step allows it",
    )
    data_parallel: bool = option(
        False, "distribute every batch over the processes that mpiexec started"
    )


@dataclass(frozen=True, kw_only=True)
class TrainerOptions(Engine):
    job: ClassVar[str] = "Trainer"

    seed: RunSeed = option(
        0, "seed of random draws such as Dropout; a resumed run keeps its seed (default: 0)"
    )


@dataclass(frozen=True, kw_only=True)
class Batched(Declaration):
    """The data, and the size of a batch."""

    title: ClassVar[str] = "run"

    data: DataLike = option(
        REQUIRED,
        "arrays with the names of the model's inputs and of the labels (labels or target): an "
        ".npz, or a folder of NAME.npy files, which may be larger than the memory",
        metavar="NPZ|FOLDER",
        positional=True,
        file="read",
    )
    names: Names | None = option(
        None, "names of the arrays, in order, if a batch is a tuple or a list of them", flag=None
    )
    constants: Mapping[str, Array] | None = option(
        None,
        "arrays added to every batch, such as the anchors of the trainer",
        flag=None,
    )
    scale: ScaleLike | None = option(
        None,
        "factor for an input with integer data, such as x=1/255 for images",
        metavar="NAME=NUMBER",
    )
    batch_size: Several | None = option(
        None, "examples in a batch (default: 32, or the size that the model fixes)", metavar="N"
    )


@dataclass(frozen=True, kw_only=True)
class Measured(Declaration):
    """Metrics of held-out data."""

    metrics: MetricsLike | None = option(
        None,
        f"metrics of the held-out data: texts ({', '.join(METRICS)}), or functions by name",
    )


@dataclass(frozen=True, kw_only=True)
class RestoreOptions(Declaration):
    """How strictly a checkpoint must fit."""

    job: ClassVar[str] = "restore"
    title: ClassVar[str] = "run"

    force: bool = option(
        False,
        "continue from a checkpoint of a different run, with the values that fit this step",
    )


@dataclass(frozen=True, kw_only=True)
class Epochs(Batched, RestoreOptions):
    """The length of a run, and what it stores."""

    title: ClassVar[str] = "run"

    validation: HeldOutLike | None = option(
        None,
        "held-out data, evaluated after each epoch, or the share of --data to hold out, such as "
        "0.2 (stratified by integer labels; --seed chooses the examples)",
        metavar="NPZ|SHARE",
        file="read",
    )
    augment: AugmentLike | None = option(
        None,
        "change examples of an input at random in each epoch: flip{axis=-1}, crop{pad=4}, "
        "noise{std=0.1}",
        metavar="INPUT=NAME{option=value}",
    )
    epochs: Several = option(1, "epochs to train (default: 1)", metavar="N")
    steps: Several | None = option(None, "steps to train, in place of --epochs", metavar="N")
    seed: Seed | None = option(0, "seed of the order of the data (default: 0)", metavar="N")
    patience: Several | None = option(
        None,
        "early stopping: stop after N epochs without a smaller held-out loss, and return the best "
        "weights",
        metavar="N",
    )
    folder: str | os.PathLike[str] | None = option(
        None,
        "save a checkpoint here after each epoch, and resume from the newest checkpoint here",
        metavar="DIR",
        file="into",
        names=("checkpoint*.safetensors", "best.safetensors"),
    )
    every: Several | None = option(None, "also save a checkpoint every N steps", metavar="N")
    keep: Annotated[Keep | tuple[Keep, ...], OneOrMore()] | None = option(
        None,
        "best: the result has the weights of the smallest held-out loss (default with --patience); "
        "N: keep the last N checkpoints in --folder; repeat for both",
        metavar="best|N",
    )
    log: str | os.PathLike[str] | None = option(
        None,
        "append a line of JSON for each step, or a CSV row if FILE ends with .csv, with the norm "
        "of the gradients if --clip-norm or --metric gradient_norm is set; tensorboard: event "
        "files in --folder",
        metavar="FILE|tensorboard",
        file="write",
    )


@dataclass(frozen=True, kw_only=True)
class RunOptions(Epochs, Measured):
    job: ClassVar[str] = "fit"

    callbacks: Sequence[CallbackLike] = option(
        (), "functions called with each `Event`; training ends if one returns true"
    )


@dataclass(frozen=True, kw_only=True)
class Averaged(Declaration):
    """The choice between weights and their moving averages."""

    averaged: bool = option(False, "use the moving averages in place of the weights")


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(Batched, Measured, Averaged):
    job: ClassVar[str] = "evaluate"


@dataclass(frozen=True, kw_only=True)
class Chosen(Averaged):
    """The choice of the weights after a run."""

    weights: Literal["best", "last"] | None = option(
        None,
        "best: those of the smallest held-out loss; last: those after the last step (default: as "
        "chosen in `fit`)",
    )


@dataclass(frozen=True, kw_only=True)
class Deployment(Declaration):
    """The mode of a trained model."""

    title: ClassVar[str] = "run"

    keep_training_mode: bool = option(
        False,
        "leave BatchNormalization and Dropout in the training mode of the file (default: the "
        "trained model is in inference mode, and computes what was evaluated)",
    )


@dataclass(frozen=True, kw_only=True)
class ExportOptions(Chosen, Deployment):
    job: ClassVar[str] = "export"

    path: str | os.PathLike[str] | None = option(
        None,
        "write the model, of any size, to this file instead of returning the model",
        positional=True,
        file="write",
    )


@dataclass(frozen=True, kw_only=True)
class DeployOptions(Chosen):
    job: ClassVar[str] = "deploy"


@dataclass(frozen=True, kw_only=True)
class PredictOptions(Batched, Chosen):
    job: ClassVar[str] = "predict"


@dataclass(frozen=True, kw_only=True)
class FitOptions(StepOptions, Engine, Epochs, Deployment):
    job: ClassVar[str] = "fit"
    title: ClassVar[str] = "run"

    timeout: Seconds | None = option(
        None,
        "seconds for the whole run, training included (default: "
        f"{SECONDS:g} for reading and opening files, no limit for training)",
        metavar="SECONDS",
    )
    max_memory: Memory | None = option(
        None,
        "memory for the whole run, such as 4GB (default: half of the memory of the machine or its "
        "cgroup for reading and opening files, no limit for training)",
        metavar="SIZE",
    )
    accuracy: Labels | None = option(
        None,
        "report how often the largest element of OUTPUT is at the index in LABELS",
        metavar="OUTPUT=LABELS",
    )
    measure: MetricsLike | None = option(
        None,
        f"evaluate a metric of the held-out data: {', '.join(METRICS)}",
        metavar="NAME{option=value,...}",
    )
    predict: Files | None = option(
        None,
        "after training, write the outputs of the model for these inputs to an .npz",
        metavar="NPZ|FOLDER=NPZ",
        file="pairs",
    )
    shuffle: bool = option(True, "do not shuffle the data", flag="--no-shuffle")
    plot: str | None = option(
        None, "write a plot of the loss as .png", metavar="FILE", file="write"
    )
