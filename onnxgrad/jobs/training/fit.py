"""The driver of `fit`: trains a model on data, and returns the model with its new weights."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.ir.load import ModelLike
from onnxgrad.ir.program import Program
from onnxgrad.ir.storage.numpy_files import ArraysFile
from onnxgrad.jobs.declared import options_of
from onnxgrad.jobs.training.declarations import (
    Batched,
    DeployOptions,
    Engine,
    Epochs,
    EvaluateOptions,
    ExportOptions,
    FitOptions,
    PredictOptions,
    RunOptions,
    TrainerOptions,
)
from onnxgrad.jobs.training.step import make_step
from onnxgrad.jobs.training.step_declarations import StepOptions
from onnxgrad.jobs.training.trainer import TrainingLoop, proof_of
from onnxgrad.limits import MOST_SECONDS, UNLIMITED, LimitReached, current, limited
from onnxgrad.results import Rendered
from onnxgrad.train.array_files import read_npz
from onnxgrad.train.callbacks import Callback, Event, History, check_needs, check_plotting
from onnxgrad.train.data import without_unread
from onnxgrad.train.engines.session import give_back
from onnxgrad.train.evaluation import tables, why_undefined
from onnxgrad.train.export import Deployed, export
from onnxgrad.train.frozen_part import features
from onnxgrad.train.losses import Loss, parse_loss
from onnxgrad.train.losses.weighting import BALANCED, balanced, in_file, is_balanced
from onnxgrad.train.metrics import Accuracy, Confusion, Score, metrics_from
from onnxgrad.train.run_folder import RunFolder
from onnxgrad.train.standardization import with_subgraphs
from onnxgrad.train.step import TrainingStep
from onnxgrad.train.step_folder import deployable
from onnxgrad.wording import option

T = TypeVar("T")
# options of a step that also concern the data or the result of a step in a folder
_OF_FOLDERS = frozenset({"inputs_at", "original"})


@frozen
class Fitted(Rendered):
    """The result of `fit(report=True)`: the trained `model`, in the type you passed in; the
    `history` of the run; the total number of `steps`; the `seconds` of this run; `notes` on the
    step.

    `output` is the file that the command wrote. `leads`: whether this process reports for all
    processes that train together. of_step: the number of notes on the step, which come first.
    averaged: whether the held-out results and the weights are the averages that the step keeps.
    """

    json_keys = (
        "steps losses=history.losses evaluations=history.evaluations kept=history.kept "
        "best=history.best last=history.last averaged confusion? notes seconds"
    )

    model: Any
    history: History
    steps: int
    seconds: float
    output: str | None = None
    notes: tuple[str, ...] = ()
    leads: bool = True
    of_step: int = 0
    confusion: Mapping[str, list[list[int]]] | None = None
    averaged: bool = False

    @property
    def best(self) -> Mapping[str, float] | None:
        """The step with the smallest held-out loss, with that loss and the metrics, if any."""
        return self.history.best

    @property
    def last(self) -> Mapping[str, float] | None:
        """The last step, with its held-out loss and metrics, if any."""
        return self.history.last


class FittingLoop(TrainingLoop):
    """The training loop of `fit`, whose processes must agree outside of training as well. If the
    step keeps averages of the weights, all results are those of the averages.
    """

    def __init__(
        self, step: TrainingStep | str | os.PathLike[str], options: TrainerOptions
    ) -> None:
        super().__init__(step, options)
        self._averaging = self.task.manifest.average is not None

    @property
    def averaging(self) -> bool:
        """Whether the results are those of the averaged weights."""
        return self._averaging

    @property
    def leads(self) -> bool:
        """Whether this process writes and prints for all processes that train together."""
        return self._engine.leads

    @property
    def locked(self) -> AbstractContextManager[Any]:
        """A context that ends with the lock of the run's folder, which training takes."""
        return self._lock

    def metrics(self, options: FitOptions) -> dict[str, Any]:
        """Returns the metrics of the options, with the defaults of the loss."""
        of_output = {
            "accuracy" if output == "logits" else f"accuracy of {output}": Accuracy(output, labels)
            for output, labels in (options.accuracy or {}).items()
        }
        return metrics_from({**of_output, **metrics_from(options.measure)}, self._labels)

    def confusion(
        self, options: FitOptions, matrices: Mapping[str, Confusion], first: Any = None
    ) -> dict[str, list[list[int]]] | None:
        """Returns the tables of held-out labels by the classes that the weights to export predict;
        with `first`, of the first batch of that data, so that a mistake is found on every process
        before the training. None on processes that do not report.
        """
        data, most = (self._validation, None) if first is None else (first, 1)
        if not matrices or not (most or self.leads):
            return None
        how = EvaluateOptions(**{**options.settings(Batched), "data": data})
        self._evaluation = self._evaluation or self._open(self.task.evaluation)
        weights, _ = self.trained(ExportOptions(averaged=self._averaging))
        batches = self._noted(islice(self._batches(how, None, matrices).epoch(0), most))
        found = tables(self._evaluation, self.task, weights, batches, matrices)
        return {name: table.tolist() for name, table in found.items()}

    def agree(self, value: T) -> T:
        """Returns the leading process's value; every process must call it."""
        return self._engine.agree(value)


