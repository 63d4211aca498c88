"""What can be said to `onnxgrad inspect`."""

from __future__ import annotations

import argparse

from onnxgrad.cli.usage.groups.html import add_html
from onnxgrad.cli.usage.groups.limits import add_limits

EXAMPLES = (
    (
        "inspect model.onnx",
        "interface, operators, parameters",
    ),
    (
        "inspect model.onnx --weights",
        "which constants are weights, and why the others are not",
    ),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("model", metavar="MODEL", help="an ONNX file, or - for stdin")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--text", action="store_true", help="print the whole binding block")
    what.add_argument(
        "--weights",
        action="store_true",
        help="which constants are weights, what `params` leaves out, and why",
    )
    parser.add_argument(
        "--dim", action="append", default=[], metavar="NAME=SIZE",
        help="the size of a symbolic dimension, for FLOPs and memory",
    )  # fmt: skip
    add_html(parser)
    add_limits(parser)
