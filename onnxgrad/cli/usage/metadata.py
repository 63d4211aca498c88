"""What can be said to `onnxgrad metadata`."""

from __future__ import annotations

import argparse

from onnxgrad.cli.usage.groups.limits import add_limits

EXAMPLES = (
    ("metadata model.onnx", "what the model says about itself"),
    (
        "metadata model.onnx --set author=me -o out.onnx",
        "the same with one entry more",
    ),
)
# the options of the header, which are its fields with dashes
HEADER = ("producer-name", "producer-version", "domain", "model-version", "doc-string")


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("model", metavar="MODEL", help="an ONNX file, or - for stdin")
    parser.add_argument("-o", "--output", metavar="OUT", help="the file to write; - is stdout")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="an entry; may repeat"
    )
    parser.add_argument(
        "--unset", action="append", default=[], metavar="KEY", help="take an entry away; may repeat"
    )
    group = parser.add_argument_group("other words of the header ('' takes them away)")
    for option in HEADER:
        kind = "N" if option == "model-version" else "TEXT"
        group.add_argument(f"--{option}", metavar=kind)
    add_limits(parser)
