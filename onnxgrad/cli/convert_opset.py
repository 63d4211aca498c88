"""`onnxgrad convert-opset`: the same model at another opset, proved."""

from __future__ import annotations

import argparse

from onnxgrad.cli.limit_options import within_limits
from onnxgrad.cli.models import named, shown, source
from onnxgrad.cli.options import proof_options, require_runtime
from onnxgrad.cli.output import Output
from onnxgrad.cli.targets import files_read, target_of, write_model
from onnxgrad.errors import OnnxgradError
from onnxgrad.ir.protobufs import stats_of
from onnxgrad.ir.save import to_proto
from onnxgrad.jobs.optimize import optimize_program
from onnxgrad.passes.convert_opset import ConvertOpset
from onnxgrad.passes.pipeline import Pipeline
from onnxgrad.report.optimized import Outcome


def run(args: argparse.Namespace, out: Output) -> int:
    """Convert, prove and write one model."""
    target = target_of(args.output, [args.model, *files_read(args)])
    if not args.no_verify:
        require_runtime(args.provider)
    outcome = Outcome(args.model, None if target is None else str(target), shown(args.model), False)
    try:
        with within_limits(args), out.progress("convert-opset", 1) as advance:
            advance("running both models", None)
            done = optimize_program(
                source(args.model),
                Pipeline((ConvertOpset(to=args.to),)),
                prove=not args.no_verify,
                proof=proof_options(args),
            )
            write_model(done.program, target, out)
    except OnnxgradError as error:
        raise named(error, args.model) from error
    outcome.done, outcome.report, outcome.written = done, done.report, True
    outcome.before = stats_of(done.program.proto)
    outcome.after = stats_of(to_proto(done.program))
    out.json({**outcome.to_dict(), "opset": done.program.opset})
    out.show(*outcome.parts(out.verbose))
    return 0
