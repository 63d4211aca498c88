"""The driver of training: runs a step in onnxruntime, from the first batch to the last.

A checkpoint is one file that is replaced atomically: values, the number of the next step, and the
position in the epoch. An epoch has the same data each time, so a run that was killed and resumed
ends with the same bytes.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from onnxgrad.errors import InputError, RunWarning
from onnxgrad.ir.binding import draws
from onnxgrad.ir.load import ModelLike, to_kind_of
from onnxgrad.ir.program import Program
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.types import Array
from onnxgrad.jobs.training.declarations import (
    Batched,
    EvaluateOptions,
    ExportOptions,
    Measured,
    PredictOptions,
    RunOptions,
    TrainerOptions,
)
from onnxgrad.jobs.training.values import HeldValues
from onnxgrad.options import known_keywords
from onnxgrad.train.array_files import read_npz
from onnxgrad.train.augmentation import augmented
from onnxgrad.train.callbacks import Callback, Event, History, check_needs, log_to
from onnxgrad.train.checkpoint import Progress
from onnxgrad.train.data import (
    Data,
    Given,
    as_data,
    beside,
    facts_of_held_out,
    scaled,
    without_unread,
)
from onnxgrad.train.divergence import (
    diverged,
    divisor_of,
    norm_of,
    what_ends,
)
from onnxgrad.train.engines.base import ending_together
from onnxgrad.train.engines.choice import open_engine
from onnxgrad.train.engines.session import checked, give_back, open_session
from onnxgrad.train.evaluation import Shown, evaluated, predicted
from onnxgrad.train.export import Deployed, export
from onnxgrad.train.labels import Labels
from onnxgrad.train.manifest import one_size
from onnxgrad.train.metrics import metrics_from
from onnxgrad.train.run_folder import RunFolder
from onnxgrad.train.schedules import ReduceOnPlateau, finite_rate, rate_from, rate_of
from onnxgrad.train.standardization import with_subgraphs
from onnxgrad.train.step import TrainingStep, prediction
from onnxgrad.train.step_folder import opened_step
from onnxgrad.verify.feeds.generate import feeds_for
from onnxgrad.wording import counted, option

_NO_BEST = "no held-out loss is a number, so that no weights are the best: the last ones are kept"


class TrainingLoop(HeldValues):
    """A training step with its engine, weights and progress; `Trainer` has its options as keywords.

    Raises InputError for a rate that is not finite, and an engine that cannot run this step.
    """

    def __init__(self, step: TrainingStep | str | PathLike[str], options: TrainerOptions) -> None:
        provider, threads = options.provider, options.threads
        with nullcontext(step) if isinstance(step, TrainingStep) else opened_step(step) as task:
            rate = rate_of(task.manifest, rate_from(options.rate))
            engine = open_engine(task, options.engine, provider, threads, options.data_parallel)
            super().__init__(task, engine, rate, options.seed)
        self._labels = Labels(self.task, quiet=not engine.leads)
        self._loss = math.nan  # of the last step: the mean over its micro-batches
        self._norm: float | None = None  # of its gradients, if the step returns it
        self._without = 0  # its micro-batches without a label that counts
        self._evaluation: Any = None
        self._prediction: tuple[list[str], Any] | None = None
        self._rows: Mapping[str, Array] | None = None  # of the last held-out data
        self._open: Callable[[Program], Any] = partial(
            open_session, provider=provider, threads=threads
        )

    def __repr__(self) -> str:
        """Returns the step, and how far its training is."""
        loss = "" if math.isnan(self._loss) else f", loss {self._loss:.4g}"
        return f"Trainer({self.task!r}; step {self.progress.steps}{loss})"

    # ---- steps -----------------------------------------------------------------------------------

    @known_keywords
    def step(self, batch: Mapping[str, Array]) -> float:
        """Runs one step, or one micro-batch of it. Returns the loss before the update.

        Raises InputError for a batch that does not fit. Raises Diverged, which names the first
        value that is not finite, if the loss is not finite. The same holds for the norm of the
        gradients, if the step returns it and has no loss scaling, which skips such an update.
        `parameters` are then those before the step, and a step of several micro-batches starts
        again. If states were overwritten (the graph engine keeps one buffer of each), training
        continues only after `restore`. The batch is not one of an epoch of `fit`, which continues
        where it was.
        """
        batches = self.progress.batches
        loss = self._step(batch)
        self.progress = replace(self.progress, batches=batches)
        return loss

    def _step(self, batch: Mapping[str, Array]) -> float:
        self._check_whole()
        number, count = self.progress.steps + 1, self.task.manifest.accumulate
        micro = self.progress.micro + 1
        self._engine.part = self.progress.micro
        batch = self._labels.fitted(batch)
        found = self._engine.run(batch, number, self._rate_at(number))
        if (what := what_ends(self.task.manifest, found.loss, found.metrics)) is not None:
            self._engine.back()
            self.progress = self.progress.from_zero()
            raise diverged(self.task, number, what, batch, self._of_model(self._engine.held))
        divisor = divisor_of(self.task.manifest, found.metrics)
        by_labels = self.task.manifest.accumulate_by == "labels"
        after = self.progress.after(found.loss, divisor, by_labels=by_labels)
        if micro == count:
            self._loss, self._norm = after.mean, norm_of(self.task.manifest, found.metrics)
            self._without = after.micro_empty
            after = replace(after.from_zero(), steps=number)
        self.progress = after
        return found.loss

    @known_keywords
    def rate_at(self, number: int) -> float:
        """Returns the learning rate of that step."""
        return self._rate_at(number)

    def _rate_at(self, number: int) -> float:
        if isinstance(self.rate, ReduceOnPlateau) and self.progress.plateau is not None:
            return finite_rate(self.progress.plateau["rate"])
        inside = not self.task.manifest.of_role("learning_rate")
        if inside and callable(self.rate):
            return self.rate(number)
        return finite_rate(self.rate(number) if callable(self.rate) else self.rate)

    # ---- epochs ----------------------------------------------------------------------------------

    @ending_together
    def train(self, options: RunOptions) -> History:
        """Trains until `options.epochs` epochs or `options.steps` steps are done. Raises InputError
        and Diverged as `step` does. The folder stays locked until its caller closes `_lock`.
        """
        folder, every = options.folder, options.every
        metrics = metrics_from(options.metrics, self._labels)
        patience, steps = options.patience, options.steps
        keep: Any = options.keep or ()
        check_needs(
            options.validation, folder, patience=patience, metrics=metrics, every=every, keep=keep,
            plateau=isinstance(self.rate, ReduceOnPlateau),
        )  # fmt: skip
        if isinstance(self.rate, ReduceOnPlateau):
            self.rate.check(["loss", *metrics])
        few = max((n for n in keep if isinstance(n, int)), default=0)
        place = None if folder is None else self._locked(RunFolder(Path(folder), few))
        options = self._with_held_out(options, place)
        validation: Any = options.validation
        source = self._batches(options, options.seed)
        self._facts |= facts_of_held_out(validation)
        self._labels.look_for_classes(options.data)
        end = counted(options.epochs, "epoch") if steps is None else counted(steps, "step")
        self._facts["length"] = end
        self._log = None
        if self._engine.leads and options.log is not None:
            results = ["loss", *metrics] if validation is not None else []
            self._log = log_to(options.log, results, folder)
        self._take_up(place, options)
        self._measure(source)
        source = augmented(source, options.augment, options.seed)
        give_back(self.task.manifest.elements)  # the initial values, unless the caller holds them
        history, wanted = History(), patience is not None or "best" in keep
        watching: list[Callback] = [history]
        if self._engine.leads:
            watching += [*([self._log] if self._log is not None else []), *options.callbacks]
        epochs = options.epochs if steps is None else 1 << 62
        stop = self._spent(place, patience)
        while not stop and self.progress.epoch < epochs and not self._done(steps):
            stop = self._epoch(source, steps, watching, place, every)
            if stop or self._done(steps):
                break
            self.progress = replace(self.progress, epoch=self.progress.epoch + 1, batches=0)
            if validation is not None:
                found = self._held_out(validation, options)
                self._judge(found, place, wanted)
                event = Event(
                    self.progress.steps, self.progress.epoch - 1, found["loss"], 0.0, found
                )
                stop = self._tell(event, watching) or self.progress.stale >= (patience or 1 << 62)
            self._save(place)
        self._save(place)
        if place is None and not history.losses:
            self.progress.check_trained(self.task.manifest.accumulate)
        if validation is not None:
            last = history.evaluated_at(self.progress.steps)
            self._compare(history, last or self._held_out(validation, options), wanted)
        return history

    def _compare(self, history: History, last: Mapping[str, float], wanted: bool) -> None:
        """Records the best and the last evaluation, and which weights are kept. Warns if the best
        are wanted and there are none.
        """
        best = self.progress.best_found
        of_best = best and {"step": self.progress.best_step, **best}
        history.compare(of_best, {"step": self.progress.steps, **last}, wanted=wanted)
        self._kept = history.kept
        if best is None and wanted and math.isnan(last["loss"]) and self._engine.leads:
            warnings.warn(_NO_BEST, RunWarning, stacklevel=6)

    def _spent(self, place: RunFolder | None, patience: int | None) -> bool:
        """Whether `patience` has ended the run in this folder before. A run without a folder may
        continue.
        """
        if patience is None or self.progress.stale < patience:
            return False
        if place is None:
            self.progress = replace(self.progress, stale=0)
        elif self._engine.leads:
            since, more = counted(self.progress.stale, "epoch"), option("--patience", "patience")
            words = f"training has ended: the held-out loss was not smaller for {since}"
            warnings.warn(
                f"{place.last}: {words}; continue with a larger {more}", RunWarning, stacklevel=6
            )
        return place is not None

    def _judge(self, found: Mapping[str, float], place: RunFolder | None, wanted: bool) -> None:
        """Keeps the weights if this evaluation is the best so far, and updates the rate of a
        ReduceOnPlateau.
        """
        self.progress = self.progress.judged(found)
        if isinstance(self.rate, ReduceOnPlateau):
            plateau = self.rate.judged(self.progress.plateau, found)
            self.progress = replace(self.progress, plateau=plateau)
        if self.progress.stale or not self._engine.leads:
            return
        if place is not None:
            place.save_best(self._write)
        elif wanted:
            kept = (*self.task.manifest.of_model(), *self.task.manifest.of_role("average"))
            held = self._engine.held
            self._best = {fed.name: np.array(held[fed.name]) for fed in kept}

    def _take_up(self, place: RunFolder | None, options: RunOptions) -> None:
        """Resumes from the checkpoint in the folder, if there is one. Warns about a run without a
        folder that has nothing left to train.
        """
        self._place = place
        if place is None:
            if self._best is None:
                self.progress = self.progress.without_best()
            if why := self.progress.nothing_left(options.epochs, options.steps):
                warnings.warn(why, stacklevel=6)
        elif self._engine.agree(place.last.exists()):
            self._resume(place, options.force)
        elif self._log is not None:  # marks where the log lines of this run begin
            self._save(place)

    def _resume(self, place: RunFolder, force: bool) -> None:
        """Resumes from the checkpoint in the folder, unless it precedes the first batch."""
        with self._stored(place.last) as (values, words):
            stands = Progress.of(words, str(place.last))
            if stands.begun:
                self._go_on(values, words, str(place.last), force)
        if stands.begun and self._engine.leads:
            place.link(stands.steps)
        if force or not self._engine.agree(place.best.exists()):
            self.progress = self.progress.without_best()
        if self._log is not None:
            self._log.cut(stands.logged, stands.steps)

    def _batches(self, options: Batched, seed: int | None, metrics: object = None) -> Data:
        """Returns batches of `batch_size`; default: the only size that the step accepts, or 32."""
        fixed, inputs = self.task.manifest.fixed_batch, self.task.manifest.of_role("batch")
        size = options.batch_size or fixed or 32
        constants = options.constants or {}
        read = None if metrics else [f.name for f in inputs if f.name not in constants]
        names, whole = options.names, fixed is not None
        data = as_data(options.data, size, seed, whole=whole, read=read, names=names)
        return beside(scaled(data, options.scale, inputs), constants)

    def _tell(self, event: Event, watching: Iterable[Callback]) -> bool:
        """Calls every callback. Returns whether one of them ends training."""
        return self._engine.agree(True in [callback(event) for callback in watching])

    def _held_out(self, data: Given | Data, options: RunOptions) -> dict[str, float]:
        """Evaluates on the leading process, and returns its result on every process."""
        given = {**options.settings(Batched), **options.settings(Measured), "data": data}
        how = EvaluateOptions(**given, averaged=self._averaging)
        return self._engine.agree(self.evaluation(how) if self._engine.leads else {})

    def _done(self, steps: int | None) -> bool:
        return steps is not None and self.progress.steps >= steps

    def _epoch(
        self,
        source: Data,
        steps: int | None,
        watching: Iterable[Callback],
        place: RunFolder | None,
        every: int | None,
    ) -> bool:
        """Trains the rest of the current epoch. Returns whether a callback ends training."""
        taken = False
        for i, batch in enumerate(source.epoch(self.progress.epoch)):
            if not taken:
                self._know(source.facts(self.progress.epoch, batch))
                done, taken = self.progress.batches, True
            if i < done:
                continue
            self._step(batch)
            if self.progress.micro:
                continue
            number = self.progress.steps
            rate, norm = self._rate_at(number), self._norm
            event = Event(number, self.progress.epoch, self._loss, rate, None, norm, self._without)
            stop = self._tell(event, watching)
            if every and number % every == 0:
                self._save(place)
            if stop or self._done(steps):
                return stop
        if not taken:
            raise InputError("the data has no batches")
        return False

    def exported(self, model: ModelLike, options: ExportOptions) -> Any:
        """Returns the model with the trained weights, in the type you passed in, or writes it."""
        weights, how = self.trained(options)
        into: Any = with_subgraphs(model, self.task.manifest)
        deployed = Deployed.of(
            into, options.keep_training_mode, partial(proof_of, self, into, weights)
        )
        repairs, how = self.task.manifest.repairs, {**how, **deployed.how}
        more: Any = {"repairs": repairs, "path": options.path, "finish": deployed.finish}
        made = export(into, weights, how, **more)
        return None if made is None else to_kind_of(made, model)

    def evaluation(self, options: EvaluateOptions) -> dict[str, float]:
        """Returns the loss over all batches, and each metric."""
        self._evaluation = self._evaluation or self._open(self.task.evaluation)
        held = self._engine.held
        weights = self._averaged(held) if options.averaged else self._of_model(held)
        metrics = metrics_from(options.metrics, self._labels)
        batches = self._noted(self._batches(options, None, metrics).epoch(0))
        return evaluated(self._evaluation, self.task, weights, batches, metrics)

    def _noted(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yields the batches, and keeps the first for the proof of an export."""
        for i, batch in enumerate(batches):
            if not i:
                self._rows = batch
            yield self._labels.fitted(batch)

    def _predicting(self) -> tuple[list[str], Any]:
        """Returns the inputs of the model in inference with its weights, and its session."""
        if self._prediction is None:
            program = prediction(self.task)
            self._prediction = [v.name for v in program.main.inputs], self._open(program)
        return self._prediction

    def predicted(self, options: PredictOptions) -> dict[str, Array]:
        """Returns the outputs of the model. Raises InputError as `Trainer.predict` does."""
        if self.task.manifest.predict is None:
            raise InputError("the only output of the model is the loss: nothing can be predicted")
        taken, session = self._predicting()
        inputs, data = self.task.manifest.of_role("batch"), options.data
        if isinstance(data, (str, PathLike)):
            own = [fed.name for fed in inputs if fed.name in taken]
            labels = [fed.name for fed in inputs if fed.name not in taken]
            data = without_unread(read_npz(Path(data)), own, str(data), beside=labels)
        size = options.batch_size or one_size(f for f in inputs if f.name in taken) or 32
        source = scaled(as_data(data, size, None, names=options.names), options.scale, inputs)
        batches = beside(source, options.constants or {}).epoch(0)
        return predicted(session, self.task, taken, self.trained(options)[0], batches)


def proof_of(
    trainer: TrainingLoop, model: Program, weights: Mapping[str, Array]
) -> Callable[[Program], None]:
    """Returns a function that raises NotProved for a model to write that does not compute what
    `Trainer.predict` does for held-out rows, or for generated ones without a held-out evaluation.
    It compares nothing if the model returns only its loss, or draws random numbers.
    """
    nothing, open_model = (lambda made: None), trainer._open
    blocks = trainer.task.evaluation.blocks()
    if trainer.task.manifest.predict is None or any(draws(b) for v in blocks for b in v.bindings):
        return nothing
    taken, session = trainer._predicting()
    read = [fed for fed in trainer.task.manifest.of_role("batch") if fed.name in taken]
    rows = feeds_for(to_proto(model), seed=0) if trainer._rows is None else trainer._rows
    if any(fed.name not in rows for fed in read):
        return nothing
    feeds = checked({fed.name: rows[fed.name] for fed in read}, read)
    shown = Shown.of(session, feeds, {n: a for n, a in weights.items() if n in taken})
    return lambda made: shown.check(open_model(made))
