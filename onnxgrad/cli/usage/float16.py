"""What can be said to `onnxgrad float16`."""

from __future__ import annotations

import argparse

from onnxgrad.cli.usage.groups.running import add_proof
from onnxgrad.vocabulary import FLOAT16_BOUND

EXAMPLES = (
    ("float16 model.onnx -o out.onnx", "half the size, within a fiftieth of the largest value"),
    (
        "float16 model.onnx -o out.onnx --keep 'Reduce*' --metric worst=0.01",
        "an operator stays, and a bound of one's own",
    ),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("model", metavar="MODEL", help="an ONNX file, or - for stdin")
    parser.add_argument(
        "-o", "--output", required=True, metavar="OUT", help="the file to write; - is stdout"
    )
    parser.add_argument(
        "--keep", action="append", default=[], metavar="NAME",
        help="a node, value or operator, or a glob of these, that stays in float32 beside what "
             "passes 65504 or needs its digits; may repeat",
    )  # fmt: skip
    parser.add_argument(
        "--convert", action="append", default=[], metavar="NAME",
        help="such a name that becomes float16 although its like usually stays (sums, powers, "
             "positions); --keep wins; may repeat",
    )  # fmt: skip
    parser.add_argument(
        "--io", action="store_true", help="inputs and outputs become float16 as well"
    )
    add_proof(parser, FLOAT16_BOUND)
    parser.add_argument(
        "--no-verify", action="store_true", help="skip the proof (needs no onnxruntime)"
    )
