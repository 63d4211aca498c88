"""`onnxgrad fit`: trains a model on data, without the framework that exported it."""

from __future__ import annotations

import argparse
import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from onnxgrad.cli.models import naming, shown, source
from onnxgrad.cli.output import Output
from onnxgrad.cli.parser import complaint
from onnxgrad.cli.targets import target_of, write_model
from onnxgrad.ir.program import Program
from onnxgrad.jobs.proving import require_runtime
from onnxgrad.jobs.training.fit import FitHooks, FittingLoop, fit, is_folder
from onnxgrad.report.parts import cell, heading
from onnxgrad.report.training import batch_parts, fitted_parts, weight_parts
from onnxgrad.train import Event
from onnxgrad.train.callbacks import TENSORBOARD, check_plotting
from onnxgrad.train.engines.processes import world
from onnxgrad.verify.running.process_limits import bounding_us


def run(args: argparse.Namespace, out: Output) -> int:
    """Trains, alone or as one of several processes, and writes the trained model."""
    if not args.data_parallel:
        return _fit(args, out)
    with world().together(lambda words: print(complaint(words), file=sys.stderr)):
        return _fit(args, out)


def _fit(args: argparse.Namespace, out: Output) -> int:
    folder = is_folder(args.model)
    original = args.original if folder else args.model
    deploy = args.output is not None and original is None
    target = None if args.output is None else target_of(args.output)
    predict = args.predict or {}
    if args.plot is not None:
        _check_plotting()
    require_runtime(args.provider)

    def write(trained: Program) -> None:
        write_model(trained, target, out)

    with naming(args.model):
        model: Any = args.model if folder else source(args.model)
        into = None if args.output is None or deploy else source(original) if folder else model
        hooks = FitHooks(partial(_watched, args, out), write, bounding_us)
        fitted = fit(model, args.options, hooks, original=into, deploy=deploy)
    fitted = replace(fitted, output=args.output)
    if not fitted.leads:
        return 0
    log = args.log if fitted.history.events and args.log != TENSORBOARD else None
    out.wrote(args.plot, log, args.folder, *predict.values())
    out.show(heading(shown(args.model)), *fitted_parts(fitted, out.verbose))
    out.show(*(cell(f"note: {note}") for note in fitted.notes[fitted.of_step :]))
    if args.output is None and args.folder is None and not predict:
        out.show("note: nothing was saved: -o writes the trained model, --folder saves checkpoints")
    out.json({"model": args.model, "output": args.output, **fitted.to_dict()})
    return 0


@contextmanager
def _watched(
    args: argparse.Namespace, out: Output, trainer: FittingLoop
) -> Iterator[Callable[[Event], None]]:
    """Shows the step and its notes, then the progress of training."""
    if trainer.leads:
        out.show(*batch_parts(trainer.task), *weight_parts(trainer.task, out.verbose))
        out.show(*(cell(f"note: {note}") for note in trainer.task.notes))
    with out.progress("train", 1) as advance:
        yield _shown(args, advance)


def _check_plotting() -> None:
    """Raises InputError if matplotlib is missing. Its list of fonts is stored in a folder that is
    removed at exit, not in the home folder, and no matplotlibrc is read, which the working folder
    may have.
    """
    folder, here = tempfile.mkdtemp(prefix="onnxgrad-"), os.getcwd()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["MPLCONFIGDIR"] = folder
    Path(folder, "matplotlibrc").touch()
    os.chdir(folder)  # matplotlib reads the configuration of the working folder first
    try:
        check_plotting()
    finally:
        os.chdir(here)


def _shown(
    args: argparse.Namespace, advance: Callable[[str, float | None], None]
) -> Callable[[Event], None]:
    def show(event: Event) -> None:
        part = None if args.steps is None else min(event.step / args.steps, 1.0)
        advance(f"epoch {event.epoch + 1}, step {event.step}, loss {event.loss:.4g}", part)

    return show
