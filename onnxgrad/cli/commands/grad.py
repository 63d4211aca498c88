"""`onnxgrad grad`: the reverse-mode gradient of a model as a plain ONNX graph."""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path
from typing import Any

from onnxgrad.cli.commands.grad_products import write_products
from onnxgrad.cli.models import STDIN, named, shown, source
from onnxgrad.cli.options import (
    checked_bounds,
    gradient_options,
    require_runtime,
    within_limits,
    write_html,
)
from onnxgrad.cli.output import Output
from onnxgrad.cli.targets import check_not_weights, files_read, target_of, write_model
from onnxgrad.errors import InputError, NotProved, OnnxgradError
from onnxgrad.grad import Gradient, check_gradient, differentiate
from onnxgrad.grad.checking.report import GradientReport, bounded
from onnxgrad.grad.checkpointing.marks import mark
from onnxgrad.grad.function_gradient import add_function_gradient, check_function
from onnxgrad.grad.opset.raising import raise_opset
from onnxgrad.ir.load import load
from onnxgrad.jobs.training import spread
from onnxgrad.report.gradient import GradientMade, check_lines, nodes
from onnxgrad.report.html.gradient import gradient_page
from onnxgrad.report.parts import heading
from onnxgrad.verify.feeds.input_files import load_inputs
from onnxgrad.wording import counted


def run(args: argparse.Namespace, out: Output) -> int:
    """Write the gradient graph once a sample of its adjoints agrees with differences."""
    asked = gradient_options(args)
    asked |= {
        "adjoint": args.adjoint,
        "names": args.names or "{}_grad",
        "simplify": args.simplify,
        "ste": args.ste,
    }
    target = target_of(args.output, files_read(args))
    _check_page(args)
    if args.mark:
        return _mark(args, out, asked, target)
    if args.function is not None:
        return _function(args, out, asked, target)
    if args.of is not None:
        return write_products(args, out, asked, target)
    if args.batched or args.mode != "auto":
        raise InputError(f"--{'batched' if args.batched else 'mode'} is for --jacobian")
    if args.verify:
        require_runtime(args.provider)
    model = source(args.model)
    check_not_weights(target, model)
    try:
        started = time.perf_counter()
        with within_limits(args):
            found = _quietly(model, asked)
            seconds = time.perf_counter() - started
            # an estimate has no differences to agree with
            report = None if not args.verify or args.ste else _prove(args, found, asked, out)
            proved = report is None or report.ok
            if proved:
                write_model(found.program, target, out)
    except OnnxgradError as error:
        raise named(error, args.model) from error
    before = nodes(load(model)) if isinstance(model, Path) else 0
    made = GradientMade(found, before, seconds, report)
    write_html(args, lambda: _page(args, made, model, asked), out)
    out.show(heading(shown(args.model)), *made.parts(out.verbose))
    out.json({"model": args.model, "output": args.output, **made.to_dict()})
    if not proved:
        raise NotProved(f"{args.model}: {report}; nothing was written")
    return 0


def _check_page(args: argparse.Namespace) -> None:
    if args.html is not None and (args.mark or args.function is not None or args.of is not None):
        raise InputError("--html shows a gradient graph: this writes another kind of model")


def _quietly(model: Path | bytes, asked: dict[str, Any]) -> Gradient:
    with warnings.catch_warnings():
        # what it warns of is among the notes, which are printed
        warnings.simplefilter("ignore")
        return differentiate(load(model), **asked)


def _page(
    args: argparse.Namespace, made: GradientMade, model: Path | bytes, asked: dict[str, Any]
) -> str:
    """With checkpoints also the memory that the gradient would take without them."""
    with within_limits(args):
        plain = None
        if asked["checkpoint"] is not None:
            plain = _quietly(model, {**asked, "checkpoint": None})
        sizes = args.options.running().get("dims") or {}
        return gradient_page(made, shown(args.model), plain, sizes)


def _mark(args: argparse.Namespace, out: Output, asked: dict[str, Any], target: Path | None) -> int:
    """Write the model with checkpoint marks; it computes what it did, so there is nothing to
    prove.
    """
    if asked["checkpoint"] is None:
        raise InputError(
            "--mark writes the marks of --checkpoint: give --checkpoint auto, a size or marks"
        )
    try:
        with within_limits(args):
            program = load(source(args.model))
            marks = mark(program, asked["wrt"], asked["target"], asked["checkpoint"])
            write_model(program, target, out)
    except OnnxgradError as error:
        raise named(error, args.model) from error
    uses = {
        kind: sorted([v.name, b.out.name] for v, b in found)
        for kind, found in (("start", marks.start), ("end", marks.end))
    }
    out.show(heading(shown(args.model)))
    told = [counted(len(found), f"{kind} mark") for kind, found in uses.items()]
    out.show(" and ".join(told))
    out.json({"model": args.model, "output": args.output, "marks": uses})
    return 0


def _function(
    args: argparse.Namespace, out: Output, asked: dict[str, Any], target: Path | None
) -> int:
    """Write the model with the gradient of one function beside it, once that agrees with
    differences.
    """
    if any(asked[k] is not None for k in ("wrt", "target", "stop", "checkpoint")):
        raise InputError(
            "--function is by all operands, of all results: --wrt, --target, --stop and "
            "--checkpoint say nothing"
        )
    if args.verify:
        require_runtime(args.provider)
    try:
        with within_limits(args):
            program = raise_opset(load(source(args.model)))[0]
            report = None
            if args.verify:
                report = check_function(
                    program, args.function, seed=args.seed, provider=args.provider
                )
            _, name, _ = add_function_gradient(program, args.function)
            if report is not None and not report.ok:
                raise NotProved(f"{args.model}: {report}; nothing was written")
            write_model(program, target, out)
    except OnnxgradError as error:
        raise named(error, args.model) from error
    out.show(heading(shown(args.model)))
    out.show(f"new function {name}")
    if report is not None:
        out.show(*check_lines(report, out.verbose))
    check = None if report is None else report.to_dict()
    out.json({"model": args.model, "output": args.output, "function": name, "check": check})
    return 0


def _prove(
    args: argparse.Namespace, found: Gradient, asked: dict[str, Any], out: Output
) -> GradientReport:
    """The numeric check of some of the requested values, in the same request otherwise."""
    names = spread(list(found.adjoints))
    strange = [name for name in args.allow_empty if name not in found.adjoints]
    if strange:
        raise InputError(f"--allow-empty {strange[0]}: no gradient of it was asked for")
    options = args.options.running()
    options.pop("threads")
    given = options.pop("inputs", None)
    original = load(found.program.proto if args.model == STDIN else source(args.model))
    original.digests = found.program.digests  # the weights that are written are those checked
    bounds = checked_bounds(args.options)
    with out.progress("check", 1) as advance:
        advance("gradient against differences", None)
        report = check_gradient(
            original,
            names,
            asked["target"],
            seed=args.seed,
            inputs=None if given is None else load_inputs(given, original.proto),
            checkpoint=asked["checkpoint"],
            stop=asked["stop"],
            allow_empty=[name for name in args.allow_empty if name in names],
            **options,
        )
    return bounded(report, bounds, found.adjoints)
