"""What the options of the commands that run or prove something say."""

from __future__ import annotations

import argparse
from typing import Any

import onnx

from onnxgrad.cli.usage.kinds import DIGITS
from onnxgrad.errors import InputError
from onnxgrad.options import providers_of
from onnxgrad.verify import open_session
from onnxgrad.verify.bounds import Bounds
from onnxgrad.verify.coverage.summary import wanted_share
from onnxgrad.verify.running.child_process import pooled


def running_options(args: argparse.Namespace) -> dict[str, Any]:
    """What the options of `add_running` say, by the names that `verify` uses. Raises InputError
    for a bad --dim.
    """
    options: dict[str, Any] = {"provider": args.provider, "threads": args.threads}
    if args.input:
        options["inputs"] = args.input
    if args.dim:
        options["dims"] = dict(size_of(text) for text in args.dim)
    return options


def proof_options(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `verify.verify` that the options of `add_proof` say. Raises InputError
    for a bad --dim.
    """
    options = running_options(args)
    if args.seed is not None:
        options["seeds"] = args.seed
    if args.leg:
        options["legs"] = args.leg
    if args.allow_empty:
        options["allow_empty"] = args.allow_empty
    if args.coverage is not None:
        options["coverage"] = wanted_share(args.coverage)
    return options | bounds_of(args)


def bounds_of(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `verify` that the options of `add_bounds` say; empty without any. Raises
    InputError.
    """
    found: dict[str, Any] = {"metric": args.metric} if args.metric else {}
    for name in ("atol", "rtol"):
        given = [_number_of(name, text) for text in getattr(args, name)]
        common = [value for output, value in given if not output]
        if common and len(given) > 1:
            raise InputError(f"--{name}: one number for all outputs, or one for each that is named")
        if given:
            found[name] = common[-1] if common else dict(given)
    return found


def checked_bounds(args: argparse.Namespace) -> Bounds:
    """`bounds_of` read. Raises InputError."""
    given = bounds_of(args)
    return Bounds.of(given.get("atol"), given.get("rtol"), given.get("metric"))


def _number_of(option: str, text: str) -> tuple[str, float]:
    """An output (none: all of them) and a number."""
    output, _, number = text.rpartition("=")
    try:
        return output, float(number)
    except ValueError:
        raise InputError(f"--{option} {text[:80]}: write X or OUTPUT=X, X a number") from None


def size_of(text: str, option: str = "--dim") -> tuple[str, int]:
    """A symbol and its size, of NAME=SIZE. Raises InputError."""
    name, equals, size = text.rpartition("=")
    if not equals or not name or not size.isdecimal() or len(size) > DIGITS:
        raise InputError(
            f"{option} {text[:80]}: write NAME=SIZE with a whole number, such as {option} batch=4"
        )
    return name, int(size)


def require_runtime(provider: str) -> None:
    """Raise InputError now, not after long work, when onnxruntime or one of the providers is
    missing or does not start.
    """
    text = (
        '<ir_version: 8, opset_import: ["": 17]> g (float[1] x) => (float[1] y) { y = Add(x, x) }'
    )
    pooled("float64")  # starts while we wait for the other
    for name in providers_of(provider):
        open_session(onnx.parser.parse_model(text), provider=name)
