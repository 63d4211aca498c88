"""What can be said to `onnxgrad extract`."""

from __future__ import annotations

import argparse

from onnxgrad.cli.usage.groups.limits import add_limits
from onnxgrad.cli.usage.kinds import natural

EXAMPLES = (
    (
        "extract model.onnx --outputs hidden -o encoder.onnx",
        "what computes one value",
    ),
    (
        "extract model.onnx --inputs hidden --outputs logits -o head.onnx",
        "what comes behind it",
    ),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("model", metavar="MODEL", help="an ONNX file, or - for stdin")
    parser.add_argument(
        "-o", "--output", required=True, metavar="OUT", help="the file to write; - is stdout"
    )
    for what in ("inputs", "outputs"):
        parser.add_argument(
            f"--{what}", action="append", default=[], metavar="NAME,...",
            help=f"values of the main graph (default: the model's {what})",
        )  # fmt: skip
    group = parser.add_argument_group("proof")
    group.add_argument("--seed", type=natural, default=0, metavar="N", help="of its values")
    group.add_argument(
        "--no-verify", action="store_true", help="skip the proof (needs no onnxruntime)"
    )
    add_limits(group)
