"""`onnxgrad check-grad`: the gradient of a model against central differences, value by value."""

from __future__ import annotations

import argparse

from onnxgrad.cli.models import named, shown, source
from onnxgrad.cli.options import (
    gradient_options,
    require_runtime,
    within_limits,
)
from onnxgrad.cli.output import Output
from onnxgrad.errors import OnnxgradError
from onnxgrad.grad import check_gradient
from onnxgrad.ir.load import load
from onnxgrad.report.gradient import check_lines
from onnxgrad.report.parts import heading
from onnxgrad.verify.feeds.input_files import load_inputs


def run(args: argparse.Namespace, out: Output) -> int:
    """0 when every value that could be judged is right, else 1: one is wrong, or nothing is
    proved.
    """
    asked = gradient_options(args)
    require_runtime(args.provider)
    options = args.options.running()
    options.pop("threads")
    given = options.pop("inputs", None)
    model = source(args.model)
    try:
        with within_limits(args), out.progress("check-grad", 1) as advance:
            advance("gradient against differences", None)
            report = check_gradient(
                model,
                asked["wrt"],
                asked["target"],
                seed=args.seed,
                inputs=None if given is None else load_inputs(given, load(model).proto),
                tolerance=args.tolerance,
                checkpoint=asked["checkpoint"],
                stop=asked["stop"],
                allow_empty=args.allow_empty,
                **options,
            )
    except OnnxgradError as error:
        raise named(error, args.model) from error
    out.json({"model": args.model, **report.to_dict()})
    out.show(heading(shown(args.model)), *check_lines(report, out.verbose))
    return 0 if report.ok else 1
