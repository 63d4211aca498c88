"""`onnxgrad inspect`: what is in a model; with --weights, what of it training would move."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace

from onnxgrad.cli.models import named, shown, source
from onnxgrad.cli.options import within_limits, write_html
from onnxgrad.cli.output import Output
from onnxgrad.errors import OnnxgradError
from onnxgrad.ir.load import ModelLike, load
from onnxgrad.report.inspection import Summary, Weights, inspect, weights


def run(args: argparse.Namespace, out: Output) -> int:
    """Always 0: a model that cannot be read is an error."""
    try:
        with within_limits(args):
            model = source(args.model)
            text = load(model).text() if args.text else ""
            found: Summary | Weights | None = None
            if not args.text:
                found = weights(model) if args.weights else inspect(model, dims=args.dims)
            write_html(args, lambda: _page(model, shown(args.model), args.dims), out)
    except OnnxgradError as error:
        raise named(error, args.model) from error
    if found is None:
        out.text(text)
        out.json({"model": args.model, "text": text})
        return 0
    out.json({**found.to_dict(), "model": args.model})
    out.show(*replace(found, model=shown(args.model)).parts(out.verbose))
    return 0


def _page(model: ModelLike, title: str, dims: Mapping[str, int] | None) -> str:
    found = inspect(model, dims=dims)
    return replace(found, model=title).to_html()
