"""The parser with the options of every command, and what is said of an error: as little to import
as `--help` needs.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from onnxgrad.errors import InputError
from onnxgrad.report.parts import LONGEST, clean


class Parser(argparse.ArgumentParser):
    """argparse whose complaints are one line, like every other error."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message} (see {self.prog} --help)")


def wants(words: Sequence[str], short: str, long: str) -> bool:
    """Whether a flag is among the words: needed when the words cannot be parsed."""
    return any(w == long or (w.startswith(short) and not w.startswith("--")) for w in words)


def add_common(parser: argparse.ArgumentParser) -> None:
    """Options that every command has."""
    group = parser.add_argument_group("output")
    group.add_argument(
        "--json",
        metavar="FILE",
        help="write the result as JSON; - is stdout, in place of the tables",
    )
    group.add_argument(
        "--color", choices=("auto", "always", "never"), default="auto", help="default: auto"
    )
    group.add_argument("-q", "--quiet", action="store_true", help="print nothing but errors")
    group.add_argument(
        "-v", "--verbose", action="store_true", help="print more; a traceback with errors"
    )
    parser.add_argument(
        "--plugin", action="append", default=[], metavar="FILE.py",
        help="a Python file with rules, families, passes or gradient rules of your own; it runs "
             "with your rights",
    )  # fmt: skip


def complaint(text: str) -> str:
    """What is wrong, as the one line that it is."""
    line = f"onnxgrad: {' '.join(clean(text).split())}"
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}..."
