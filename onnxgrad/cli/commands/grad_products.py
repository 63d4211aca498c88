"""`onnxgrad grad --jvp`, `--hvp`, `--jacobian`, `--casadi`: products with derivatives, and whole
Jacobians.
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path
from typing import Any

from onnxgrad.cli.models import named, shown, source
from onnxgrad.cli.options import checked_bounds, require_runtime, within_limits
from onnxgrad.cli.output import Output
from onnxgrad.cli.targets import check_not_weights, write_model
from onnxgrad.errors import InputError, NotProved, OnnxgradError
from onnxgrad.grad.checking.derivatives import check_product
from onnxgrad.grad.checking.report import GradientReport, bounded
from onnxgrad.grad.derivatives.casadi import KINDS as SIBLINGS
from onnxgrad.grad.derivatives.casadi import sibling
from onnxgrad.grad.derivatives.derivative import Derivative
from onnxgrad.grad.derivatives.jacobian import jacobians
from onnxgrad.grad.derivatives.vector_products import hessian_products, tangents
from onnxgrad.ir.load import load
from onnxgrad.ir.save import to_proto
from onnxgrad.jobs.training import spread
from onnxgrad.report.gradient import check_lines, nodes
from onnxgrad.report.parts import bytes_text, cell, heading, seconds_text
from onnxgrad.verify.feeds.input_files import load_inputs
from onnxgrad.wording import counted

# what says something of a gradient alone
_OTHERS = ("ste", "mark", "checkpoint", "stop")


def write_products(
    args: argparse.Namespace, out: Output, asked: dict[str, Any], target: Path | None
) -> int:
    """Write the graph once a sample of its products agrees with differences."""
    _check_words(args)
    if args.verify:
        require_runtime(args.provider)
    model = source(args.model)
    check_not_weights(target, model)
    try:
        started = time.perf_counter()
        with within_limits(args), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what they say is among the notes
            made = _made(args, asked, model)
            seconds = time.perf_counter() - started
            report = None if not args.verify else _prove(args, asked, made, model, out)
            if report is None or report.ok:
                write_model(made.program, target, out)
    except OnnxgradError as error:
        raise named(error, args.model) from error
    _show(args, out, made, seconds, report)
    if report is not None and not report.ok:
        raise NotProved(f"{args.model}: {report}; nothing was written")
    return 0


def _check_words(args: argparse.Namespace) -> None:
    """Raises InputError for an option that says nothing of what is asked for."""
    casadi = args.of in SIBLINGS
    wrong = [name for name in _OTHERS if getattr(args, name)]
    wrong += [] if args.simplify else ["no_simplify"]
    wrong += ["adjoint"] * (args.adjoint != "auto") + ["names"] * (casadi and bool(args.names))
    if wrong:
        what = f"casadi {args.of}" if casadi else args.of
        raise InputError(f"--{wrong[0].replace('_', '-')} says nothing of --{what}")
    if args.of != "jacobian" and (args.batched or args.mode != "auto"):
        raise InputError(f"--{'batched' if args.batched else 'mode'} is for --jacobian")


def _made(args: argparse.Namespace, asked: dict[str, Any], model: Path | bytes) -> Derivative:
    program, wrt, target = load(model), asked["wrt"], asked["target"]
    names = {} if args.names is None else {"names": args.names}
    if args.of == "jvp":
        return tangents(program, wrt, target, **names)
    if args.of == "hvp":
        return hessian_products(program, wrt, target, **names)
    if args.of in SIBLINGS:
        return sibling(program, args.of, wrt, target)
    return jacobians(program, wrt, target, args.mode, args.batched, **names)


def _prove(
    args: argparse.Namespace,
    asked: dict[str, Any],
    made: Derivative,
    model: Path | bytes,
    out: Output,
) -> GradientReport:
    """The numeric check of some of the values, in the same request otherwise."""
    values = list(made.tangents or made.results)
    strange = [name for name in args.allow_empty if name not in values]
    if strange:
        raise InputError(f"--allow-empty {strange[0]}: no derivative by it was asked for")
    names = spread(values)
    options = args.options.running()
    options.pop("threads")
    given = options.pop("inputs", None)
    original = load(model)
    original.digests = made.program.digests  # the weights that are written are those checked
    bounds = checked_bounds(args.options)
    with out.progress("check", 1) as advance:
        advance(f"{args.of} against differences", None)
        report = check_product(
            original,
            names,
            asked["target"],
            of=args.of,
            mode=args.mode,
            batched=args.batched,
            seed=args.seed,
            inputs=None if given is None else load_inputs(given, original.proto),
            allow_empty=[name for name in args.allow_empty if name in names],
            **options,
        )
    return bounded(report, bounds, values)


def _show(
    args: argparse.Namespace,
    out: Output,
    made: Derivative,
    seconds: float,
    report: GradientReport | None,
) -> None:
    program = made.program
    types = {v.name: v.type for v in (*program.main.inputs, *program.main.outputs)}
    out.show(heading(shown(args.model)))
    for value, name in made.tangents.items():
        out.show(cell(f"new input  {name}: {types.get(name) or '?'}, moves {value}"))
    for value, name in made.seeds.items():
        out.show(cell(f"new input  {name}: {types.get(name) or '?'}, adjoints of {value}"))
    for value, name in made.results.items():
        out.show(cell(f"new output {name}: {types.get(name) or '?'}, of {value}"))
    for note in made.notes:
        out.show(cell(f"note: {note}"))
    size = bytes_text(to_proto(program).ByteSize())
    out.show(f"{counted(nodes(program), 'node')}, {size}, built in {seconds_text(seconds)}")
    if report is not None:
        out.show(*check_lines(report, out.verbose))
    out.json({
        "model": args.model,
        "output": args.output,
        "of": made.kind,
        "inputs": {**made.tangents, **made.seeds},
        "outputs": dict(made.results),
        "notes": list(made.notes),
        "check": None if report is None else report.to_dict(),
    })  # fmt: skip
