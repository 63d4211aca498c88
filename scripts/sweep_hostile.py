"""Runs every command on hostile files and options: none may crash, hang, leak, or fail without a
useful error.

    python scripts/sweep_hostile.py [--only TEXT] [--commands inspect,verify,...]
    python scripts/sweep_hostile.py --edits 2000 [--start 0] [--commands python]

The models are in tests/hostile/models.py, the edits in tests/hostile/structure.py. Prints each
failure, and writes its file to --save.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.hostile.running import (  # noqa: E402
    COMMANDS,
    FUNCTIONS,
    IN_PYTHON,
    QUICK,
    Job,
    every,
    sweep,
)
from tests.hostile.structure import mutants  # noqa: E402


def main() -> int:
    """Returns 1 if something failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="of the names")
    parser.add_argument(
        "--commands",
        default=",".join(COMMANDS),
        metavar="LIST",
        help="quick: all without a proof; python: the functions",
    )
    parser.add_argument("--edits", type=int, default=0, metavar="N", help="edit models N times")
    parser.add_argument("--start", type=int, default=0, metavar="N", help="the first edit")
    parser.add_argument("--save", type=Path, metavar="DIR", help="where to put files that fail")
    args = parser.parse_args()
    python = [IN_PYTHON + name for name in FUNCTIONS]
    groups = {"quick": list(QUICK), "python": python}
    commands = groups.get(args.commands) or args.commands.split(",")
    numbers = range(args.start, args.start + args.edits)
    made = (Job(title, data, tuple(commands)) for title, data in mutants(numbers))
    jobs = [job for job in (made if args.edits else every(commands)) if args.only in job.title]
    started, failures = time.monotonic(), 0
    for job, command, wrong in sweep(jobs):
        failures += 1
        print(f"{job.title} | {command} | {wrong}", flush=True)
        if args.save is not None:
            args.save.mkdir(parents=True, exist_ok=True)
            (args.save / f"{re.sub('[^A-Za-z0-9]+', '_', job.title)[:80]}.onnx").write_bytes(
                job.content
            )
    runs = sum(len(job.commands) or 1 for job in jobs)
    print(
        f"{len(jobs)} files and lines of options, {runs} runs, {failures} failures, "
        f"{time.monotonic() - started:.0f} s"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
