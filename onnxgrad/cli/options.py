"""Options that commands share, and what they say."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

import onnx

from onnxgrad.cli.limit_options import add_limits, seconds
from onnxgrad.errors import InputError
from onnxgrad.verify import open_session
from onnxgrad.verify.proof import LEGS
from onnxgrad.verify.running.pool import pooled
from onnxgrad.verify.running.session import MOST_THREADS, PROVIDERS

# of a number on the command line: Python refuses to read those of thousands, int64 those of 20
_DIGITS = 18


class Parser(argparse.ArgumentParser):
    """argparse whose complaints are one line, like every other error."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message} (see {self.prog} --help)")


def wants(words: Sequence[str], short: str, long: str) -> bool:
    """Whether a flag is among the words: needed when the words cannot be parsed."""
    return any(w == long or (w.startswith(short) and not w.startswith("--")) for w in words)


def add_common(parser: argparse.ArgumentParser) -> None:
    """Options that every command has."""
    group = parser.add_argument_group("output")
    group.add_argument(
        "--json",
        metavar="FILE",
        help="write the result as JSON; - is stdout, in place of the tables",
    )
    group.add_argument(
        "--color", choices=("auto", "always", "never"), default="auto", help="default: auto"
    )
    group.add_argument("-q", "--quiet", action="store_true", help="print nothing but errors")
    group.add_argument(
        "-v", "--verbose", action="store_true", help="print more; a traceback with errors"
    )
    parser.add_argument(
        "--plugin", action="append", default=[], metavar="FILE.py",
        help="a Python file with rules, families, passes or gradient rules of your own; it runs "
             "with your rights",
    )  # fmt: skip


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
    group.add_argument(
        "--dim", action="append", default=[], metavar="NAME=SIZE", help="fix a symbolic dimension"
    )
    add_limits(group)
    group.add_argument(
        "--threads", type=_threads, default=1, metavar="N", help="of onnxruntime (default: 1)"
    )
    return group


def running_options(args: argparse.Namespace) -> dict[str, Any]:
    """What the options of `add_running` say, by the names that `verify` uses. Raises InputError
    for a bad --dim.
    """
    options: dict[str, Any] = {"provider": args.provider, "threads": args.threads}
    if args.input:
        options["inputs"] = args.input
    if args.dim:
        options["dims"] = dict(_dim(text) for text in args.dim)
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


def _dim(text: str) -> tuple[str, int]:
    name, equals, size = text.rpartition("=")
    if not equals or not name or not size.isdecimal() or len(size) > _DIGITS:
        raise InputError(
            f"--dim {text[:80]}: write NAME=SIZE with a whole number, such as --dim batch=4"
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
