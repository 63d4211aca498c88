"""`onnxgrad verify`: do two models compute the same?"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import onnx

from onnxgrad.cli.limit_options import within_limits
from onnxgrad.cli.models import STDIN, named, read
from onnxgrad.cli.options import add_proof, proof_options, require_runtime
from onnxgrad.cli.output import Output
from onnxgrad.errors import InputError, OnnxgradError
from onnxgrad.report.proof import proof_lines
from onnxgrad.verify import verify


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("a", metavar="A", help="the original: an ONNX file, or - for stdin")
    parser.add_argument("b", metavar="B", nargs="?", help="the model that should equal it")
    parser.add_argument(
        "--weights",
        choices=("auto", "same", "rounded"),
        default="auto",
        help="same: weights were at most moved, so float64 results may differ by 1e-9 of max; "
        "rounded: they were computed anew, so by what rounding to their type costs (1e-6 in "
        "float32) or 3 times what A's own arithmetic does; auto (default): look",
    )
    near = parser.add_argument_group("what is near enough, where B is not meant to equal A")
    for name, what in (("atol", "|a - b| <= atol + rtol |a|"), ("rtol", "see --atol")):
        near.add_argument(
            f"--{name}", action="append", default=[], metavar="[OUTPUT=]X",
            help=f"{what}; of all outputs of floats, or of one, where no other then counts",
        )  # fmt: skip
    near.add_argument(
        "--metric", action="append", default=[], metavar="[OUTPUT:]METRIC=X",
        help="cosine=0.999, psnr=40 (dB) or top1=0.99 (share of rows) at least, worst=0.01 (of the "
             "largest value) at most",
    )  # fmt: skip
    parser.add_argument(
        "--map", action="append", default=[], metavar="NAME=OTHER",
        help="what A calls NAME, an input or an output, is OTHER in B",
    )  # fmt: skip
    parser.add_argument(
        "--expect", metavar="FILE", help="instead of B: stored results, an .npz with the outputs' "
        "names, which A is to give on --input; NAME of --map is what FILE has, OTHER A's",
    )  # fmt: skip
    add_proof(parser)


def run(args: argparse.Namespace, out: Output) -> int:
    """0 when B computes what A computes, else 1: it differs, or nothing is proved."""
    if args.a == args.b == STDIN:
        raise InputError("both models cannot come from stdin")
    options = proof_options(args) | _near(args)
    a, b = _model(args.a), None if args.b is None else _model(args.b)
    require_runtime(args.provider)
    try:
        with within_limits(args), out.progress("verify", 1) as advance:
            advance("running both models", None)
            exact = {"auto": None, "same": True, "rounded": False}[args.weights]
            report = verify(a, b, float64_exact=exact, expect=args.expect, **options)
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


def _near(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `verify` that say what is near enough. Raises InputError."""
    found: dict[str, Any] = {"metric": args.metric, "map": dict(map(_pair, args.map))}
    for name in ("atol", "rtol"):
        given = [number_of(name, text) for text in getattr(args, name)]
        common = [value for output, value in given if not output]
        if common and len(given) > 1:
            raise InputError(f"--{name}: one number for all outputs, or one for each that is named")
        found[name] = (common[-1] if common else dict(given)) if given else None
    return found


def _pair(text: str) -> tuple[str, str]:
    name, equals, other = text.partition("=")
    if not name or not equals or not other:
        raise InputError(f"--map {text[:80]}: write NAME=OTHER, such as --map logits=linear")
    return name, other


def number_of(option: str, text: str) -> tuple[str, float]:
    """An output (none: all of them) and a number."""
    output, _, number = text.rpartition("=")
    try:
        return output, float(number)
    except ValueError:
        raise InputError(f"--{option} {text[:80]}: write X or OUTPUT=X, X a number") from None
