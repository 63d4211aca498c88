"""What can be said to `onnxgrad check-grad`."""

from __future__ import annotations

import argparse

from onnxgrad.cli.usage.groups.gradient import ALLOW_EMPTY, add_gradient
from onnxgrad.cli.usage.groups.running import add_allow_empty, add_running
from onnxgrad.cli.usage.kinds import natural, positive

EXAMPLES = (
    (
        "check-grad model.onnx --wrt params --target loss",
        "every weight's gradient against differences",
    ),
    (
        "check-grad model.onnx --target loss --input batch.npz --seed 1",
        "on values of your own, in other directions",
    ),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("model", metavar="MODEL", help="an ONNX file, or - for stdin")
    add_gradient(parser)
    parser.add_argument(
        "--tolerance",
        type=positive,
        metavar="T",
        help="relative; default: by the float types on each value's paths",
    )
    add_allow_empty(add_running(parser, "check"), ALLOW_EMPTY)
    parser.add_argument(
        "--seed",
        type=natural,
        default=0,
        metavar="N",
        help="of generated values and directions",
    )
