"""`onnxgrad float16`: weights and computations in float16, proved within a bound."""

from __future__ import annotations

import argparse

from onnxgrad.cli.limit_options import within_limits
from onnxgrad.cli.models import named, shown, source
from onnxgrad.cli.options import require_runtime
from onnxgrad.cli.output import Output
from onnxgrad.cli.targets import files_read, target_of, write_model
from onnxgrad.errors import OnnxgradError
from onnxgrad.jobs.outcome import Outcome
from onnxgrad.passes.float16 import Float16
from onnxgrad.report.float16 import bounded_by, converted, names_of, staying
from onnxgrad.report.optimized import OptimizedModel


def run(args: argparse.Namespace, out: Output) -> int:
    """Convert, prove and write one model."""
    target = target_of(args.output, [args.model, *files_read(args)])
    proof = bounded_by(args.options.proof())
    if args.verify:
        require_runtime(args.provider)
    outcome = Outcome(args.model, None if target is None else str(target), shown(args.model))
    try:
        with within_limits(args), out.progress("float16", 1) as advance:
            advance("running both models", None)
            wanted = None if not args.verify else proof
            halving = Float16(names_of(args.keep), args.io, (), names_of(args.convert))
            done = converted(source(args.model), outcome, halving, wanted)
            write_model(done.program, target, out)
            outcome.written = True
    except OnnxgradError as error:
        raise named(error, args.model) from error
    out.json(OptimizedModel(None, outcome).to_dict())
    *told, last = OptimizedModel(None, outcome).parts(out.verbose)
    out.show(*told[:2], *staying(outcome, out.verbose), *told[2:], last)
    return 0
