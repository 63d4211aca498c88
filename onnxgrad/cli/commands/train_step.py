"""`onnxgrad train-step`: a training step of a model as a folder of plain ONNX files."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

from onnxgrad.cli.models import named, shown, source
from onnxgrad.cli.options import require_runtime, spread, training_options, within_limits
from onnxgrad.cli.output import Output
from onnxgrad.cli.targets import target_of, write_model
from onnxgrad.errors import InputError, NotProved, OnnxgradError
from onnxgrad.grad import check_gradient
from onnxgrad.grad.checking.report import GradientReport
from onnxgrad.ir.save import to_proto
from onnxgrad.report.parts import heading, line
from onnxgrad.report.training import StepMade
from onnxgrad.train import TrainingStep, save_step, training_step
from onnxgrad.train.onnx_training.training_info_reader import step_from_training_info
from onnxgrad.train.onnx_training.training_info_writer import with_training_info
from onnxgrad.train.step import forward
from onnxgrad.train.step_folder import MANIFEST, seal_step
from onnxgrad.verify.feeds.input_files import load_inputs


def run(args: argparse.Namespace, out: Output) -> int:
    """Write the step once a sample of its gradient agrees with differences."""
    if args.seal is not None:
        return _seal(args, out)
    if args.model is None or args.output is None:
        raise InputError("train-step: name a MODEL and a folder: train-step MODEL -o FOLDER")
    target = None
    if args.training_info:
        target = target_of(args.output, [args.model])
    elif args.output == "-":
        raise InputError("-o: a training step is a folder of files, which stdout is not")
    asked = training_options(args)
    if args.verify:
        require_runtime(args.provider)
    try:
        with within_limits(args):
            started = time.perf_counter()
            model = source(args.model)
            step = (
                step_from_training_info(model)
                if args.from_training_info
                else training_step(model, **asked)
            )
            seconds = time.perf_counter() - started
            report = None if not args.verify else _prove(args, step, out)
            if report is not None and not report.ok:
                raise NotProved(f"{args.model}: {report}; nothing was written")
            if args.training_info:
                write_model(with_training_info(step, model), target, out)
            else:
                save_step(step, args.output)
                out.wrote(args.output)
    except OnnxgradError as error:
        raise named(error, args.model) from error
    made = StepMade(step, seconds, report)
    out.show(heading(shown(args.model)), *made.parts(out.verbose))
    out.json({"model": args.model, "output": args.output, **made.to_dict()})
    return 0


def _seal(args: argparse.Namespace, out: Output) -> int:
    """Write the digests of a step's graphs anew."""
    if args.model is not None or args.output is not None:
        raise InputError("--seal FOLDER stands alone: it makes no step")
    with within_limits(args):
        changed = seal_step(args.seal)
    out.show(line(f"{shown(args.seal)}: sealed; changed: {', '.join(changed) or 'none'}"))
    out.json({"folder": args.seal, "changed": list(changed)})
    out.wrote(Path(args.seal) / MANIFEST)
    return 0


def _prove(args: argparse.Namespace, step: TrainingStep, out: Output) -> GradientReport:
    """The numeric check of the loss's gradient by some of the weights, at their own values."""
    manifest = step.manifest
    # with BatchNormalization and Dropout in the modes that they train in
    in_modes = bool(manifest.running() or manifest.of_role("seed"))
    program = forward(step) if in_modes else step.evaluation
    read = {v.name for v in program.main.inputs}
    names = [fed.name for fed in manifest.of_role("parameter") if fed.name in read]
    options = args.options.running()
    options.pop("threads")
    given = options.pop("inputs", None)
    model = to_proto(program, weights=True)
    values: dict[str, Any] = {name: step.initial[name] for name in step.initial if name in read}
    values |= {fed.name: np.array(1) for fed in manifest.of_role("seed")}
    if given is not None:
        values |= dict(load_inputs(given, model))
    with out.progress("check", 1) as advance:
        advance("gradient against differences", None)
        return check_gradient(
            model,
            spread(names),
            manifest.loss,
            seed=args.seed,
            stop=[v.name for v in program.main.vars() if v.name in step.stops],
            inputs=values,
            **options,
        )
