"""Options of `grad` and `check-grad`: which gradient is asked for."""

from __future__ import annotations

import argparse

ALLOW_EMPTY = (
    "this value's gradient may be 0 throughout: without it, 0 = 0 for all values is exit 1"
)


def add_gradient(parser: argparse.ArgumentParser) -> None:
    """Options that say which gradient is meant."""
    group = parser.add_argument_group("gradient")
    group.add_argument(
        "--wrt", action="append", metavar="NAME|GLOB",
        help="values to differentiate with respect to: inputs, weights, intermediate values; "
        "params: every weight that reaches the target (`inspect --weights` lists them); !GLOB "
        "takes away; several by commas; default: every floating-point input",
    )  # fmt: skip
    group.add_argument(
        "--target", action="append", metavar="NAME|INDEX",
        help="default: the only output; several add up; parts as in 'logits[:,7]', whose elements "
             "are summed",
    )  # fmt: skip
    group.add_argument(
        "--stop", action="append", metavar="NAME|GLOB",
        help="computed values at which gradients stop: constants to what is behind them, frozen "
             "what is before",
    )  # fmt: skip
    group.add_argument(
        "--adjoint", choices=("auto", "ones", "input"), default="auto",
        help="ones: scalar targets; input: any shape, the targets' adjoints become graph inputs; "
             "auto (default): whichever fits the target",
    )  # fmt: skip
    group.add_argument(
        "--checkpoint", action="append", default=[], metavar="auto|SIZE|MARK",
        help="recompute instead of keep: auto, a memory budget such as 512MB, or marks "
             "[start:|end:]NAME[@READER]",
    )  # fmt: skip
