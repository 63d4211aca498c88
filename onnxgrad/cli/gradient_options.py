"""Options of `grad` and `check-grad`: which gradient is asked for."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from onnxgrad.grad.checkpoint import Checkpoint

_SAMPLE = 8  # check-grad looks at all
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
        "--seed", choices=("ones", "input"), default="ones", dest="adjoint",
        help="ones (default): scalar targets; input: any shape, the targets' adjoints become graph "
             "inputs",
    )  # fmt: skip
    group.add_argument(
        "--checkpoint", action="append", default=[], metavar="auto|SIZE|MARK",
        help="recompute instead of keep: auto, a memory budget such as 512MB, or marks "
             "[start:|end:]NAME[@READER]",
    )  # fmt: skip


def gradient_options(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `gradient` that the options say."""
    return {
        "wrt": args.wrt,
        "target": args.target,
        "stop": args.stop,
        "checkpoint": checkpoint_of(args.checkpoint),
    }


def checkpoint_of(marks: list[str]) -> Any:
    """What the values of --checkpoint say."""
    if not marks:
        return None
    if len(marks) == 1 and (marks[0] == "auto" or marks[0][:1].isdigit()):
        return marks[0]
    found: dict[str, list[Any]] = {"start": [], "end": []}
    for mark in marks:
        kind, colon, rest = mark.partition(":")
        if not colon or kind not in found:
            kind, rest = "start", mark
        name, at, reader = rest.partition("@")
        found[kind].append((name, reader) if at else name)
    return Checkpoint(found["start"], found["end"])


def spread(names: Sequence[str]) -> list[str]:
    """What a proof looks at of the names: a few, evenly spread, the first and last among them."""
    if len(names) <= _SAMPLE:
        return list(names)
    return [names[round(i * (len(names) - 1) / (_SAMPLE - 1))] for i in range(_SAMPLE)]
