"""Made by scripts/make_stubs.py from the declarations of onnxgrad.jobs."""

# fmt: off
# ruff: noqa: I001
from collections.abc import Mapping
from collections.abc import Sequence
from onnx import ModelProto
from onnxgrad.ir.load import M
from onnxgrad.ir.load import ModelLike
from onnxgrad.ir.types import Array
from onnxgrad.jobs.gradient_declarations import Checkpoints
from onnxgrad.jobs.kinds import Files
from onnxgrad.jobs.kinds import Labels
from onnxgrad.jobs.kinds import LossLike
from onnxgrad.jobs.kinds import Memory
from onnxgrad.jobs.kinds import Names
from onnxgrad.jobs.kinds import Provider
from onnxgrad.jobs.kinds import Seconds
from onnxgrad.jobs.kinds import Seed
from onnxgrad.jobs.kinds import Several
from onnxgrad.jobs.kinds import Threads
from onnxgrad.jobs.training.declarations import AugmentLike
from onnxgrad.jobs.training.declarations import CallbackLike
from onnxgrad.jobs.training.declarations import DataLike
from onnxgrad.jobs.training.declarations import HeldOutLike
from onnxgrad.jobs.training.declarations import Keep
from onnxgrad.jobs.training.declarations import MetricsLike
from onnxgrad.jobs.training.declarations import RateLike
from onnxgrad.jobs.training.declarations import RunSeed
from onnxgrad.jobs.training.declarations import ScaleLike
from onnxgrad.jobs.training.fit import Fitted
from onnxgrad.jobs.training.kinds import OneOrMore
from onnxgrad.jobs.training.step_declarations import AverageLike
from onnxgrad.jobs.training.step_declarations import Batches
from onnxgrad.jobs.training.step_declarations import GroupsLike
from onnxgrad.jobs.training.step_declarations import InitLike
from onnxgrad.jobs.training.step_declarations import Limit
from onnxgrad.jobs.training.step_declarations import OptimizerLike
from onnxgrad.jobs.training.step_declarations import Original
from onnxgrad.jobs.training.step_declarations import Ratio
from onnxgrad.jobs.training.step_declarations import ScalingLike
from onnxgrad.jobs.training.step_declarations import ScheduleLike
from onnxgrad.jobs.training.trainer import TrainingLoop
from onnxgrad.train.callbacks import History
from onnxgrad.train.step import TrainingStep
from onnxgrad.vocabulary import EngineName
from os import PathLike
from typing import Annotated
from typing import Any
from typing import IO
from typing import Literal
from typing import overload
import os

