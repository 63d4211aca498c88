"""Training as Python functions and a class. Keywords are declared as in `functions.py`;
scripts/make_stubs.py writes `training.pyi`.
"""

from __future__ import annotations

from dataclasses import replace
from os import PathLike
from pathlib import Path

from onnxgrad.errors import InputError
from onnxgrad.ir.load import ModelLike, SameType, check_room, load_in_place, to_kind_of
from onnxgrad.ir.model_kinds import settled
from onnxgrad.ir.save import save
from onnxgrad.ir.types import Array
from onnxgrad.jobs.hooks import writing
from onnxgrad.jobs.keywords import from_keywords
from onnxgrad.jobs.training import fit as driver
from onnxgrad.jobs.training.declarations import (
    DeployOptions,
    EvaluateOptions,
    ExportOptions,
    FitOptions,
    PredictOptions,
    RestoreOptions,
    RunOptions,
    TrainerOptions,
)
from onnxgrad.jobs.training.fit import Fitted
from onnxgrad.jobs.training.step import make_step
from onnxgrad.jobs.training.step_declarations import StepOptions
from onnxgrad.jobs.training.trainer import TrainingLoop
from onnxgrad.train.callbacks import History
from onnxgrad.train.step import TrainingStep


@from_keywords(StepOptions)
def training_step(model: ModelLike, *, options: StepOptions) -> TrainingStep:
    """Returns one step of training as a graph, for any model whose gradient can be formed.

    `loss` is a Loss, its text as `parse_loss` reads it, the name of a scalar value, a function of
    the model's values by name, or None for the only output. `optimizer` is AdamW by default;
    weights narrower than float32 follow master weights, which are states. `wrt` names the weights
    to train as `gradient` does. `metrics` are outputs of the model that the step returns beside
    the loss, and "gradient_norm", the norm of all gradients before `clip_norm`.

    `groups` are optimisers, or the hyperparameters that differ, by globs of weights; the first glob
    that matches decides, and `lr` scales with that of `optimizer`. Gradients are clipped by value,
    then by norm. `loss_scale` ("dynamic", or a number) multiplies the loss of a float16 model; a
    step whose gradient overflows updates nothing. `schedule` is the learning rate inside the graph,
    in place of an input. `batch_norm` and `dropout` are as in the file by default. `inputs_at` are
    values that become inputs; `features` computes them.

    Raises InputError for a loss that does not fit, for a weight that the file does not store as
    floating-point numbers, and for an option of the wrong type.

    >>> onnxgrad.training_step("models/training/mlp.onnx", "loss", "sgd{lr=0.1}")
    TrainingStep(sgd on 6 weights; a batch holds x, target)
    """
    return make_step(model, options)


@from_keywords(FitOptions)
def fit(
    model: ModelLike,
    *,
    options: FitOptions,
    report: bool = False,
) -> SameType | Fitted:
    """Trains a model on data and returns it with its new weights, in the type you passed in; paths,
    bytes and streams return a ModelProto.

    `model` may be the folder of a training step: `original` is then the model from which the step
    was made. It receives the weights, and other options of the step are ignored. `data` and
    `validation`: as for `Trainer.fit`. `accuracy`: pairs of an output of scores and the name of its
    labels. With `report=True`, returns a `Fitted`: that model, the `history` of the run, and its
    `best` and `last` held-out results.

    Raises InputError for a loss, data or options that do not fit, Diverged for a loss that is not
    finite, and LimitReached.

    >>> data = {"x": np.ones((16, 16), np.float32), "target": np.zeros((16, 8), np.float32)}
    >>> model = "models/training/mlp.onnx"
    >>> done = onnxgrad.fit(model, data, "loss", rate=0.01, epochs=2, report=True)
    >>> done.steps, done.history.losses[-1] < done.history.losses[0]
    (8, True)
    """
    given, kind = settled(model), model
    if driver.is_folder(given):
        if options.original is None:
            raise InputError("fit: original= is missing, the model of the step in the folder")
        kind = options.original
    into = settled(kind)
    check_room(load_in_place(into), kind)
    with writing(options, model):
        done = driver.fit(given, options, original=into)
    done = replace(done, model=to_kind_of(done.model, kind))
    return done if report else done.model


