"""What can be said to `onnxgrad doctor`."""

from __future__ import annotations

import argparse

EXAMPLES = (
    (
        "doctor",
        "versions, and which providers run",
    ),
    (
        "doctor --json - | python -m json.tool",
        "for machines",
    ),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """This command has no options of its own."""
