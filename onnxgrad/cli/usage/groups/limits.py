"""`--timeout` and `--max-memory`."""

from __future__ import annotations

import argparse

from onnxgrad.cli.usage.kinds import memory, positive
from onnxgrad.limits import SECONDS


def add_limits(parser: argparse._ActionsContainer) -> None:
    """The options."""
    parser.add_argument(
        "--timeout", type=positive, default=SECONDS, metavar="SECONDS",
        help=f"for all work on one model (default: {SECONDS:g})",
    )  # fmt: skip
    parser.add_argument(
        "--max-memory", type=memory, metavar="SIZE",
        help="for each process that works on it, such as 4GB (default: half of what the machine or "
             "its cgroup has)",
    )  # fmt: skip
