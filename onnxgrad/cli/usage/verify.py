"""What can be said to `onnxgrad verify`."""

from __future__ import annotations

import argparse

from onnxgrad.cli.usage.groups.running import add_proof

EXAMPLES = (
    (
        "verify model.onnx out.onnx",
        "equal, or the worst difference",
    ),
    (
        "verify model.onnx half.onnx --rtol 1e-2 --atol 1e-3",
        "a model that is not meant to be equal, within bounds",
    ),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("a", metavar="A", help="the original: an ONNX file, or - for stdin")
    parser.add_argument("b", metavar="B", nargs="?", help="the model that should equal it")
    parser.add_argument(
        "--weights",
        choices=("auto", "same", "rounded"),
        default="auto",
        help="same: weights were at most moved, so float64 results may differ by 1e-9 of max; "
        "rounded: they were computed anew, so by what rounding to their type costs (1e-6 in "
        "float32) or 3 times what A's own arithmetic does; auto (default): look",
    )
    parser.add_argument(
        "--map", action="append", default=[], metavar="NAME=OTHER",
        help="what A calls NAME, an input or an output, is OTHER in B",
    )  # fmt: skip
    parser.add_argument(
        "--expect", metavar="FILE", help="instead of B: stored results, an .npz with the outputs' "
        "names, which A is to give on --input; NAME of --map is what FILE has, OTHER A's",
    )  # fmt: skip
    add_proof(parser)
