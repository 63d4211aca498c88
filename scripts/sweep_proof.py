"""Checks that the proof finds every mutant of a model that changes an output.

    python scripts/sweep_proof.py --mutants 500 --seed 0

Changes of outputs are measured in float64 on feeds other than the proof's. The proof must find a
mutant that changes an output by 1e-7 of max|y| or more. If a weight was recomputed, the limit is 10
times the stated tolerance. Prints the counts and every miss; exit code 1 if there is one.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import onnx
from onnx import ModelProto

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from onnxgrad.errors import OnnxgradError  # noqa: E402  # runs from a checkout
from onnxgrad.verify import Report, feeds_for, open_session, verify  # noqa: E402
from onnxgrad.verify.compare import compare  # noqa: E402
from onnxgrad.verify.feeds.dims import dim_plans  # noqa: E402
from onnxgrad.verify.feeds.edge_cases import Edges  # noqa: E402
from onnxgrad.verify.reference.evaluate import Reference  # noqa: E402
from scripts.sweeping.models import random_model  # noqa: E402
from scripts.sweeping.mutants import Mutant, mutant  # noqa: E402

REAL = ("bert", "clip", "gpt2", "lstmcell", "t5", "vit")
_PER_BASE = 5
_SEEDS = (101, 102, 103)
_SAME = 1e-7
_COMPUTED = 10.0


@dataclass
class Base:
    """A model to mutate, and its float64 results on feeds that it takes."""

    name: str
    model: ModelProto
    feeds: list[dict[str, Any]]
    results: list[dict[str, Any]]

    @classmethod
    def of(cls, name: str, model: ModelProto, seeds: Sequence[int]) -> Base | None:
        """Returns None if the model runs on no feeds, or has random operators."""
        try:
            session, reference = open_session(model, optimize=False), Reference(model)
            plans = dim_plans(model)[:2]
        except OnnxgradError:
            return None
        made = cls(name, model, [], [])
        for plan in plans:
            for seed in seeds:
                for edges in (None, Edges(), Edges(sizes=False)):
                    try:
                        feeds = feeds_for(model, seed=seed, dims=plan, edges=edges)
                        session.run(feeds)
                        made.results.append(reference.run(feeds))
                        made.feeds.append(feeds)
                    except OnnxgradError:
                        continue
        if not made.feeds or any(
            d.rel for d in compare(made.results[0], reference.run(made.feeds[0]), 0.0)
        ):
            return None
        return made

    def moved(self, other: ModelProto) -> dict[str, float]:
        """Returns the largest difference of each output from another model's, or an empty dict if
        that model does not run.
        """
        try:
            reference = Reference(other)
            found: dict[str, float] = {}
            for feeds, wanted in zip(self.feeds, self.results):
                for d in compare(wanted, reference.run(feeds), 0.0):
                    found[d.output] = max(found.get(d.output, 0.0), d.rel)
        except OnnxgradError:
            return {}
        return found


def bases(rng: Random, *, real: bool) -> Iterator[tuple[str, ModelProto]]:
    """Yields random models and, between them, real ones."""
    number = 0
    while True:
        if real and number % 4 == 3:
            name = rng.choice(REAL)
            yield name, onnx.load(ROOT / "models" / f"{name}.onnx")
        else:
            yield f"random {number}", random_model(rng)
        number += 1


def missed(found: dict[str, float], report: Report, case: Mutant) -> str:
    """Returns the output that changed by more than an "equal" may miss, or an empty text."""
    if report.verdict != "equal":
        return ""
    stated: dict[str, float] = {}
    for d in report.differences:
        stated[d.output] = max(stated.get(d.output, 0.0), d.tolerance)
    exact = report.checks["float64"].worst
    for output, by in found.items():
        allowed = _COMPUTED * stated.get(output, 0.0) if case.computed else _SAME
        if by > allowed:
            return (
                f"{output} moves by {by:.1e}, allowed {allowed:.1e}; {report.summary}; float64: "
                f"{exact}"
            )
    return ""


def judged(base: Base, model: ModelProto, case: Mutant) -> tuple[str, str]:
    """Returns the verdict on a mutant, as a row of the table, and the missed output or an empty
    text.
    """
    moved = base.moved(case.model)
    try:
        report = verify(model, case.model, weights="rounded" if case.computed else "same")
    except OnnxgradError as error:
        return f"not judged ({type(error).__name__})", ""
    if report.verdict == "not proved":
        return "not proved", ""
    kind = "of computed weights" if case.computed else "of same weights"
    miss = missed(moved, report, case)
    if miss:
        return f"MISSED {kind}", miss
    if report.verdict == "different":
        return f"caught {kind}" if moved else "caught, do not run in float64", ""
    return "equal, move less" if any(moved.values()) else "equal, move nothing", ""


def sweep(
    seed: int, *, mutants: int, minutes: float = 1e9, real: bool = True
) -> tuple[Counter[str], list[str]]:
    """Returns the counts, and one line for each miss."""
    counts: Counter[str] = Counter()
    misses: list[str] = []
    deadline = time.monotonic() + 60 * minutes
    rng = Random(seed)
    for name, model in bases(rng, real=real):
        if counts["mutants"] >= mutants or time.monotonic() > deadline:
            break
        base = Base.of(name, model, _SEEDS[:1] if name in REAL else _SEEDS)
        if base is None:
            counts["bases left out"] += 1
            continue
        for _ in range(_PER_BASE):
            case = mutant(rng, model)
            if case is None:
                continue
            counts["mutants"] += 1
            outcome, miss = judged(base, model, case)
            counts[outcome] += 1
            if miss:
                misses.append(f"seed {seed}, {name}, {case.what}: {miss}")
                print(misses[-1], flush=True)
    return counts, misses


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--mutants", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    started = time.monotonic()
    counts, misses = sweep(given.seed, mutants=given.mutants, minutes=given.minutes)
    print(
        ", ".join(f"{n} {what}" for what, n in counts.most_common()),
        f"in {(time.monotonic() - started) / 60:.1f} min",
    )
    return 1 if misses else 0


if __name__ == "__main__":
    sys.exit(main())
