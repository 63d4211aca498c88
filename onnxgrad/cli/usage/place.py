"""What can be said to `onnxgrad place`."""

from __future__ import annotations

import argparse

from onnxgrad.cli.usage.groups.limits import add_limits

EXAMPLES = (
    (
        "place model.onnx --device 'cuda=op:Mat*'",
        "what would be copied between the devices",
    ),
    (
        "place model.onnx --device 'cuda=Mat*,op:Tanh' --propagate -o placed.onnx",
        "write the marks, and those that follow from them",
    ),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("model", metavar="MODEL", help="an ONNX file, or - for stdin")
    parser.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        help="the file to write; - is stdout; without it, only look",
    )
    parser.add_argument(
        "--device", action="append", default=[], metavar="DEVICE=PATTERN", type=str,
        help="nodes whose name or operator matches run there: cuda='Conv*,op:Gemm,name:head*'; may "
        "repeat, the first match decides; marks already in the model stay where nothing matches",
    )  # fmt: skip
    parser.add_argument(
        "--default", default="cpu", metavar="DEVICE", help="of all other nodes (default: cpu)"
    )
    parser.add_argument(
        "--propagate",
        action="store_true",
        help="unmarked nodes follow their operands', or else their readers', device",
    )
    parser.add_argument(
        "--ir", action="store_true", help="write the IR's device_configurations too (IR version 11)"
    )
    add_limits(parser)
