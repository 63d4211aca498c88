"""`onnxgrad inspect`: shows the contents of a model; with --weights, the constants that training
changes.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

from onnxgrad.cli.models import naming, shown, source
from onnxgrad.cli.options import within_limits, write_html
from onnxgrad.cli.output import Output
from onnxgrad.jobs.inspection.contents import Summary, Weights, inspect, text_of, weights
from onnxgrad.report.forms import parts_of
from onnxgrad.report.html.models import summary_page


def run(args: argparse.Namespace, out: Output) -> int:
    """Returns 0. Raises InputError for a model that cannot be read."""
    with naming(args.model), within_limits(args):
        model, title = source(args.model), shown(args.model)

        def summary() -> Summary:
            return replace(inspect(model, args.dims), model=title)

        write_html(args, lambda: summary_page(summary()), out)
        if args.text:
            text = text_of(model)
            out.text(text)
            out.json({"model": args.model, "text": text})
            return 0
        found: Summary | Weights = (
            replace(weights(model), model=title) if args.weights else summary()
        )
    out.json({**found.to_dict(), "model": args.model})
    out.show(*parts_of(found, out.verbose))
    return 0
