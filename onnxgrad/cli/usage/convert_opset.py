"""What can be said to `onnxgrad convert-opset`."""

from __future__ import annotations

import argparse

from onnxgrad.cli.usage.groups.running import add_proof
from onnxgrad.cli.usage.kinds import natural

EXAMPLES = (
    (
        "convert-opset model.onnx --to 20 -o out.onnx",
        "the same at opset 20",
    ),
    (
        "convert-opset model.onnx --to 21 -o - | onnxgrad inspect -",
        "look at it without writing a file",
    ),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("model", metavar="MODEL", help="an ONNX file, or - for stdin")
    parser.add_argument(
        "--to", type=natural, required=True, metavar="N", help="the opset of the default domain"
    )
    parser.add_argument(
        "-o", "--output", required=True, metavar="OUT", help="the file to write; - is stdout"
    )
    add_proof(parser)
    parser.add_argument(
        "--no-verify", action="store_true", help="skip the proof (needs no onnxruntime)"
    )
