"""The driver of `training_step`, `train-step` and `fit`: builds a training step from its options,
and checks its gradient.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from onnxgrad.grad import check_gradient
from onnxgrad.grad.checking.report import GradientReport
from onnxgrad.grad.weights.repairs import Ties
from onnxgrad.interpreter import return_memory
from onnxgrad.ir.load import ModelLike, bring_inside
from onnxgrad.ir.model_kinds import settled
from onnxgrad.ir.program import Program
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.storage.shared_weights import sharing
from onnxgrad.ir.storage.weights_in_file import LARGE, LARGE_FILE
from onnxgrad.jobs.gradients import spread
from onnxgrad.jobs.training.step_declarations import StepOptions, TrainStepOptions
from onnxgrad.named_options import read
from onnxgrad.train.array_files import OnDisk, on_disk
from onnxgrad.train.initialization import INITIALIZATIONS
from onnxgrad.train.modes import Modes
from onnxgrad.train.optimizers import OPTIMIZERS, AdamW
from onnxgrad.train.schedules import SCHEDULES
from onnxgrad.train.step import TrainingStep, build_step, forward
from onnxgrad.train.update.mixed_precision import LossScaling
from onnxgrad.train.update.moving_average import average_of
from onnxgrad.train.update.options import NORM, UpdateOptions, grouped
from onnxgrad.verify.feeds.input_files import load_inputs

T = TypeVar("T")


def make_step(model: ModelLike, options: StepOptions, *, in_place: bool = False) -> TrainingStep:
    """Returns the training step of a model. in_place: large frozen weights of a model file stay in
    the file. Large initial values move to a temporary file. Raises InputError.
    """
    average, scale = average_of(options.average), options.loss_scale
    if isinstance(scale, (str, float)):
        scale = LossScaling() if isinstance(scale, str) else LossScaling(scale, dynamic=False)
    optimizer = _object(options.optimizer, OPTIMIZERS, "optimiser") or AdamW()
    update = UpdateOptions(
        optimizer, grouped(options.groups or {}, optimizer), options.clip_value, options.clip_norm,
        NORM in options.metrics or options.clip_norm is not None, options.accumulate,
        options.accumulate_by, average, scale, _object(options.schedule, SCHEDULES, "schedule"),
    )  # fmt: skip
    modes = Modes(options.batch_norm, options.dropout, options.autocast, options.form, options.ste)
    step = build_step(
        model, options.loss, update, options.wrt, metrics=options.metrics, stop=options.stop,
        checkpoint=options.checkpoint, modes=modes, inputs_at=options.inputs_at,
        ties=Ties(options.tie, options.untie), standardized=options.standardize,
        floats=None if options.original is None else settled(options.original),
        init=_object(options.init, INITIALIZATIONS, "initialisation"),
    )  # fmt: skip
    given = settled(model)
    if isinstance(given, (str, os.PathLike)) and not in_place:
        bring_inside(Path(given), step.train, step.evaluation)
    # the caller may hold the step while it trains
    return replace(step, initial=on_disk(step.initial))


def _object(given: T | str | None, classes: Mapping[str, type[T]], what: str) -> T | None:
    """Returns the object of a text `NAME{option=value}`. Raises InputError."""
    return read(given, classes, what) if isinstance(given, str) else given


def check_step(step: TrainingStep, options: TrainStepOptions) -> GradientReport:
    """Compares the gradient of a step's loss with respect to a few of its weights with finite
    differences, at their initial values.
    """
    manifest = step.manifest
    # with BatchNormalization and Dropout in their training modes
    in_modes = bool(manifest.running() or manifest.of_role("seed"))
    program = forward(step) if in_modes else step.evaluation
    read_by = {v.name for v in program.main.inputs}
    names = [fed.name for fed in manifest.of_role("parameter") if fed.name in read_by]
    values: dict[str, Any] = {name: step.initial[name] for name in step.initial if name in read_by}
    values |= {fed.name: np.array(1) for fed in manifest.of_role("seed")}
    given: Any = options.inputs  # files
    if given is not None:
        values |= dict(load_inputs(given, to_proto(program)))
    with _in_files(program, values) as program:
        if isinstance(step.initial, OnDisk):
            step.initial.release()
            return_memory()
        return check_gradient(
            program,
            spread(names),
            manifest.loss,
            seed=options.seed,
            inputs=values,
            stop=[v.name for v in program.main.vars() if v.name in step.stops],
            provider=options.provider,
            dims=options.dims,
            form=options.form,
            asked=False,  # a sample of the weights
        )


@contextlib.contextmanager
def _in_files(program: Program, values: dict[str, Any]) -> Iterator[Program]:
    """Yields a program in which large weights among the values of its inputs are constants in a
    file, as those of a model are, and removes them from `values`; the program itself if they are
    few, or the disk has no room for them.
    """
    large = [n for n, v in values.items() if isinstance(v, np.ndarray) and v.nbytes >= LARGE]
    if sum(values[name].nbytes for name in large) < LARGE_FILE:
        yield program
        return
    with sharing() as files:
        bound = files.load(files.proto(program, inside=True))
        try:
            constants = files.hold({name: values[name] for name in large})
        except OSError:
            constants = {}
        for v in [v for v in bound.main.inputs if v.name in constants]:
            bound.main.fix(v, constants[v.name])
            del values[v.name]
        bound.folder = files.folder
        yield bound
