"""What can be said to `onnxgrad convert-opset`."""

from __future__ import annotations

import argparse

from onnxgrad.cli.usage.groups.running import add_custom_ops
from onnxgrad.jobs.declarations import ConvertOpsetOptions
from onnxgrad.jobs.declared import add_flags, group_of

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
        "-o", "--output", required=True, metavar="OUT", help="the file to write; - is stdout"
    )
    add_flags(parser, ConvertOpsetOptions)
    add_custom_ops(group_of(parser, "proof"))
