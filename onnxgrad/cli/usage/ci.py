"""What can be said to `onnxgrad ci`."""

from __future__ import annotations

import argparse

from onnxgrad.cli.usage.groups.running import add_custom_ops
from onnxgrad.cli.usage.kinds import natural

EXAMPLES = (
    ("ci", "every model of onnxgrad.toml, held to what it requires"),
    ("ci --update --jobs 2", "and write the lock that it is compared with"),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument(
        "config", nargs="?", metavar="CONFIG", help="the recipe (default: onnxgrad.toml, or "
        "[tool.onnxgrad] of pyproject.toml, in this folder)",
    )  # fmt: skip
    parser.add_argument(
        "--update", action="store_true", help="write the lock anew, where every model passes"
    )
    parser.add_argument(
        "--jobs", type=natural, default=1, metavar="N", help="models at once (default: 1)"
    )
    parser.add_argument(
        "--keep-going", action="store_true", help="look at all models, also after one that fails"
    )
    add_custom_ops(parser)
    parser.add_argument(
        "--schema", action="store_true", help="print the JSON schema of what --json writes"
    )
