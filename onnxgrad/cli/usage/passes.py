"""What can be said to `onnxgrad passes`."""

from __future__ import annotations

import argparse

EXAMPLES = (
    (
        "passes",
        "all of them, and the presets",
    ),
    (
        "passes default fold-constant",
        "a preset with the reason for each place, and a pass",
    ),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("name", nargs="*", metavar="NAME", help="show only these passes or presets")