def training_step(
    model: ModelLike,
    loss: LossLike | None = None,
    optimizer: OptimizerLike | None = None,
    wrt: Names | None = ('params',),
    *,
    stop: Names | None = None,
    inputs_at: Names = (),
    tie: Names = ('auto',),
    untie: Names = ('auto',),
    init: InitLike | None = None,
    standardize: Names = (),
    original: Original | None = None,
    metrics: Names = (),
    batch_norm: Literal['frozen', 'train'] | None = None,
    dropout: Literal['off', 'train'] | Ratio | None = None,
    groups: GroupsLike | None = None,
    clip_norm: Limit | None = None,
    clip_value: Limit | None = None,
    accumulate: Batches = 1,
    accumulate_by: Literal['labels', 'batches'] | None = None,
    average: AverageLike | None = None,
    loss_scale: ScalingLike | None = None,
    schedule: ScheduleLike | None = None,
    form: Literal['fast', 'small'] = 'fast',
    autocast: Literal['bfloat16', 'float16'] | None = None,
    ste: bool = False,
    checkpoint: Checkpoints | None = None,
) -> TrainingStep: ...
@overload
def fit(
    model: str | os.PathLike[str] | bytes | IO[bytes],
    data: DataLike,
    loss: LossLike | None = None,
    optimizer: OptimizerLike | None = None,
    wrt: Names | None = ('params',),
    rate: RateLike | None = None,
    *,
    report: Literal[False] = False,
    timeout: Seconds | None = None,
    max_memory: Memory | None = None,
    accuracy: Labels | None = None,
    measure: MetricsLike | None = None,
    predict: Files | None = None,
    shuffle: bool = True,
    plot: str | None = None,
    stop: Names | None = None,
    inputs_at: Names = (),
    tie: Names = ('auto',),
    untie: Names = ('auto',),
    init: InitLike | None = None,
    standardize: Names = (),
    original: str | os.PathLike[str] | bytes | IO[bytes] | None = None,
    metrics: Names = (),
    batch_norm: Literal['frozen', 'train'] | None = None,
    dropout: Literal['off', 'train'] | Ratio | None = None,
    groups: GroupsLike | None = None,
    clip_norm: Limit | None = None,
    clip_value: Limit | None = None,
    accumulate: Batches = 1,
    accumulate_by: Literal['labels', 'batches'] | None = None,
    average: AverageLike | None = None,
    loss_scale: ScalingLike | None = None,
    schedule: ScheduleLike | None = None,
    form: Literal['fast', 'small'] = 'fast',
    autocast: Literal['bfloat16', 'float16'] | None = None,
    ste: bool = False,
    checkpoint: Checkpoints | None = None,
    provider: Provider = 'cpu',
    threads: Threads | None = None,
    engine: EngineName = 'auto',
    data_parallel: bool = False,
    validation: HeldOutLike | None = None,
    augment: AugmentLike | None = None,
    epochs: Several = 1,
    steps: Several | None = None,
    seed: Seed | None = 0,
    patience: Several | None = None,
    folder: str | os.PathLike[str] | None = None,
    every: Several | None = None,
    keep: Annotated[Keep | tuple[Keep, ...], OneOrMore()] | None = None,
    log: str | os.PathLike[str] | None = None,
    names: Names | None = None,
    constants: Mapping[str, Array] | None = None,
    scale: ScaleLike | None = None,
    batch_size: Several | None = None,
    force: bool = False,
    keep_training_mode: bool = False,
) -> ModelProto: ...
@overload
def fit(
    model: M,
    data: DataLike,
    loss: LossLike | None = None,
    optimizer: OptimizerLike | None = None,
    wrt: Names | None = ('params',),
    rate: RateLike | None = None,
    *,
    report: Literal[False] = False,
    timeout: Seconds | None = None,
    max_memory: Memory | None = None,
    accuracy: Labels | None = None,
    measure: MetricsLike | None = None,
    predict: Files | None = None,
    shuffle: bool = True,
    plot: str | None = None,
    stop: Names | None = None,
    inputs_at: Names = (),
    tie: Names = ('auto',),
    untie: Names = ('auto',),
    init: InitLike | None = None,
    standardize: Names = (),
    original: Original | None = None,
    metrics: Names = (),
    batch_norm: Literal['frozen', 'train'] | None = None,
    dropout: Literal['off', 'train'] | Ratio | None = None,
    groups: GroupsLike | None = None,
    clip_norm: Limit | None = None,
    clip_value: Limit | None = None,
    accumulate: Batches = 1,
    accumulate_by: Literal['labels', 'batches'] | None = None,
    average: AverageLike | None = None,
    loss_scale: ScalingLike | None = None,
    schedule: ScheduleLike | None = None,
    form: Literal['fast', 'small'] = 'fast',
    autocast: Literal['bfloat16', 'float16'] | None = None,
    ste: bool = False,
    checkpoint: Checkpoints | None = None,
    provider: Provider = 'cpu',
    threads: Threads | None = None,
    engine: EngineName = 'auto',
    data_parallel: bool = False,
    validation: HeldOutLike | None = None,
    augment: AugmentLike | None = None,
    epochs: Several = 1,
    steps: Several | None = None,
    seed: Seed | None = 0,
    patience: Several | None = None,
    folder: str | os.PathLike[str] | None = None,
    every: Several | None = None,
    keep: Annotated[Keep | tuple[Keep, ...], OneOrMore()] | None = None,
    log: str | os.PathLike[str] | None = None,
    names: Names | None = None,
    constants: Mapping[str, Array] | None = None,
    scale: ScaleLike | None = None,
    batch_size: Several | None = None,
    force: bool = False,
    keep_training_mode: bool = False,
) -> M: ...
@overload
def fit(
    model: ModelLike,
    data: DataLike,
    loss: LossLike | None = None,
    optimizer: OptimizerLike | None = None,
    wrt: Names | None = ('params',),
    rate: RateLike | None = None,
    *,
    report: Literal[True],
    timeout: Seconds | None = None,
    max_memory: Memory | None = None,
    accuracy: Labels | None = None,
    measure: MetricsLike | None = None,
    predict: Files | None = None,
    shuffle: bool = True,
    plot: str | None = None,
    stop: Names | None = None,
    inputs_at: Names = (),
    tie: Names = ('auto',),
    untie: Names = ('auto',),
    init: InitLike | None = None,
    standardize: Names = (),
    original: Original | None = None,
    metrics: Names = (),
    batch_norm: Literal['frozen', 'train'] | None = None,
    dropout: Literal['off', 'train'] | Ratio | None = None,
    groups: GroupsLike | None = None,
    clip_norm: Limit | None = None,
    clip_value: Limit | None = None,
    accumulate: Batches = 1,
    accumulate_by: Literal['labels', 'batches'] | None = None,
    average: AverageLike | None = None,
    loss_scale: ScalingLike | None = None,
    schedule: ScheduleLike | None = None,
    form: Literal['fast', 'small'] = 'fast',
    autocast: Literal['bfloat16', 'float16'] | None = None,
    ste: bool = False,
    checkpoint: Checkpoints | None = None,
    provider: Provider = 'cpu',
    threads: Threads | None = None,
    engine: EngineName = 'auto',
    data_parallel: bool = False,
    validation: HeldOutLike | None = None,
    augment: AugmentLike | None = None,
    epochs: Several = 1,
    steps: Several | None = None,
    seed: Seed | None = 0,
    patience: Several | None = None,
    folder: str | os.PathLike[str] | None = None,
    every: Several | None = None,
    keep: Annotated[Keep | tuple[Keep, ...], OneOrMore()] | None = None,
    log: str | os.PathLike[str] | None = None,
    names: Names | None = None,
    constants: Mapping[str, Array] | None = None,
    scale: ScaleLike | None = None,
    batch_size: Several | None = None,
    force: bool = False,
    keep_training_mode: bool = False,
) -> Fitted: ...
@overload
def fit(
    model: ModelLike,
    data: DataLike,
    loss: LossLike | None = None,
    optimizer: OptimizerLike | None = None,
    wrt: Names | None = ('params',),
    rate: RateLike | None = None,
    *,
    report: bool = False,
    timeout: Seconds | None = None,
    max_memory: Memory | None = None,
    accuracy: Labels | None = None,
    measure: MetricsLike | None = None,
    predict: Files | None = None,
    shuffle: bool = True,
    plot: str | None = None,
    stop: Names | None = None,
    inputs_at: Names = (),
    tie: Names = ('auto',),
    untie: Names = ('auto',),
    init: InitLike | None = None,
    standardize: Names = (),
    original: Original | None = None,
    metrics: Names = (),
    batch_norm: Literal['frozen', 'train'] | None = None,
    dropout: Literal['off', 'train'] | Ratio | None = None,
    groups: GroupsLike | None = None,
    clip_norm: Limit | None = None,
    clip_value: Limit | None = None,
    accumulate: Batches = 1,
    accumulate_by: Literal['labels', 'batches'] | None = None,
    average: AverageLike | None = None,
    loss_scale: ScalingLike | None = None,
    schedule: ScheduleLike | None = None,
    form: Literal['fast', 'small'] = 'fast',
    autocast: Literal['bfloat16', 'float16'] | None = None,
    ste: bool = False,
    checkpoint: Checkpoints | None = None,
    provider: Provider = 'cpu',
    threads: Threads | None = None,
    engine: EngineName = 'auto',
    data_parallel: bool = False,
    validation: HeldOutLike | None = None,
    augment: AugmentLike | None = None,
    epochs: Several = 1,
    steps: Several | None = None,
    seed: Seed | None = 0,
    patience: Several | None = None,
    folder: str | os.PathLike[str] | None = None,
    every: Several | None = None,
    keep: Annotated[Keep | tuple[Keep, ...], OneOrMore()] | None = None,
    log: str | os.PathLike[str] | None = None,
    names: Names | None = None,
    constants: Mapping[str, Array] | None = None,
    scale: ScaleLike | None = None,
    batch_size: Several | None = None,
    force: bool = False,
    keep_training_mode: bool = False,
) -> Any: ...
class Trainer(TrainingLoop):
    def __init__(
        self,
        step: TrainingStep | str | PathLike[str],
        rate: RateLike | None = None,
        *,
        seed: RunSeed = 0,
        provider: Provider = 'cpu',
        threads: Threads | None = None,
        engine: EngineName = 'auto',
        data_parallel: bool = False,
    ) -> None: ...
    def fit(
        self,
        data: DataLike,
        *,
        callbacks: Sequence[CallbackLike] = (),
        validation: HeldOutLike | None = None,
        augment: AugmentLike | None = None,
        epochs: Several = 1,
        steps: Several | None = None,
        seed: Seed | None = 0,
        patience: Several | None = None,
        folder: str | os.PathLike[str] | None = None,
        every: Several | None = None,
        keep: Annotated[Keep | tuple[Keep, ...], OneOrMore()] | None = None,
        log: str | os.PathLike[str] | None = None,
        names: Names | None = None,
        constants: Mapping[str, Array] | None = None,
        scale: ScaleLike | None = None,
        batch_size: Several | None = None,
        force: bool = False,
        metrics: MetricsLike | None = None,
    ) -> History: ...
    def evaluate(
        self,
        data: DataLike,
        *,
        names: Names | None = None,
        constants: Mapping[str, Array] | None = None,
        scale: ScaleLike | None = None,
        batch_size: Several | None = None,
        metrics: MetricsLike | None = None,
        averaged: bool = False,
    ) -> dict[str, float]: ...
    def predict(
        self,
        data: DataLike,
        *,
        names: Names | None = None,
        constants: Mapping[str, Array] | None = None,
        scale: ScaleLike | None = None,
        batch_size: Several | None = None,
        weights: Literal['best', 'last'] | None = None,
        averaged: bool = False,
    ) -> dict[str, Array]: ...
    def restore(
        self,
        path: str | PathLike[str],
        *,
        force: bool = False,
    ) -> None: ...
    @overload
    def export(
        self,
        model: str | os.PathLike[str] | bytes | IO[bytes],
        path: None = None,
        *,
        weights: Literal['best', 'last'] | None = None,
        averaged: bool = False,
        keep_training_mode: bool = False,
    ) -> ModelProto: ...
    @overload
    def export(
        self,
        model: M,
        path: None = None,
        *,
        weights: Literal['best', 'last'] | None = None,
        averaged: bool = False,
        keep_training_mode: bool = False,
    ) -> M: ...
    @overload
    def export(
        self,
        model: ModelLike,
        path: str | os.PathLike[str],
        *,
        weights: Literal['best', 'last'] | None = None,
        averaged: bool = False,
        keep_training_mode: bool = False,
    ) -> None: ...
    @overload
    def export(
        self,
        model: ModelLike,
        path: str | os.PathLike[str] | None = None,
        *,
        weights: Literal['best', 'last'] | None = None,
        averaged: bool = False,
        keep_training_mode: bool = False,
    ) -> Any: ...
    def deploy(
        self,
        path: str | PathLike[str],
        *,
        weights: Literal['best', 'last'] | None = None,
        averaged: bool = False,
    ) -> None: ...
