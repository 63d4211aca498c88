"""`onnxgrad train-step`: writes a training step of a model as a folder of ONNX files."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from onnxgrad.cli.models import named, shown, source
from onnxgrad.cli.options import within_limits
from onnxgrad.cli.output import Output
from onnxgrad.cli.targets import target_of, write_model
from onnxgrad.errors import InputError, NotProved, OnnxgradError
from onnxgrad.extensions import plugged
from onnxgrad.grad.checking.report import GradientReport
from onnxgrad.jobs.proving import require_runtime
from onnxgrad.jobs.training.step import check_step, make_step
from onnxgrad.report.parts import heading, line
from onnxgrad.report.training import StepMade
from onnxgrad.train.step import TrainingStep
from onnxgrad.train.step_folder import MANIFEST, save_step, save_vectors, seal_step


def run(args: argparse.Namespace, out: Output) -> int:
    """Writes the step if a sample of its gradient agrees with finite differences."""
    if args.seal is not None or args.vectors is not None:
        return _seal(args, out) if args.vectors is None else _vectors(args, out)
    if args.model is None or args.output is None:
        raise InputError("train-step: name a MODEL and a folder: train-step MODEL -o FOLDER")
    target = None
    if args.training_info:
        target = target_of(args.output)
    elif args.output == "-":
        raise InputError("-o: a training step is a folder of files, which stdout is not")
    if args.verify:
        require_runtime(args.provider)
    try:
        with within_limits(args):
            started = time.perf_counter()
            model = source(args.model)
            step = _made(model, args)
            seconds = time.perf_counter() - started
            # the gradient of --ste is an estimate, which differences do not confirm
            report = _check(args, model, step, out) if args.verify and not args.ste else None
            if report is not None and not report.ok:
                raise NotProved(f"{args.model}: {report}; nothing was written")
            if args.training_info:
                write_model(plugged("steps", "training-info")(model, step), target, out)
            else:
                save_step(step, args.output)
                out.wrote(args.output)
    except OnnxgradError as error:
        raise named(error, args.model) from error
    result = StepMade(step, seconds, report)
    out.show(heading(shown(args.model)), *result.parts(out.verbose))
    out.json({"model": args.model, "output": args.output, **result.to_dict()})
    return 0


def _made(model: Path | bytes, args: argparse.Namespace) -> TrainingStep:
    """Returns the step. Large weights of a model's file stay in it until the folder is written."""
    if args.from_training_info:
        found: TrainingStep = plugged("steps", "from-training-info")(model)
        return found
    in_place = isinstance(model, Path) and not args.training_info
    step = make_step(model, args.options, in_place=in_place)
    if in_place:
        for graph in (step.train, step.evaluation):
            graph.digests.files = frozenset([Path(args.model).name])
    return step


def _seal(args: argparse.Namespace, out: Output) -> int:
    """Writes new digests of a step's graphs."""
    if args.model is not None or args.output is not None:
        raise InputError("--seal FOLDER makes no step: remove the other arguments")
    with within_limits(args):
        changed = seal_step(args.seal)
    out.show(line(f"{shown(args.seal)}: sealed; changed: {', '.join(changed) or 'none'}"))
    out.json({"folder": args.seal, "changed": list(changed)})
    out.wrote(Path(args.seal) / MANIFEST)
    return 0


def _vectors(args: argparse.Namespace, out: Output) -> int:
    """Writes the steps for the tests of a client."""
    if any(given is not None for given in (args.model, args.output, args.seal)):
        raise InputError("--vectors FOLDER makes no step: remove the other arguments")
    save_vectors(args.vectors)
    out.json({"folder": args.vectors})
    out.wrote(args.vectors)
    return 0


def _check(
    args: argparse.Namespace, model: Path | bytes, step: TrainingStep, out: Output
) -> GradientReport:
    """Checks the gradient in float32: differences of rounded products confirm nothing."""
    if args.options.autocast is not None:
        step = make_step(model, args.options.having(autocast=None))
    with out.progress("check", 1) as advance:
        advance("gradient against differences", None)
        return check_step(step, args.options)
