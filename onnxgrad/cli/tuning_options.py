"""`--tune` and its kin: what the options of tuning say, and where its decisions go."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onnxgrad.cli.limit_options import seconds
from onnxgrad.errors import InputError
from onnxgrad.pipeline.tuning.measure import SECONDS
from onnxgrad.pipeline.tuning.record import NAME, write
from onnxgrad.report.tuning import Tuning


def add_tuning(parser: argparse.ArgumentParser) -> None:
    """The options."""
    group = parser.add_argument_group("tuning")
    group.add_argument(
        "--tune", action="store_true", help="measure in onnxruntime, on the provider, threads and "
        "inputs of the proof, which rewrites pay, and keep those that win beyond the noise",
    )  # fmt: skip
    group.add_argument(
        "--tune-time", type=seconds, metavar="SECONDS",
        help=f"for measuring, beside --timeout (default: {SECONDS:g})",
    )  # fmt: skip
    group.add_argument(
        "--tune-file", metavar="FILE",
        help=f"where the decisions go (default: {NAME} beside OUT)",
    )  # fmt: skip
    group.add_argument(
        "--tune-from", metavar="FILE", help="the decisions of an earlier --tune, again: the same "
        "bytes, nothing measured",
    )  # fmt: skip


def tuning_of(args: argparse.Namespace) -> Tuning | None:
    """What the options ask for. Raises InputError for options that do not go together."""
    if args.tune_from is not None:
        if args.tune or args.tune_time is not None or args.tune_file is not None:
            raise InputError("--tune-from decides as it was decided: give no other --tune option")
        return Tuning.of(Path(args.tune_from))
    if not args.tune and (args.tune_time is not None or args.tune_file is not None):
        raise InputError("--tune-time and --tune-file are about --tune: give that as well")
    return Tuning.of(args.tune and (args.tune_time or SECONDS))


def keep_decisions(
    args: argparse.Namespace, target: Path | None, data: Mapping[str, Any] | None
) -> None:
    """Write the decisions where they are wanted: into a file of its own for each model of
    --out-dir, nowhere for stdout.
    """
    if data is None or not args.tune:
        return
    if args.tune_file is not None:
        write(Path(args.tune_file), data)
    elif target is not None and str(target) != "-":
        name = f"{target.stem}.{NAME}" if args.out_dir is not None else NAME
        write(target.with_name(name), data)
