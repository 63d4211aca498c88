"""What can be said to `onnxgrad help`."""

from __future__ import annotations

import argparse

EXAMPLES = (
    ("help", "the topics"),
    ("help gradients", "one of them; of a command its --help"),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument(
        "topic", nargs="?", metavar="TOPIC", help="a topic or a command; default: list the topics"
    )
