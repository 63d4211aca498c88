"""What can be said to `onnxgrad diff`."""

from __future__ import annotations

import argparse

from onnxgrad.cli.usage.groups.html import add_html
from onnxgrad.cli.usage.groups.limits import add_limits

EXAMPLES = (
    (
        "diff model.onnx out.onnx",
        "what changed",
    ),
    (
        "diff model.onnx out.onnx --json changes.json",
        "for machines",
    ),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("a", metavar="A", help="an ONNX file, or - for stdin")
    parser.add_argument("b", metavar="B", help="the other")
    add_html(parser)
    add_limits(parser)
