"""Runs every command on randomly damaged small models: no crash, no hang, no internal error.

    python scripts/sweep_bytes.py [--minutes N] [--seed S] [--count N] [--prove] [--save DIR]

Each mutant is a small model with bytes flipped, cut out or doubled, or with numbers made extreme.
Failures are shrunk to the fewest edits that still fail, and saved.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.hostile.damage import Edit, edits, mutant  # noqa: E402
from tests.hostile.running import PROVING, QUICK, Job, sweep  # noqa: E402
from tests.hostile.seeds import seeds  # noqa: E402


def shrink(data: bytes, made: list[Edit], command: str) -> list[Edit]:
    """Returns the fewest of the edits that still fail."""
    kept = list(made)
    for edit in made:
        fewer = [e for e in kept if e is not edit]
        if fewer and list(sweep([Job("shrunk", mutant(data, fewer), (command,))])):
            kept = fewer
    return kept


def main() -> int:
    """Returns 1 if something failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--count", type=int, default=10_000, help="of mutants")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--prove", action="store_true", help="the commands that run the models, too"
    )
    parser.add_argument("--save", type=Path, metavar="DIR")
    args = parser.parse_args()
    rng, started = random.Random(args.seed), time.monotonic()
    models = dict(seeds())
    commands = list(QUICK | PROVING if args.prove else QUICK)
    origin: dict[str, tuple[bytes, list[Edit]]] = {}
    runs = 0

    def jobs() -> Iterator[Job]:
        nonlocal runs
        for i in range(args.count):
            if time.monotonic() - started > 60 * args.minutes:
                return
            name = rng.choice(sorted(models))
            made = edits(rng, models[name])
            title = f"{name} {i}"
            origin[title] = models[name], made
            runs += 1
            # one command per mutant, in turns: mutants are cheap, and their kinds many
            yield Job(title, mutant(models[name], made), (commands[i % len(commands)],))

    failures = 0
    for job, command, wrong in sweep(jobs()):
        failures += 1
        print(f"{job.title} | {command} | {wrong[:400]}", flush=True)
        if args.save is not None:
            args.save.mkdir(parents=True, exist_ok=True)
            data, made = origin[job.title]
            (args.save / f"{job.title.replace(' ', '_')}.onnx").write_bytes(
                mutant(data, shrink(data, made, command))
            )
    seconds = time.monotonic() - started
    print(
        f"{runs} mutants of {len(models)} models, seed {args.seed}: {failures} failures, "
        f"{seconds:.0f} s"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
