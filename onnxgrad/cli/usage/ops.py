"""What can be said to `onnxgrad ops`."""

from __future__ import annotations

import argparse

EXAMPLES = (
    (
        "ops",
        "every operator",
    ),
    (
        "ops MaxPool Resize",
        "two of them, with what holds at kinks",
    ),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("name", nargs="*", metavar="NAME", help="show only these operators")
    parser.add_argument(
        "--markdown", action="store_true", help="the whole table as a Markdown page"
    )
