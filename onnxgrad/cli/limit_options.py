"""`--timeout` and `--max-memory`: what the work on one model may cost, on the command line for
our own process too.
"""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager

from onnxgrad.errors import InputError
from onnxgrad.limits import MOST_SECONDS, SECONDS, read_size
from onnxgrad.verify.running.own_process import bounding_us


def add_limits(parser: argparse._ActionsContainer) -> None:
    """The options."""
    parser.add_argument(
        "--timeout", type=seconds, default=SECONDS, metavar="SECONDS",
        help=f"for all work on one model (default: {SECONDS:g})",
    )  # fmt: skip
    parser.add_argument(
        "--max-memory", type=memory, metavar="SIZE",
        help="for each process that works on it, such as 4GB (default: half of what the machine or "
             "its cgroup has)",
    )  # fmt: skip


def seconds(text: str) -> float:
    """For argparse: a positive number."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < MOST_SECONDS:
        raise argparse.ArgumentTypeError(f"a positive number is wanted, not {text[:40]!r}")
    return value


def memory(text: str) -> int:
    """For argparse: a size in bytes, such as 512MiB."""
    try:
        return read_size(text)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def within_limits(args: argparse.Namespace, extra: float = 0.0) -> AbstractContextManager[None]:
    """The work on one model, bound by the options; `extra` seconds are asked for and do not
    count. Raises LimitReached.
    """
    return bounding_us(args.timeout + extra, args.max_memory)
