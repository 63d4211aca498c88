"""What the options of `grad` and `check-grad` say: which gradient is asked for."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from onnxgrad.grad.checkpointing.recomputation import Checkpoint

_SAMPLE = 8  # check-grad looks at all


def gradient_options(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `gradient` that the options say."""
    return {
        "wrt": args.wrt,
        "target": args.target,
        "stop": args.stop,
        "checkpoint": checkpoint_of(args.checkpoint),
    }


def checkpoint_of(marks: Sequence[str]) -> Any:
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
