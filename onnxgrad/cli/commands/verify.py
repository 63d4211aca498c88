"""`onnxgrad verify`: compares the results of two models."""

from __future__ import annotations

import argparse

from onnxgrad.cli.models import model_of, naming
from onnxgrad.cli.options import within_limits
from onnxgrad.cli.output import Output
from onnxgrad.errors import InputError
from onnxgrad.ir.storage.protection import STDIN
from onnxgrad.jobs.declarations import VerifyOptions
from onnxgrad.jobs.proving import require_runtime
from onnxgrad.report.proof import proof_lines
from onnxgrad.verify import verify


def run(args: argparse.Namespace, out: Output) -> int:
    """Returns 0 if B computes what A computes, else 1: it differs, or nothing is proved."""
    if args.a == args.b == STDIN:
        raise InputError("both models cannot come from stdin")
    a, b = model_of(args.a), None if args.b is None else model_of(args.b)
    require_runtime(args.provider)
    with naming(args.a), within_limits(args), out.progress("verify", 1) as advance:
        advance("running both models", None)
        report = verify(a, b, **args.options.shared(VerifyOptions))
    out.json({"a": args.a, "b": args.b, "expect": args.expect, **report.to_dict()})
    out.show(*proof_lines(report, out.verbose))
    return 0 if report.ok else 1
