"""`onnxgrad fit`: trains a model on data, without the framework that exported it."""

from __future__ import annotations

import argparse
import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from onnxgrad.cli.models import naming, shown, source
from onnxgrad.cli.output import Output
from onnxgrad.cli.parser import complaint
from onnxgrad.cli.targets import target_of, write_model
from onnxgrad.errors import InputError
from onnxgrad.ir.program import Program
from onnxgrad.jobs.proving import require_runtime
from onnxgrad.jobs.training.fit import FitHooks, FittingLoop, fit, is_folder
from onnxgrad.report.parts import cell, heading
from onnxgrad.report.training import batch_parts, fitted_parts, range_parts, weight_parts
from onnxgrad.train import Event
from onnxgrad.train.callbacks import TENSORBOARD, RangeTest, check_plotting
from onnxgrad.train.divergence import Diverged
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

    if args.find_lr:
        return _find_rate(args, out)
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


def _find_rate(args: argparse.Namespace, out: Output) -> int:
    """Trains at growing rates, and prints the losses."""
    if args.output or args.predict or args.folder or args.rate is not None:
        raise InputError("--find-lr trains no model: leave out -o, --folder, --predict and --rate")
    test = RangeTest()
    options = args.options.having(rate=test.rate, steps=test.steps, plot=None)
    hooks = FitHooks(partial(_watched, args, out, test=test), limits=bounding_us)
    with naming(args.model), suppress(Diverged):  # the rates before were good
        fit(args.model if is_folder(args.model) else source(args.model), options, hooks)
    if not test.history.losses:  # another process leads
        return 0
    if args.plot is not None:
        test.history.plot(args.plot, over="rate")
    out.wrote(args.plot)
    out.show(heading(shown(args.model)), *range_parts(test))
    losses = [[event.rate, event.loss] for event in test.history.events]
    out.json({"model": args.model, "losses": losses, "steepest": test.steepest})
    return 0


@contextmanager
def _watched(
    args: argparse.Namespace, out: Output, trainer: FittingLoop, test: RangeTest | None = None
) -> Iterator[Callable[[Event], bool | None]]:
    """Shows the step and its notes, then the progress of training."""
    if trainer.leads:
        out.show(*batch_parts(trainer.task), *weight_parts(trainer.task, out.verbose))
        out.show(*(cell(f"note: {note}") for note in trainer.task.notes))
    with out.progress("train", 1) as advance:
        yield _shown(args, advance, test)


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
    args: argparse.Namespace,
    advance: Callable[[str, float | None], None],
    test: RangeTest | None,
) -> Callable[[Event], bool | None]:
    def show(event: Event) -> bool | None:
        part = None if args.steps is None else min(event.step / args.steps, 1.0)
        advance(f"epoch {event.epoch + 1}, step {event.step}, loss {event.loss:.4g}", part)
        return None if test is None else test(event)

    return show