class Trainer(TrainingLoop):
    """Trains with a step from `training_step`, or from a folder.

    `rate`: the learning rate as a number or text, or a function of the step's number, such as a
    schedule. Defaults to the optimiser's rate, or to the schedule in the step. `engine`: "blocks"
    updates on the CPU, for elementwise optimisers of this package; "auto" chooses it if possible.
    Both engines compute the same numbers. `data_parallel`: train in all processes that mpiexec
    started; the first one logs, evaluates and saves. Raises InputError for a rate that is not
    finite, and for an engine that cannot run this step.
    """

    @from_keywords(TrainerOptions)
    def __init__(
        self, step: TrainingStep | str | PathLike[str], *, options: TrainerOptions
    ) -> None:
        """Opens the engine with the initial values of the step."""
        super().__init__(step, options)

    @from_keywords(RunOptions)
    def fit(self, *, options: RunOptions) -> History:
        """Trains for a number of epochs or steps and returns the history. Both count from the first
        step of this trainer, or of the checkpoint that it restored: a second call with the same
        number trains nothing, and warns.

        `data` has an array (examples, ...) for each input of the step, by name or in an .npz. The
        examples are shuffled by `seed` (None: kept in order) and cut into batches. `data` may also
        be a list of batches, or a function that makes them. If the step accumulates, each batch is
        a micro-batch, and the loss of a step is the mean over its micro-batches. Examples that
        fill no step at the end of an epoch count for the next step. `validation` is evaluated
        after each epoch with `metrics`; a number such as 0.2 is the share of `data` that is held
        out, stratified by integer labels and chosen by `seed` at the beginning of the run.

        `folder` receives the checkpoints, and a run resumes from its checkpoint there. With
        `patience` or `keep="best"`, `export` writes the weights of the smallest held-out loss.

        Raises InputError for data that the step does not accept, for a checkpoint of a different
        model, loss, kind of optimiser or set of parameters, and for a different batch size, seed or
        data in the middle of an epoch; `force` continues from that epoch's beginning. A RunWarning
        lists other differences, which the run accepts. Raises Diverged for a loss that is not
        finite; the checkpoint is then the last good one.
        """
        with writing(options), self._lock:
            return self.train(options)

    @from_keywords(EvaluateOptions)
    def evaluate(self, *, options: EvaluateOptions) -> dict[str, float]:
        """Returns the mean loss over all examples and each metric, with the current weights or
        their moving averages (`averaged`). Raises InputError for data that the step does not
        accept.
        """
        return self.evaluation(options)

    @from_keywords(PredictOptions)
    def predict(self, *, options: PredictOptions) -> dict[str, Array]:
        """Returns the model's outputs for all examples, by name, with the weights that `fit` chose
        (`weights`), or their moving averages (`averaged`). `data` needs only the inputs of the
        model; labels are ignored. Raises InputError for data that the model does not accept, for a
        model whose only output is its loss, and for an output without a row for each example.

        >>> model = onnxgrad.extract("models/training/mlp.onnx", outputs=["linear_2"])
        >>> trainer = onnxgrad.Trainer(onnxgrad.training_step(model, "mse"))
        >>> outputs = trainer.predict({"x": np.ones((40, 16), np.float32)})
        >>> {name: array.shape for name, array in outputs.items()}
        {'linear_2': (40, 8)}
        """
        return self.predicted(options)

    @from_keywords(RestoreOptions)
    def restore(self, path: str | PathLike[str], *, options: RestoreOptions) -> None:
        """Continues from a checkpoint that `save` wrote. Raises InputError for a damaged file, and
        for a checkpoint of a different model, loss, kind of optimiser or set of parameters. With
        `force`, values that fit are restored and the others stay as they are.
        """
        self.restored(Path(path), options)

    @from_keywords(ExportOptions)
    def export(self, model: ModelLike, *, options: ExportOptions) -> SameType | None:
        """Returns the model that the step was made from with its trained weights, or with their
        moving averages, in the type you passed in. With `path`, writes the model there and returns
        None. Nodes that the file puts into training mode are switched to inference, and the result
        is compared with the outputs of `predict` for held-out rows, or for generated ones, unless
        `keep_training_mode` is set. Raises InputError for a different model, and for a path that
        cannot be written, NotProved if the outputs differ.
        """
        return self.exported(model, options)

    @from_keywords(DeployOptions)
    def deploy(self, path: str | PathLike[str], *, options: DeployOptions) -> None:
        """Writes the model in inference with its trained weights, or with their moving
        averages, as initializers. The step suffices, and clients of the step format write the same
        bytes. The model is compared with the outputs of `predict` for held-out rows, or for
        generated ones. Raises InputError if the model returns only its loss, and for a path that
        cannot be written, NotProved if the outputs differ.
        """
        save(driver.deployed(self, options), path)
