"""`onnxgrad convert-opset`: converts a model to another opset and proves the result."""

from __future__ import annotations

import argparse

from onnxgrad.cli.options import converted
from onnxgrad.cli.output import Output
from onnxgrad.jobs.optimize import optimize
from onnxgrad.report.optimized import optimized_parts


def run(args: argparse.Namespace, out: Output) -> int:
    """Converts, proves and writes one model."""
    options = args.options.optimizing()
    outcome = converted(args, out, lambda model, *rest: optimize(model, options, *rest))
    out.json({**outcome.to_dict(), "opset": outcome.program.opset})
    out.show(*optimized_parts(outcome, out.verbose))
    return 0
