"""`onnxgrad verify`: do two models compute the same?"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import onnx

from onnxgrad.cli.limit_options import within_limits
from onnxgrad.cli.models import STDIN, named, read
from onnxgrad.cli.options import add_proof, proof_options, require_runtime
from onnxgrad.cli.output import Output
from onnxgrad.errors import InputError, OnnxgradError
from onnxgrad.report.proof import proof_lines
from onnxgrad.verify import verify

# what `verify` advises where it serves `optimize`
_ADVICE = re.compile(r"(;|, or) skip the proof with --no-verify")


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("a", metavar="A", help="the original: an ONNX file, or - for stdin")
    parser.add_argument("b", metavar="B", help="the model that should equal it")
    parser.add_argument(
        "--weights",
        choices=("auto", "same", "rounded"),
        default="auto",
        help="same: weights were at most moved, so float64 results may differ by 1e-9 of max; "
        "rounded: they were computed anew, so by what rounding to their type costs (1e-6 in "
        "float32) or 3 times what A's own arithmetic does; auto (default): look",
    )
    add_proof(parser)


def run(args: argparse.Namespace, out: Output) -> int:
    """0 when B computes what A computes, else 1: it differs, or nothing is proved."""
    if args.a == args.b == STDIN:
        raise InputError("both models cannot come from stdin")
    options = proof_options(args)
    (a, _), (b, _) = read(args.a), read(args.b)
    require_runtime(args.provider)
    try:
        with within_limits(args), out.progress("verify", 1) as advance:
            advance("running both models", None)
            exact = {"auto": None, "same": True, "rounded": False}[args.weights]
            report = verify(_model(args.a, a), _model(args.b, b), float64_exact=exact, **options)
    except OnnxgradError as error:
        error.args = (_ADVICE.sub("", str(error)), *error.args[1:])
        raise named(error, args.a) from error
    out.json({"a": args.a, "b": args.b, **report.to_dict()})
    out.show(*proof_lines(report, out.verbose))
    return 0 if report.ok else 1


def _model(name: str, proto: onnx.ModelProto) -> Path | onnx.ModelProto:
    """What `verify` runs: the file itself, since its weights may lie beside it."""
    return proto if name == STDIN else Path(name)
