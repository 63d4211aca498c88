"""`onnxgrad convert-opset`: the same model at another opset, proved."""

from __future__ import annotations

import argparse

from onnxgrad.cli.models import named, shown, source
from onnxgrad.cli.options import require_runtime
from onnxgrad.cli.output import Output
from onnxgrad.cli.targets import files_read, target_of, write_model
from onnxgrad.ir.program import Program
from onnxgrad.jobs.declarations import ConvertOpsetOptions
from onnxgrad.jobs.optimize import Hooks, optimize
from onnxgrad.jobs.outcome import Outcome
from onnxgrad.report.optimized import OptimizedModel
from onnxgrad.verify.running.process_limits import bounding_us


def run(args: argparse.Namespace, out: Output) -> int:
    """Convert, prove and write one model."""
    target = target_of(args.output, [args.model, *files_read(args)])
    options: ConvertOpsetOptions = args.options
    if options.verify:
        require_runtime(options.provider)
    outcome = Outcome(args.model, None if target is None else str(target), shown(args.model))

    def write(program: Program) -> bool:
        write_model(program, target, out)
        return True

    with out.progress("convert-opset", 1) as advance:
        advance("running both models", None)
        hooks = Hooks(write=write, limits=bounding_us)
        optimize(source(args.model), options.optimizing(), hooks, outcome)
    if outcome.error is not None:
        raise named(outcome.error, args.model)
    made = OptimizedModel(None, outcome)
    out.json({**made.to_dict(), "opset": outcome.program.opset})
    out.show(*made.parts(out.verbose))
    return 0
