"""`onnxgrad check-grad`: compares the gradient of a model with central differences, value by
value.
"""

from __future__ import annotations

import argparse

from onnxgrad.cli.models import naming, shown, source
from onnxgrad.cli.output import Output
from onnxgrad.jobs.gradients import check
from onnxgrad.jobs.hooks import Hooks
from onnxgrad.jobs.proving import require_runtime
from onnxgrad.report.gradient import check_lines
from onnxgrad.report.parts import heading
from onnxgrad.verify.running.process_limits import bounding_us


def run(args: argparse.Namespace, out: Output) -> int:
    """Returns 0 if every value that could be judged is right, 1 if a value is wrong or nothing is
    proved.
    """
    require_runtime(args.provider)
    model = source(args.model)
    with naming(args.model), out.progress("check-grad", 1) as advance:
        advance("gradient against differences", None)
        report = check(model, args.options, Hooks(limits=bounding_us))
    out.json({"model": args.model, **report.to_dict()})
    out.show(heading(shown(args.model)), *check_lines(report, out.verbose))
    return 0 if report.ok else 1
