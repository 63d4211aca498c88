"""What can be said to `onnxgrad bench`."""

from __future__ import annotations

import argparse

from onnxgrad.cli.usage.groups.html import add_html
from onnxgrad.cli.usage.groups.running import add_running
from onnxgrad.cli.usage.kinds import natural, positive

EXAMPLES = (
    (
        "bench model.onnx out.onnx",
        "both in turns, and the ratio to the first",
    ),
    (
        "bench model.onnx out.onnx --require 0.9 --threads 4",
        "exit 1 unless the second takes at most 0.9 of the time",
    ),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument(
        "model",
        nargs="+",
        metavar="MODEL",
        help="ONNX files of one interface; ratios are to the first",
    )
    add_html(parser)
    group = add_running(parser, "measuring")
    group.add_argument(
        "--seed", type=natural, default=0, metavar="N", help="of generated values (default: 0)"
    )
    group.add_argument(
        "--rounds", type=natural, default=20, metavar="N", help="turns of each model (default: 20)"
    )
    group.add_argument(
        "--seconds", type=positive, default=2.0, metavar="S", help="for each model (default: 2)"
    )
    group.add_argument(
        "--no-optimize", action="store_true", help="switch onnxruntime's own optimisations off"
    )
    group.add_argument(
        "--require",
        type=positive,
        metavar="RATIO",
        help="exit with 1 when a model takes longer than RATIO x the first (of two or more)",
    )
