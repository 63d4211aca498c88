"""The options of a training step. Imports only what `--help` needs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, TypeAlias

from onnxgrad import options
from onnxgrad.frozen import frozen
from onnxgrad.jobs.declared import Declaration, option
from onnxgrad.jobs.gradient_declarations import Checkpointing, Formulas
from onnxgrad.jobs.groups import Running, verified
from onnxgrad.jobs.kinds import Instance, LossLike, Names, Seed, Word
from onnxgrad.jobs.training.kinds import ByGlob
from onnxgrad.options import Range
from onnxgrad.vocabulary import LOSSES, OPTIMIZERS, SCHEDULES

if TYPE_CHECKING:
    from onnxgrad.ir.load import ModelLike
    from onnxgrad.train.initialization import Initialization
    from onnxgrad.train.optimizers.base import Optimizer
    from onnxgrad.train.schedules import Schedule
    from onnxgrad.train.update.mixed_precision import LossScaling
    from onnxgrad.train.update.moving_average import WeightAverage
    from onnxgrad.train.update.options import Groups

OptimizerLike: TypeAlias = "Annotated[Optimizer, Instance('Optimizer')] | str"
ScheduleLike: TypeAlias = "Annotated[Schedule, Instance('Schedule')] | str"
GroupsLike: TypeAlias = "Annotated[Groups, ByGlob()]"
AverageLike: TypeAlias = "float | Annotated[WeightAverage, Instance('WeightAverage')] | str"
ScalingLike: TypeAlias = (
    "Literal['dynamic'] | float | Annotated[LossScaling, Instance('LossScaling')]"
)
InitLike: TypeAlias = "Annotated[Initialization, Instance('Initialization')] | str"
Original: TypeAlias = "Annotated[ModelLike, Word()]"
Limit: TypeAlias = options.Positive
Batches: TypeAlias = options.Count
Ratio: TypeAlias = Annotated[float, Range(0, math.nextafter(1, 0), words="from 0 to below 1")]


@frozen(kw_only=True)
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
        "swa{start=1000,every=100} the mean of the weights after those steps; `fit` evaluates and "
        "writes the average",
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


@frozen(kw_only=True)
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


@frozen(kw_only=True)
class TrainStepOptions(StepOptions, Running):
    job: ClassVar[str] = "train-step"
    title: ClassVar[str] = "proof"
    titles: ClassVar[Mapping[str, str]] = {
        **StepOptions.titles,
        "Limits": "proof",
        "Running": "proof",
    }

    seed: Seed = option(0, "seed of generated values (default: 0)", metavar="N")
    verify: bool = verified("numeric check")
