"""The options of training runs. Imports only what `--help` needs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

from onnxgrad import options
from onnxgrad.frozen import frozen
from onnxgrad.jobs.declared import REQUIRED, Declaration, option
from onnxgrad.jobs.kinds import (
    Files,
    Labels,
    Memory,
    Names,
    Provider,
    Seconds,
    Seed,
    Several,
    Threads,
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
from onnxgrad.jobs.training.step_declarations import StepOptions
from onnxgrad.limits import SECONDS
from onnxgrad.options import Range
from onnxgrad.vocabulary import METRICS, SCHEDULES, EngineName

if TYPE_CHECKING:
    from collections.abc import Callable

    from onnxgrad.ir.types import Array
    from onnxgrad.train.augmentation import Augmentation
    from onnxgrad.train.callbacks import Callback
    from onnxgrad.train.data import Data, Given
    from onnxgrad.train.metrics import Metric

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
AugmentLike: TypeAlias = (
    "Annotated[Mapping[str, str | Augmentation] | Sequence[tuple[str, Any]], ByGlob()]"
)
RunSeed: TypeAlias = Annotated[int, Range(0, 2**31 - 1, words="from 0 to 2^31 - 1")]


@frozen(kw_only=True)
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


@frozen(kw_only=True)
class TrainerOptions(Engine):
    job: ClassVar[str] = "Trainer"

    seed: RunSeed = option(
        0, "seed of random draws such as Dropout; a resumed run keeps its seed (default: 0)"
    )


@frozen(kw_only=True)
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


@frozen(kw_only=True)
class Measured(Declaration):
    """Metrics of held-out data."""

    metrics: MetricsLike | None = option(
        None,
        f"metrics of the held-out data: texts ({', '.join(METRICS)}), or functions by name",
    )


@frozen(kw_only=True)
class RestoreOptions(Declaration):
    """How strictly a checkpoint must fit."""

    job: ClassVar[str] = "restore"
    title: ClassVar[str] = "run"

    force: bool = option(
        False,
        "continue from a checkpoint of a different run, with the values that fit this step",
    )


@frozen(kw_only=True)
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
        "data augmentation: change examples of an input at random in each epoch, by "
        "flip{axis=-1}, crop{pad=4}, noise{std=0.1}",
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


@frozen(kw_only=True)
class RunOptions(Epochs, Measured):
    job: ClassVar[str] = "fit"

    callbacks: Sequence[CallbackLike] = option(
        (), "functions called with each `Event`; training ends if one returns true"
    )


@frozen(kw_only=True)
class Averaged(Declaration):
    """The choice between weights and their moving averages."""

    averaged: bool = option(False, "use the moving averages in place of the weights")


@frozen(kw_only=True)
class EvaluateOptions(Batched, Measured, Averaged):
    job: ClassVar[str] = "evaluate"


@frozen(kw_only=True)
class Chosen(Averaged):
    """The choice of the weights after a run."""

    weights: Literal["best", "last"] | None = option(
        None,
        "best: those of the smallest held-out loss; last: those after the last step (default: as "
        "chosen in `fit`)",
    )


@frozen(kw_only=True)
class Deployment(Declaration):
    """The mode of a trained model."""

    title: ClassVar[str] = "run"

    keep_training_mode: bool = option(
        False,
        "leave BatchNormalization and Dropout in the training mode of the file (default: the "
        "trained model is in inference mode, and computes what was evaluated)",
    )


@frozen(kw_only=True)
class ExportOptions(Chosen, Deployment):
    job: ClassVar[str] = "export"

    path: str | os.PathLike[str] | None = option(
        None,
        "write the model, of any size, to this file instead of returning the model",
        positional=True,
        file="write",
    )


@frozen(kw_only=True)
class DeployOptions(Chosen):
    job: ClassVar[str] = "deploy"


@frozen(kw_only=True)
class PredictOptions(Batched, Chosen):
    job: ClassVar[str] = "predict"


@frozen(kw_only=True)
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