@frozen
class FitHooks:
    """Functions through which the caller takes part in `fit`. By default, they do nothing.

    `training` is a context around the training; it receives the trainer and returns a function that
    receives each event. `write` writes the trained model, in the process that leads. `limits`
    bounds the work by seconds and memory.
    """

    training: Callable[[FittingLoop], AbstractContextManager[Callback]] = lambda trainer: (
        nullcontext(_ignore)
    )
    write: Callable[[Program], None] | None = None
    limits: Callable[[float | None, int | str | None], AbstractContextManager[Any]] = limited


def _ignore(event: Event) -> None:
    """Ignores an event."""


def fit(
    model: ModelLike,
    options: FitOptions,
    hooks: FitHooks | None = None,
    *,
    original: ModelLike | None = None,
    deploy: bool = False,
) -> Fitted:
    """Trains a model, or the step in a folder, and writes the weights into `original`, which is the
    `model` of the result; with `deploy`, into the model in inference that the step has. Without
    either, the result has no model. Raises InputError, Diverged and LimitReached.
    """
    hooks = hooks or FitHooks()
    if options.plot is not None:
        check_plotting()
    began = time.monotonic()
    with hooks.limits(options.timeout, options.max_memory):
        step = _step_of(model, options)
        data, validation = (_data(model, d, options) for d in (options.data, options.validation))
        how = TrainerOptions.from_settings(options.shared(Engine))
        trainer = FittingLoop(step, how) if options.provider == "cpu" else None
    # CUDA reserves more address space than any limit allows
    trainer = trainer or FittingLoop(step, how)
    del step  # the engine has the values
    metrics = trainer.metrics(options)
    labels = [metric.answers for metric in metrics.values() if isinstance(metric, Score)]
    matrices = {name: m for name, m in metrics.items() if isinstance(m, Confusion)}
    metrics = {name: m for name, m in metrics.items() if name not in matrices}
    check_needs(validation, None, patience=None, metrics=matrices, every=None)
    is_share = isinstance(validation, float)
    data = _read(trainer, data, options.data, labels if is_share else ())
    if not is_share and validation is not None:
        validation = _read(trainer, validation, options.validation, labels)
    _check_prediction(trainer, model, options)
    trainer.confusion(options, matrices, data if is_share else validation)
    started = time.perf_counter()
    with trainer.locked:  # the best weights are read from the folder
        with (
            _naming_what_ended(options.folder, trainer),
            _while_training(options, hooks, time.monotonic() - began),
            hooks.training(trainer) as watching,
        ):
            given = options.shared(Epochs) | {"data": data, "validation": validation}
            if options.inputs_at and options.scale:  # the frozen part has applied the others
                of_step = trainer.task.manifest.batch
                given["scale"] = {k: v for k, v in options.scale.items() if k in of_step}
            given |= {"constants": _with_anchors(trainer, data, options)}
            given |= {} if options.shuffle else {"seed": None}
            run = {"metrics": metrics, "callbacks": [watching, _within_limits]}
            history = trainer.train(RunOptions.from_settings({**given, **run}))
        seconds = time.perf_counter() - started
        trained, leads, task = None, trainer.leads, trainer.task
        steps, notes, averaging = trainer.progress.steps, task.notes, trainer.averaging
        confusion = trainer.confusion(options, matrices)
        if leads:
            _predict(trainer, model, options)
            which = DeployOptions(averaged=averaging)
            trained = deployed(trainer, which, hooks.write) if deploy else None
        if original is not None and (leads or hooks.write is None):
            chosen = ExportOptions(averaged=averaging)
            weights, made = trainer.trained(chosen) if leads else ({}, {})
            if hooks.write is None:
                weights, made = trainer.agree((weights, made))
            into = with_subgraphs(original, task.manifest)
            form = Deployed.of(
                into, options.keep_training_mode, partial(proof_of, trainer, into, weights)
            )
            notes = (*notes, *form.notes)
            del trainer  # frees gradients and states, too
            give_back(task.manifest.elements)
            trained = export(
                into, weights, {**made, **form.how}, repairs=task.manifest.repairs,
                finish=form.finish,
            )  # fmt: skip
            del weights
            if hooks.write is not None:
                hooks.write(trained)
        if options.plot is not None and leads:
            history.plot(options.plot)
    first = len(task.notes)
    notes = (*notes, *why_undefined(metrics, history.last or {}))
    return Fitted(
        trained, history, steps, seconds, notes=notes, leads=leads, of_step=first,
        confusion=confusion, averaged=averaging,
    )  # fmt: skip


