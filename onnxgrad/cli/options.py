"""Options of the commands that run or prove something, and what they say."""

from __future__ import annotations

import argparse
from typing import Any

import onnx

from onnxgrad.cli.limit_options import add_limits, seconds
from onnxgrad.errors import InputError
from onnxgrad.verify import open_session
from onnxgrad.verify.proof import LEGS
from onnxgrad.verify.running.pool import pooled
from onnxgrad.verify.running.session import MOST_THREADS, PROVIDERS

# of a number on the command line: Python refuses to read those of thousands, int64 those of 20
_DIGITS = 18


def add_running(parser: argparse.ArgumentParser, title: str) -> argparse._ArgumentGroup:
    """Options of every command that runs models."""
    group = parser.add_argument_group(title)
    group.add_argument(
        "--provider", choices=tuple(PROVIDERS), default="cpu", help="where to run (default: cpu)"
    )
    group.add_argument(
        "--input", action="append", metavar="[NAME=]FILE",
        help=".npz, .npy or .pb with values to run on, or a folder of input_*.pb; default: "
             "generated values",
    )  # fmt: skip
    add_custom_ops(group)
    group.add_argument(
        "--dim",
        action="append",
        default=[],
        metavar="NAME=SIZE",
        help="fix a symbolic dimension where models are run; a written file keeps it",
    )
    add_limits(group)
    group.add_argument(
        "--threads", type=_threads, default=1, metavar="N", help="of onnxruntime (default: 1)"
    )
    return group


def add_custom_ops(group: argparse._ArgumentGroup) -> None:
    """The option of every command that has onnxruntime run something."""
    group.add_argument(
        "--custom-ops", action="append", default=[], metavar="LIB.so",
        help="a library of custom operators for onnxruntime; it runs with your rights",
    )  # fmt: skip


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


def add_proof(parser: argparse.ArgumentParser) -> None:
    """Options of every command that proves something by running models."""
    group = add_running(parser, "proof")
    group.add_argument(
        "--seed",
        action="append",
        type=_natural,
        metavar="N",
        help="of generated values; may repeat",
    )
    group.add_argument(
        "--leg",
        action="append",
        choices=LEGS,
        help="prove this way only (default: both, each with its own tolerance)",
    )
    add_allow_empty(
        group,
        "this output may be NaN, infinite or empty throughout: without it, nothing proved is exit "
        "1",
    )


def add_allow_empty(group: argparse._ArgumentGroup, text: str) -> None:
    """The option of every proof that says where nothing to compare is all right."""
    group.add_argument("--allow-empty", action="append", default=[], metavar="NAME", help=text)


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
    return options


def size_of(text: str, option: str = "--dim") -> tuple[str, int]:
    """A symbol and its size, of NAME=SIZE. Raises InputError."""
    name, equals, size = text.rpartition("=")
    if not equals or not name or not size.isdecimal() or len(size) > _DIGITS:
        raise InputError(
            f"{option} {text[:80]}: write NAME=SIZE with a whole number, such as {option} batch=4"
        )
    return name, int(size)


def _natural(text: str) -> int:
    """For argparse: 0, 1, 2, ..."""
    if not text.isdecimal() or len(text) > _DIGITS:
        raise argparse.ArgumentTypeError(
            f"a whole number of at most {_DIGITS} digits is wanted, not {text[:40]!r}"
        )
    return int(text)


def _threads(text: str) -> int:
    count = _natural(text)
    if not 1 <= count <= MOST_THREADS:
        raise argparse.ArgumentTypeError(
            f"a number from 1 to {MOST_THREADS} is wanted, not {count}"
        )
    return count


natural, positive = _natural, seconds


def require_runtime(provider: str) -> None:
    """Raise InputError now, not after long work, when onnxruntime or the provider is missing or
    does not start.
    """
    text = (
        '<ir_version: 8, opset_import: ["": 17]> g (float[1] x) => (float[1] y) { y = Add(x, x) }'
    )
    pooled("float64")  # starts while we wait for the other
    open_session(onnx.parser.parse_model(text), provider=provider)
