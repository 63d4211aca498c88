"""`--tune` and its kin."""

from __future__ import annotations

import argparse

from onnxgrad.cli.usage.kinds import positive
from onnxgrad.vocabulary import TUNE_FILE, TUNE_SECONDS


def add_tuning(parser: argparse.ArgumentParser) -> None:
    """The options."""
    group = parser.add_argument_group("tuning")
    group.add_argument(
        "--tune", action="store_true", help="measure in onnxruntime, on the provider, threads and "
        "inputs of the proof, which rewrites pay, and keep those that win beyond the noise",
    )  # fmt: skip
    group.add_argument(
        "--tune-time", type=positive, metavar="SECONDS",
        help=f"for measuring, beside --timeout (default: {TUNE_SECONDS:g})",
    )  # fmt: skip
    group.add_argument(
        "--tune-file", metavar="FILE",
        help=f"where the decisions go (default: {TUNE_FILE} beside OUT)",
    )  # fmt: skip
    group.add_argument(
        "--tune-from", metavar="FILE", help="the decisions of an earlier --tune, again: the same "
        "bytes, nothing measured",
    )  # fmt: skip
