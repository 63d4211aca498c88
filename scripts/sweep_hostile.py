"""Runs every command on hostile files and options: none may crash, hang, leak, or fail without a
useful error.

    python scripts/sweep_hostile.py [--only TEXT] [--commands inspect,verify,...]

The models are in tests/hostile/models.py. Prints each failure, and writes its file to --save.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.hostile.running import COMMANDS, QUICK, every, sweep  # noqa: E402


def main() -> int:
    """Returns 1 if something failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="of the names")
    parser.add_argument(
        "--commands", default=",".join(COMMANDS), metavar="LIST", help="quick: all without a proof"
    )
    parser.add_argument("--save", type=Path, metavar="DIR", help="where to put files that fail")
    args = parser.parse_args()
    commands = list(QUICK) if args.commands == "quick" else args.commands.split(",")
    jobs = [job for job in every(commands) if args.only in job.title]
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