def _check_prediction(trainer: FittingLoop, model: ModelLike, options: FitOptions) -> None:
    """Predicts one example of each file of inputs, so that a mistake is found before the training.
    Raises InputError.
    """
    for given in options.predict or {}:
        arrays, known = _data(model, given, options), trainer.task.manifest.batch
        one = {name: a[:1] for name, a in arrays.items() if name in known}
        how = {"data": one, "scale": None if options.inputs_at else options.scale}
        try:
            trainer.predicted(PredictOptions.from_settings({**how, "weights": "last"}))
        except InputError as error:
            raise InputError(f"{given}: {error}") from None


def _predict(trainer: FittingLoop, model: ModelLike, options: FitOptions) -> None:
    """Writes the outputs of the trained model for each file of inputs."""
    for given, path in (options.predict or {}).items():
        frozen = options.inputs_at and not is_folder(model)
        how = {
            "data": _data(model, given, options) if frozen else given,
            "batch_size": options.batch_size,
            "scale": None if frozen else options.scale,
            "averaged": trainer.averaging,
        }
        outputs = trainer.predicted(PredictOptions.from_settings(how))
        with ArraysFile(Path(path)) as file:
            for name, array in outputs.items():
                file.add(name, array)


def deployed(
    trainer: TrainingLoop, options: DeployOptions, write: Callable[[Program], None] | None = None
) -> Program:
    """Returns, and writes, the model in inference that the step has, with its trained weights.
    Raises NotProved if it does not compute what was evaluated.
    """
    weights, how = trainer.trained(options)
    made = deployable(trainer.task, weights, how)
    proof_of(trainer, made, weights)(made)
    if write is not None:
        write(made)
    return made


def _step_of(model: Any, options: FitOptions) -> Any:
    """Returns the folder of a step, or the step of a model. Raises InputError, also for an option
    of a step that the folder holds already.
    """
    if not is_folder(model):
        return make_step(model, _counted(options), in_place=True)
    for each in options_of(StepOptions):
        if each.name not in _OF_FOLDERS and getattr(options, each.name) != each.default:
            raise InputError(
                f"{option(each.flag or each.name, each.name)}: the folder is a step that has been "
                "made: leave the option out, or write the step again with it (train-step)"
            )
    return model


