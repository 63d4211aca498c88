"""The command line and the loop that the sweeps over random models share."""

from __future__ import annotations

import argparse
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any


class Tally:
    """The counts of a sweep, and one line for each failure, printed at once."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []

    def fail(self, where: str, words: str) -> str:
        """Adds a failure and returns its line."""
        self.counts["failures"] += 1
        self.failures.append(f"seed {self.seed}, {where}: {words}")
        print(self.failures[-1], flush=True)
        return self.failures[-1]


def sweep_models(
    judge: Callable[[int, Tally], None], seed: int, models: int, minutes: float
) -> tuple[Counter[str], list[str]]:
    """Judges up to `models` models by number, without warnings, until `minutes` have passed.

    Returns the counts and the lines of the failures; whatever `judge` raises is one of them.
    """
    tally = Tally(seed)
    deadline = time.monotonic() + 60 * minutes
    for number in range(models):
        if time.monotonic() > deadline:
            break
        tally.counts["models"] += 1
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                judge(number, tally)
        except Exception as error:  # noqa: BLE001  # a crash is a finding
            tally.fail(f"model {number}", f"crash: {type(error).__name__}: {error}")
    tally.counts["failures"] += 0  # also printed if it is 0
    return tally.counts, tally.failures


def command(sweep: Callable[..., tuple[Mapping[str, int], Sequence[Any]]], doc: str) -> int:
    """Runs `sweep(seed, models=, minutes=, save=)` and prints counts. Returns 1 for failures."""
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
