"""The values of a trainer: weights, states and progress, and how they are saved, restored and
exported.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np

from onnxgrad.errors import InputError, RunWarning
from onnxgrad.extensions import plugged
from onnxgrad.ir.storage import safetensors_file
from onnxgrad.ir.types import Array
from onnxgrad.jobs.training.declarations import Chosen, RestoreOptions, RunOptions
from onnxgrad.options import known_keywords
from onnxgrad.results import InNotebooks
from onnxgrad.train.array_files import OnDisk
from onnxgrad.train.callbacks import JsonLines
from onnxgrad.train.checkpoint import (
    Progress,
    check_same_run,
    continuation,
    differences,
    facts_in,
    facts_of_step,
    fitting,
    of_an_epoch,
)
from onnxgrad.train.data import HELD_OUT, Data
from onnxgrad.train.engines.base import Engine
from onnxgrad.train.engines.session import dtype_of
from onnxgrad.train.held_out import SEED, SHARE, split
from onnxgrad.train.run_folder import RunFolder
from onnxgrad.train.schedules import Rate
from onnxgrad.train.standardization import inputs_of, measured
from onnxgrad.train.step import TrainingStep, prediction
from onnxgrad.train.step_folder import check_values
from onnxgrad.train.update.mixed_precision import MASTER
from onnxgrad.wording import perhaps, shape_text


class HeldValues(InNotebooks):
    """An engine's values and the progress of training; `TrainingLoop` takes the steps."""

    def __init__(self, task: TrainingStep, engine: Engine, rate: Rate, seed: int) -> None:
        # the engine already holds the initial values
        if isinstance(task.initial, OnDisk):
            task.initial.release()
        self.task = engine.task = replace(task, initial={})
        self._engine = engine
        self._engine.seed = seed
        self.rate = rate
        self.progress = Progress(seed=seed)
        self._facts: dict[str, Any] = {}  # of the run, without those of its step
        self._before: tuple[dict[str, Any], str, bool] | None = (
            None  # facts of a restored checkpoint
        )
        self._log: JsonLines | None = None
        self._place: RunFolder | None = None  # of the last run
        self._lock = ExitStack()  # of its folder
        self._validation: Any = None  # the held-out data of the last run
        self._best: dict[str, Array] | None = None  # the best values of a run without a folder
        self._kept: Literal["best", "last"] = "last"
        self._averaging = False  # whether held-out results are those of the averaged weights

    # ---- weights ---------------------------------------------------------------------------------

    @property
    def parameters(self) -> dict[str, Array]:
        """Copies of the current trained weights, by their names in the model."""
        values = self._engine.held
        parameters = self.task.manifest.of_role("parameter")
        return {fed.name: np.array(values[fed.name]) for fed in parameters}

    @parameters.setter
    def parameters(self, values: Mapping[str, Array]) -> None:
        """Continues from these weights, with the states as they are. Raises InputError for names,
        shapes and dtypes other than those of `parameters`.
        """
        self._set(values, self.parameters, "parameters")

    @property
    def weights(self) -> dict[str, Array]:
        """Copies of `parameters` and of the running statistics of the model."""
        return {name: np.array(a) for name, a in self._of_model(self._engine.held).items()}

    @weights.setter
    def weights(self, values: Mapping[str, Array]) -> None:
        """Continues from these weights and running statistics. Raises as for `parameters`."""
        self._set(values, self.weights, "weights")

    @property
    def state(self) -> dict[str, Array]:
        """Copies of all values that a checkpoint has: `weights`, the optimiser's states and moving
        averages.
        """
        return self._engine.values

    @state.setter
    def state(self, values: Mapping[str, Array]) -> None:
        """Continues from these values. Raises InputError as for `parameters`."""
        self._set(values, self.state, "state")

    @property
    def vector(self) -> Array:
        """A copy of all `parameters`, in their order, as one array; in float32 if they are
        narrower.
        """
        return flattened(self.parameters.values())

    @vector.setter
    def vector(self, elements: Array) -> None:
        """Continues from these weights, as `parameters` is set. Raises InputError for another
        length or dtype.
        """
        own = self.parameters
        self._set(parted(np.asarray(elements), own, "vector"), own, "vector")

    @property
    def anchors(self) -> dict[str, Array]:
        """The current weights by the inputs of `ProximalPenalty`, for `constants` of `fit`."""
        held, batch = self._engine.held, self.task.manifest.of_role("batch")
        return {fed.name: np.array(held[fed.of], fed.dtype) for fed in batch if fed.of}

    @known_keywords
    def delta(self, before: Mapping[str, Array], examples: float = 1) -> Any:
        """Returns the change of `parameters` since they were `before`, as a `train.Delta`. `apply`
        weights it by `examples`, the number of examples that were read. Raises InputError if names,
        shapes or dtypes differ.
        """
        own: dict[str, Any] = self.parameters
        check_alike(before, own, "before")
        change, delta = {k: a - before[k] for k, a in own.items()}, plugged("train", "Delta")
        return delta(change, examples, self.task.manifest.model)

    @known_keywords
    def apply(self, deltas: Sequence[Any], rate: float = 1.0) -> None:
        """Adds `rate` times the mean of deltas to `parameters`. Deltas are weighted by their
        examples, and may be paths. Raises InputError for a delta of a different model, and as
        `train.average` does.
        """
        mean = plugged("train", "Delta").mean(deltas, self.task.manifest.model)
        own: dict[str, Any] = self.parameters
        check_alike(mean, own, "deltas")
        new = {k: a + rate * mean[k].astype(np.float64) for k, a in own.items()}
        self._set({k: a.astype(own[k].dtype) for k, a in new.items()}, own, "deltas")

    def _set(self, values: Mapping[str, Array], own: Mapping[str, Array], where: str) -> None:
        """Continues from other values. The best weights so far are forgotten."""
        check_alike(values, own, where)
        self._check_whole()
        held, states = self._engine.held, self.task.manifest.of_role("state")
        masters = [fed for fed in states if fed.slot == MASTER and fed.name not in values]
        wide = {fed.name: np.array(values[fed.of or ""], fed.dtype) for fed in masters}
        self._engine.put({**held, **{k: np.asarray(a) for k, a in values.items()}, **wide})
        self.progress, self._best, self._kept = self.progress.without_best(), None, "last"

    def _of_model(self, values: Mapping[str, Array]) -> dict[str, Array]:
        return {fed.name: values[fed.name] for fed in self.task.manifest.of_model()}

    @property
    def averaged(self) -> dict[str, Array]:
        """Copies of `weights`, with moving averages for the trained ones. Raises InputError if the
        step has no averages.
        """
        return {name: np.array(a) for name, a in self._averaged(self._engine.held).items()}

    def _averaged(self, values: Mapping[str, Array]) -> dict[str, Array]:
        manifest = self.task.manifest
        if manifest.average is None:
            raise InputError("the step has no average of its weights: build it with average=0.999")
        held = {fed.of: values[fed.name] for fed in manifest.of_role("average")}
        own = {p.name: held[p.name].astype(dtype_of(p)) for p in manifest.of_role("parameter")}
        return {**self._of_model(values), **own}

    # ---- checkpoints -----------------------------------------------------------------------------

    @known_keywords
    def save(self, path: str | PathLike[str]) -> None:
        """Writes a checkpoint, a single file that is replaced atomically. Raises InputError if the
        last step diverged and overwrote states, or if the path cannot be written.
        """
        self._write(Path(path))

    def _write(self, path: Path) -> None:
        self._check_whole()
        if self._log is not None:
            self.progress = replace(self.progress, logged=self._log.size)
        words = {
            "model": self.task.manifest.model,
            "run": json.dumps({**facts_of_step(self.task, self.rate), **self._facts}),
            **self.progress.words(),
        }
        safetensors_file.write(path, self._engine.held, words)

    def _save(self, place: RunFolder | None) -> None:
        if place is not None and self._engine.leads:
            place.save(self._write, self.progress.steps)

    def _check_whole(self) -> None:
        if self._engine.spoiled:
            raise InputError(
                "the last step diverged and overwrote the optimiser's states: continue with "
                "restore(CHECKPOINT) or a new Trainer"
            )

    def restored(self, path: Path, options: RestoreOptions) -> None:
        """Continues from a file of `save`. Raises InputError as `Trainer.restore` does."""
        with self._stored(path) as (values, words):
            self._go_on(values, words, str(path), options.force)
        if self._before is not None:  # each `fit` sets its own length
            self._before[0].pop("length", None)

    @contextmanager
    def _stored(self, path: Path) -> Iterator[tuple[Mapping[str, Array], Mapping[str, str]]]:
        """Yields the values and the metadata of a checkpoint, read on access inside of the context.
        With several processes, the leading one reads everything.
        """
        if self._engine.alone:
            with safetensors_file.opened(path) as stored:
                yield stored, stored.metadata
            return
        empty: tuple[dict[str, Array], dict[str, str]] = ({}, {})
        yield self._engine.agree(safetensors_file.read(path) if self._engine.leads else empty)

    def _go_on(
        self, values: Mapping[str, Array], words: Mapping[str, str], where: str, force: bool
    ) -> None:
        progress, manifest, before = (
            Progress.of(words, where),
            self.task.manifest,
            facts_in(words, where),
        )
        if not force:
            changes = differences(before, facts_of_step(self.task, self.rate))
            check_same_run(changes, progress, where, same_values=True)
        if force or not progress.micro:
            values = fitting(values, self._engine.held, manifest, every=force)
        if not force:
            alike = values.keys() == self._engine.held.keys()
            check_same_run(changes, progress, where, same_values=alike)
        model = manifest.model if force else words.get("model", "")
        check_values(getattr(values, "outlines", values), manifest, model, where)
        self._engine.put(values)
        self._engine.seed, self.progress = progress.seed, progress
        self._before = (before, where, force)
        self._facts |= {k: v for k, v in before.items() if of_an_epoch(k)}

    def _locked(self, place: RunFolder) -> RunFolder:
        """Locks the folder of a run until `_lock` is closed. Raises InputError."""
        if self._engine.leads:
            self._lock.enter_context(place.locked())
        return place

    def _with_held_out(self, options: RunOptions, place: RunFolder | None) -> RunOptions:
        """Returns the options with held-out data in place of a share of the data. A run holds the
        same examples out when it resumes, whatever its seed is then.
        """
        share, seed = options.validation, options.seed or 0
        if not isinstance(share, float):
            self._facts[SHARE], self._validation = None, share
            return options
        facts = self._facts if self._before is None else self._before[0]
        if place is not None and self._engine.leads and place.last.exists():
            with safetensors_file.opened(place.last) as stored:
                facts = facts_in(stored.metadata, str(place.last))
        seed = self._engine.agree(facts.get(SEED, seed))
        self._facts |= {SHARE: share, SEED: seed}
        given = [
            f
            for f in self.task.manifest.of_role("batch")
            if f.name not in (options.constants or ())
        ]
        inputs = [fed.name for fed in sorted(given, key=lambda fed: fed.classes is None)]
        of_model = set()
        if self.task.manifest.predict is not None:
            of_model = {v.name for v in prediction(self.task).main.inputs}
        labels = [name for name in inputs if name not in of_model]
        data, self._validation = split(options.data, share, seed, inputs, labels)
        return options.having(data=data, validation=self._validation)

    def _measure(self, source: Data) -> None:
        """Measures the statistics of inputs that the step standardises, before the first batch."""
        if (inputs := inputs_of(self.task.manifest)) and not self.progress.begun:
            held = self._engine.held
            self._engine.put({**held, **measured(source.epoch(0), inputs, held)})

    def _know(self, facts: Mapping[str, Any]) -> None:
        """Adds the facts of the data, as of its first batch, to those of the run. Raises
        InputError if the restored checkpoint belongs to a different run.
        """
        own = {k: v for k, v in self._facts.items() if not of_an_epoch(k)}
        self._facts = {**own, "constants": None, "scale": {}, "augment": [], **facts}
        if self._before is None:
            return
        before, where, force = self._before
        self._before = None
        changes = differences(before, {**facts_of_step(self.task, self.rate), **self._facts})
        if not force:
            check_same_run(changes, self.progress, where, same_values=True)
        elif any(map(of_an_epoch, changes)):
            self.progress = replace(self.progress, batches=0)
        if "rate" in changes:
            self.progress = replace(self.progress, plateau=None)
        if HELD_OUT in changes:
            self.progress = self.progress.without_best()
        if changes and self._engine.leads:
            warnings.warn(continuation(changes, where), RunWarning, stacklevel=7)

    # ---- the trained model -----------------------------------------------------------------------

    def trained(self, options: Chosen) -> tuple[dict[str, Array], dict[str, Any]]:
        """Returns the weights to export, and how they were trained."""
        best = (options.weights or self._kept) == "best"
        steps = self.progress.best_step if best else self.progress.steps
        how = {"steps": steps, "optimizer": dict(self.task.manifest.optimizer)}
        if options.averaged:
            how["average"] = self.task.manifest.average
        with self._best_values() if best else nullcontext(self._engine.held) as values:
            weights = self._averaged(values) if options.averaged else self._of_model(values)
        return weights, how

    @contextmanager
    def _best_values(self) -> Iterator[Mapping[str, Array]]:
        """Yields the values of the best evaluation. Raises InputError if they are not kept."""
        if self.progress.best_step == self.progress.steps:
            yield self._engine.held
            return
        if self._best is not None and self._place is None:
            yield self._best
            return
        if self._place is None or not self._place.best.exists():
            raise InputError(
                "the best weights are not kept: fit with validation=, and folder= or keep='best'"
            )
        with safetensors_file.opened(self._place.best) as values:  # one rank may call this alone
            yield values


