"""`onnxgrad diff`: shows the changes between two models."""

from __future__ import annotations

import argparse

from onnxgrad.cli.models import model_of
from onnxgrad.cli.options import within_limits, write_html
from onnxgrad.cli.output import Output
from onnxgrad.errors import InputError
from onnxgrad.ir.storage.protection import STDIN
from onnxgrad.jobs.inspection.differences import diff
from onnxgrad.report.diff import diff_parts
from onnxgrad.report.html.models import diff_page


def run(args: argparse.Namespace, out: Output) -> int:
    """Returns 0 if the models are the same, 1 if they differ."""
    if args.a == args.b == STDIN:
        raise InputError("both models cannot come from stdin")
    with within_limits(args):
        found = diff(model_of(args.a), model_of(args.b))
        write_html(args, lambda: diff_page(found), out)
    out.json({"a": args.a, "b": args.b, **found.to_dict()})
    out.show(*diff_parts(found, out.verbose))
    return 0 if found.same else 1