def is_folder(model: Any) -> bool:
    """Whether this is the folder of a training step."""
    return isinstance(model, (str, os.PathLike)) and os.path.isdir(model)


def _counted(options: FitOptions) -> FitOptions:
    """Returns the options with weights counted in the labels of the data, if the loss has
    weight=balanced or pos_weight=balanced. Raises InputError.
    """
    loss, data = options.loss, options.data
    if isinstance(loss, str) and BALANCED in loss:
        loss = parse_loss(loss)
    if not isinstance(loss, Loss) or not is_balanced(loss):
        return options
    arrays = read_npz(Path(data)) if isinstance(data, (str, os.PathLike)) else data
    if not isinstance(arrays, Mapping):
        raise InputError(f"balanced weights need arrays by name, not {type(arrays).__name__}")
    where = os.fspath(data) if isinstance(data, (str, os.PathLike)) else "the data"
    return options.having(loss=balanced(loss, in_file(arrays, where)))


def _data(model: ModelLike, data: Any, options: FitOptions) -> Any:
    """Returns the arrays of a file, or with `inputs_at` the results of the model's frozen part on
    them, unless the data has these results already.
    """
    given = read_npz(Path(data)) if isinstance(data, (str, os.PathLike)) else data
    at = options.inputs_at
    if given is None or isinstance(given, float) or is_folder(model) or not at:
        return given
    if not isinstance(given, Mapping):
        what = f"{option('--inputs-at', 'inputs_at')} needs data that is arrays by name"
        raise InputError(f"{what}, not {type(given).__name__}")
    if all(name in given for name in at):
        return given
    return features(
        model,
        at,
        given,
        batch_size=options.batch_size,
        provider=options.provider,
        threads=options.threads,
        scale=options.scale,
    )


def _read(trainer: FittingLoop, arrays: Any, given: Any, labels: Collection[str] = ()) -> Any:
    """Returns the arrays of a file that the step or a metric reads."""
    if not isinstance(given, (str, os.PathLike)):
        return arrays
    batch, path = trainer.task.manifest.of_role("batch"), os.fspath(given)
    names = [fed.name for fed in batch if fed.of is None or fed.name in arrays]
    return without_unread(arrays, names, path, beside=labels, leads=trainer.leads)


def _with_anchors(trainer: TrainingLoop, data: Any, options: FitOptions) -> dict[str, Any]:
    """Returns the constants, and the anchors of a proximal penalty unless the data has them."""
    given, own = options.constants or {}, data if isinstance(data, Mapping) else {}
    return {**{k: a for k, a in trainer.anchors.items() if k not in own}, **given}


def _within_limits(event: Event) -> None:
    """Raises LimitReached if the time limit is reached."""
    current().left()


def _while_training(
    options: FitOptions, hooks: FitHooks, spent: float
) -> AbstractContextManager[Any]:
    """Returns the given limits, less the seconds `spent`; by default training has none."""
    if options.timeout is None and options.max_memory is None:
        return nullcontext()
    left = MOST_SECONDS if options.timeout is None else max(options.timeout - spent, 1e-3)
    return hooks.limits(left, UNLIMITED if options.max_memory is None else options.max_memory)


@contextmanager
def _naming_what_ended(
    folder: str | os.PathLike[str] | None, trainer: FittingLoop
) -> Iterator[None]:
    """Adds the step, and what was saved, to the message of a limit that ends training."""
    try:
        yield
    except LimitReached as error:
        kept = f"nothing was saved: {option('--folder', 'folder=')} saves checkpoints"
        if folder is not None and RunFolder(Path(folder)).last.exists():
            again = option("command", "call")
            kept = f"the same {again} continues from the checkpoint in {os.fspath(folder)}"
        reason = str(error).removeprefix("not proved: ")
        raise LimitReached(
            f"training ended after step {trainer.progress.steps}: {reason}; {kept}"
        ) from error