def check_alike(given: Mapping[str, Array], wanted: Mapping[str, Array], where: str) -> None:
    """Raises InputError unless `given` has the names, shapes and dtypes of `wanted`."""
    for name in given:
        if name not in wanted:
            raise InputError(f"{where} has '{name}', which is unknown{perhaps(name, wanted)}")
    for name, like in wanted.items():
        if name not in given:
            raise InputError(f"{where} lacks '{name}': {like.dtype}{shape_text(like.shape)}")
        a = np.asarray(given[name])
        if a.shape != like.shape or a.dtype != like.dtype:
            raise InputError(
                f"{where}: '{name}' is {a.dtype}{shape_text(a.shape)}, "
                f"not {like.dtype}{shape_text(like.shape)}"
            )


def flattened(values: Iterable[Array]) -> Array:
    """Returns the elements of all arrays as one vector, in the widest dtype, at least float32."""
    arrays = [np.asarray(a).reshape(-1) for a in values]
    return np.concatenate([a.astype(np.float32) if a.itemsize < 4 else a for a in arrays])


def parted(vector: Array, like: Mapping[str, Array], where: str) -> dict[str, Array]:
    """Returns the arrays from which `flattened` made a vector. Raises InputError for another length
    or dtype.
    """
    wanted = flattened(like.values())
    if vector.shape != wanted.shape or vector.dtype != wanted.dtype:
        raise InputError(
            f"{where} must be {wanted.dtype}{shape_text(wanted.shape)}, not {vector.dtype}"
            f"{shape_text(vector.shape)}"
        )
    ends = np.cumsum([a.size for a in like.values()])[:-1]
    parts = zip(like.items(), np.split(vector, ends), strict=True)
    return {name: part.reshape(a.shape).astype(a.dtype) for (name, a), part in parts}
