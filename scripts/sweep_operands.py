"""Runs commands on single-node models of every opset whose operands do not fit their operator.

    python scripts/sweep_operands.py [--minutes N] [--count N] [--seed S] [--commands grad,...]
    [--save DIR]

Each mutant is a case of the ONNX backend suite, at a random opset, with operands swapped, left out,
of another dtype or rank, with constants in place of inputs, and with a wrong declaration of the
output.
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

from tests.hostile.operands import Seed, mutant, single_nodes  # noqa: E402
from tests.hostile.running import COMMANDS, Job, sweep  # noqa: E402


def main() -> int:
    """Returns 1 if something failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--count", type=int, default=10_000, help="of mutants")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", metavar="OP")
    parser.add_argument(
        "--commands", default="grad", metavar="LIST", help=f"of {', '.join(COMMANDS)}"
    )
    parser.add_argument("--save", type=Path, metavar="DIR")
    args = parser.parse_args()
    rng, started = random.Random(args.seed), time.monotonic()
    nodes = [s for s in single_nodes() if args.only in ("", s.op)]
    commands, runs = args.commands.split(","), 0

    def jobs() -> Iterator[Job]:
        nonlocal runs
        for i in range(args.count):
            if time.monotonic() - started > 60 * args.minutes:
                return
            seed: Seed = rng.choice(nodes)
            runs += 1
            yield Job(f"{seed.name} {i}", mutant(rng, seed), (commands[i % len(commands)],))

    failures = 0
    for job, command, wrong in sweep(jobs()):
        failures += 1
        print(f"{job.title} | {command} | {wrong[:400]}", flush=True)
        if args.save is not None:
            args.save.mkdir(parents=True, exist_ok=True)
            (args.save / f"{job.title.replace(' ', '_')}.onnx").write_bytes(job.content)
    seconds = time.monotonic() - started
    print(
        f"{runs} mutants of {len(nodes)} nodes, seed {args.seed}: {failures} failures, "
        f"{seconds:.0f} s"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
