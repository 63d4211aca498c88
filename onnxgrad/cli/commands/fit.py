"""`onnxgrad fit`: train a model on data, without the framework that made it."""

from __future__ import annotations

import argparse
import atexit
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from onnxgrad.cli.models import named, shown, source
from onnxgrad.cli.options import require_runtime, within_limits
from onnxgrad.cli.output import Output
from onnxgrad.cli.parser import complaint
from onnxgrad.cli.targets import files_read, target_of, write_model
from onnxgrad.errors import InputError, OnnxgradError
from onnxgrad.ir.load import load
from onnxgrad.jobs.training.declarations import (
    Engine,
    Epochs,
    ExportOptions,
    RunOptions,
    TrainerOptions,
)
from onnxgrad.jobs.training.step import make_step
from onnxgrad.jobs.training.trainer import TrainingLoop
from onnxgrad.limits import MOST_SECONDS, UNLIMITED, LimitReached
from onnxgrad.report.parts import cell, heading
from onnxgrad.report.training import Fitted, batch_parts, weight_parts
from onnxgrad.train import Event, accuracy, features
from onnxgrad.train.callbacks import check_plotting
from onnxgrad.train.data import read_npz, without_unread
from onnxgrad.train.engines.processes import world
from onnxgrad.verify.running.process_limits import bounding_us


def run(args: argparse.Namespace, out: Output) -> int:
    """Train, alone or as one of several processes, and write the trained model."""
    if not args.data_parallel:
        return _fit(args, out)
    with world().together(lambda words: print(complaint(words), file=sys.stderr)):
        return _fit(args, out)


def _fit(args: argparse.Namespace, out: Output) -> int:
    folder = Path(args.model).is_dir()
    original = args.original if folder else args.model
    if args.output is not None and original is None:
        raise InputError(f"-o {args.output}: say with --original which model the step is of")
    target = None if args.output is None else target_of(args.output, files_read(args))
    if args.plot is not None:
        _check_plotting()
    metrics = {
        "accuracy" if output == "logits" else f"accuracy of {output}": accuracy(output, labels)
        for output, labels in (args.accuracy or {}).items()
    }
    require_runtime(args.provider)
    try:
        began = time.monotonic()
        with within_limits(args):
            step: Any = args.model if folder else make_step(source(args.model), args.options)
            data, validation = (_data(args, path, folder) for path in (args.data, args.validation))
            how = TrainerOptions.from_settings(args.options.shared(Engine))
            opening = partial(TrainingLoop, step, how)
            trainer = None if args.provider != "cpu" else opening()
        # the address space that CUDA reserves is beyond any bound
        trainer = trainer or opening()
        del step, opening  # the engine has the values
        data = _read(trainer, data, args.data)
        labels = (args.accuracy or {}).values()
        validation = validation and _read(trainer, validation, args.validation, labels)
        if trainer.leads:
            out.show(*batch_parts(trainer.task), *weight_parts(trainer.task, out.verbose))
            out.show(*(cell(f"note: {note}") for note in trainer.task.notes))
        started = time.perf_counter()
        with (
            _naming_what_ended(args, trainer),
            _while_training(args, time.monotonic() - began),
            out.progress("train", 1) as advance,
        ):
            given = args.options.shared(Epochs) | {"data": data, "validation": validation}
            given |= {} if args.shuffle else {"seed": None}
            run = {"metrics": metrics, "callbacks": [_shown(args, advance)]}
            history = trainer.train(RunOptions.from_settings({**given, **run}))
        seconds = time.perf_counter() - started
        if not trainer.leads:
            return 0
        if args.output is not None and original is not None:
            trained = trainer.exported(load(source(original)), ExportOptions())
            write_model(trained, target, out)
        if args.plot is not None:
            history.plot(args.plot)
            out.wrote(args.plot)
    except OnnxgradError as error:
        raise named(error, args.model) from error
    out.wrote(args.log if history.events else None, args.folder)
    fitted = Fitted(history, trainer.progress.steps, seconds, args.output, trainer.task.notes)
    out.show(heading(shown(args.model)), *fitted.parts(out.verbose))
    if args.output is None and args.folder is None:
        out.show("note: nothing was kept: -o writes the trained model, --folder saves as it goes")
    out.json({"model": args.model, "output": args.output, **fitted.to_dict()})
    return 0


def _check_plotting() -> None:
    """matplotlib is there, and keeps its list of fonts in a folder that goes with this process, not
    at home.
    """
    if "MPLCONFIGDIR" not in os.environ:
        os.environ["MPLCONFIGDIR"] = folder = tempfile.mkdtemp(prefix="onnxgrad-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    check_plotting()


def _while_training(args: argparse.Namespace, spent: float) -> AbstractContextManager[None]:
    """The limits that were given, less the seconds `spent`; training has none of its own."""
    if args.timeout is None and args.max_memory is None:
        return nullcontext()
    left = MOST_SECONDS if args.timeout is None else max(args.timeout - spent, 1e-3)
    memory = UNLIMITED if args.max_memory is None else args.max_memory
    return bounding_us(left, memory)


@contextmanager
def _naming_what_ended(args: argparse.Namespace, trainer: TrainingLoop) -> Iterator[None]:
    """Say of a limit that ends training at which step it did, and what was kept."""
    try:
        yield
    except LimitReached as error:
        kept = "nothing was kept: --folder saves as it goes"
        if args.folder is not None and any(Path(args.folder).glob("*")):
            kept = f"the same command goes on from what {shown(args.folder)} has"
        reason = str(error).removeprefix("not proved: ")
        raise LimitReached(
            f"training ended after step {trainer.progress.steps}: {reason}; {kept}"
        ) from error


def _data(args: argparse.Namespace, path: str | None, folder: bool) -> Any:
    """The arrays of a file; what the model's frozen part makes of them, unless they are that."""
    if path is None:
        return None
    arrays = read_npz(Path(path))
    if folder or not args.inputs_at or all(name in arrays for name in args.inputs_at):
        return arrays
    return features(
        source(args.model),
        args.inputs_at,
        arrays,
        batch_size=args.batch_size,
        provider=args.provider,
        threads=args.threads,
    )


def _read(
    trainer: TrainingLoop, arrays: Any, path: str, labels: Collection[str] = ()
) -> dict[str, Any]:
    """The arrays that the step reads, and the labels of metrics."""
    names = trainer.task.manifest.batch
    return without_unread(arrays, names, shown(path), beside=labels, leads=trainer.leads)


def _shown(
    args: argparse.Namespace, advance: Callable[[str, float | None], None]
) -> Callable[[Event], None]:
    def show(event: Event) -> None:
        part = None if args.steps is None else min(event.step / args.steps, 1.0)
        advance(f"epoch {event.epoch + 1}, step {event.step}, loss {event.loss:.4g}", part)

    return show
