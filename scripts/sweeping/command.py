"""The command line that the sweeps over random models share."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any


def command(sweep: Callable[..., tuple[Mapping[str, int], Sequence[Any]]], doc: str) -> int:
    """Run `sweep(seed, models=, minutes=, save=)`, print its counts; 1 where it found failures."""
    parser = argparse.ArgumentParser(description=doc.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--models", type=int, default=1_000_000, help="stop after so many")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--save", type=Path, default=Path("failures"), help="folder for failures made small"
    )
    given = parser.parse_args()
    counts, failures = sweep(
        given.seed, models=given.models, minutes=given.minutes, save=given.save
    )
    print(", ".join(f"{n} {what}" for what, n in counts.items()))
    return 1 if failures else 0
