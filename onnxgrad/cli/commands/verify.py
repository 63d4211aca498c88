"""`onnxgrad verify`: do two models compute the same?"""

from __future__ import annotations

import argparse
from pathlib import Path

import onnx

from onnxgrad.cli.models import STDIN, named, read
from onnxgrad.cli.options import require_runtime, within_limits
from onnxgrad.cli.output import Output
from onnxgrad.errors import InputError, OnnxgradError
from onnxgrad.jobs.declarations import VerifyOptions
from onnxgrad.report.proof import proof_lines
from onnxgrad.verify import verify


def run(args: argparse.Namespace, out: Output) -> int:
    """0 when B computes what A computes, else 1: it differs, or nothing is proved."""
    if args.a == args.b == STDIN:
        raise InputError("both models cannot come from stdin")
    a, b = _model(args.a), None if args.b is None else _model(args.b)
    require_runtime(args.provider)
    try:
        with within_limits(args), out.progress("verify", 1) as advance:
            advance("running both models", None)
            report = verify(a, b, **args.options.shared(VerifyOptions))
    except OnnxgradError as error:
        raise named(error, args.a) from error
    out.json({"a": args.a, "b": args.b, "expect": args.expect, **report.to_dict()})
    out.show(*proof_lines(report, out.verbose))
    return 0 if report.ok else 1


def _model(name: str) -> Path | onnx.ModelProto:
    """What `verify` runs, once it was looked at: the file itself, since its weights may lie beside
    it.
    """
    proto, _ = read(name)
    return proto if name == STDIN else Path(name)
