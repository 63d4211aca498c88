"""`--tune` and its kin: what the options of tuning say, and where its decisions go."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onnxgrad.cli.output import Output
from onnxgrad.errors import InputError
from onnxgrad.jobs.tuning.record import write
from onnxgrad.vocabulary import TUNE_FILE, TUNE_SECONDS


def tuning_of(args: argparse.Namespace) -> Path | float | None:
    """Return the value of `tune` of `optimize`. Raises InputError for flags that do not go
    together.
    """
    if args.tune_from is not None:
        if args.tune or args.tune_time is not None or args.tune_file is not None:
            raise InputError("--tune-from decides as it was decided: give no other --tune option")
        return Path(args.tune_from)
    if not args.tune and (args.tune_time is not None or args.tune_file is not None):
        raise InputError("--tune-time and --tune-file are about --tune: give that as well")
    return args.tune_time or TUNE_SECONDS if args.tune else None


def keep_decisions(
    args: argparse.Namespace, target: Path | None, data: Mapping[str, Any] | None, out: Output
) -> None:
    """Write the decisions where they are wanted: into a file of its own for each model of
    --out-dir, nowhere for stdout.
    """
    if data is None or not args.tune:
        return
    if args.tune_file is not None:
        file = Path(args.tune_file)
    elif target is not None and str(target) != "-":
        name = f"{target.stem}.{TUNE_FILE}" if args.out_dir is not None else TUNE_FILE
        file = target.with_name(name)
    else:
        return
    write(file, data)
    out.wrote(file)
