"""Transforms the graphs of other projects' test suites, and compares each result with the graph on
inputs of its own, without the proof's code:

    python scripts/sweep_suites.py FOLDER ... [--transform gradient] [--sample N] [--write NAME]

A folder is a project: `.onnx` files, and a file COMMIT if its commit is known. Equal files count
once. A graph is runnable if onnxruntime runs it, without optimisations, on one of the inputs here:
normal, large, negative and zero values, with several ranges of integers, at sizes 3, 1, 5 and 0 of
the open dimensions. Gradients are compared with central differences of onnxruntime's float32
results in random directions, at points where two widths of the difference agree.

Prints each outcome that is not equal (--quiet: neither refusals), and the counts by project; the
exit code is 1 if a result is wrong, or a transform raised an unexpected error or took too long.
"""

from __future__ import annotations

import argparse
import hashlib
import signal
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import onnx
from onnx import ModelProto
from onnx.checker import ValidationError

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import onnxgrad  # noqa: E402  # runs from a checkout
from onnxgrad.errors import InputError, NotProved  # noqa: E402
from onnxgrad.verify.running.installed import runtime_limits  # noqa: E402
from scripts.records import write_record  # noqa: E402
from scripts.sweeping.own_checks import (  # noqa: E402
    cases,
    compared,
    differentiated,
    mapped,
    opened,
)

FAULTS, FINE = ("wrong", "error", "time-out"), ("equal", "no case")
OUTCOMES = ("equal", *FAULTS, "refused", "not proved", "no case", "not runnable")
SECONDS = 240


def optimized(model: ModelProto, seconds: float) -> str:
    """Returns the first difference of the optimised model."""
    return compared(model, onnxgrad.optimize(model, timeout=seconds))


def converted(model: ModelProto, seconds: float) -> str:
    """Returns the first difference of the model at the newest opset that onnxruntime loads."""
    newest = runtime_limits()[1]
    return compared(model, onnxgrad.convert_opset(model, newest, timeout=seconds))


TRANSFORMS: Mapping[str, Callable[[ModelProto, float], str | None]] = {
    "optimize": optimized,
    "convert-opset": converted,
    "gradient": differentiated,
    "vmap": mapped,
    "open-batch": opened,
}


def _ring(*_: Any) -> None:
    raise TimeoutError


def judged(transform: str, path: Path) -> tuple[str, str]:
    """Returns the outcome of one file and the words about it."""
    signal.signal(signal.SIGALRM, _ring)
    signal.alarm(SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                model = onnx.load(path)
                next(cases(model))
            except (NotProved, InputError, StopIteration, ValueError, ValidationError) as error:
                return "not runnable", str(error)
            wrong = TRANSFORMS[transform](model, SECONDS / 2)
            return ("no case", "") if wrong is None else ("wrong" if wrong else "equal", wrong)
    except InputError as error:
        return "refused", str(error)
    except NotProved as error:
        return "not proved", str(error)
    except TimeoutError:
        return "time-out", f"over {SECONDS} s"
    except Exception as error:  # noqa: BLE001  # a crash is a finding
        return "error", f"{type(error).__name__}: {error}"
    finally:
        signal.alarm(0)


class Workers(threading.local):
    """A process per thread that judges files. Another takes its place if it dies."""

    def __init__(self) -> None:
        self.pool = ProcessPoolExecutor(1)

    def judge(self, transform: str, path: Path) -> tuple[str, str]:
        try:
            return self.pool.submit(judged, transform, path).result()
        except BrokenExecutor:
            self.pool = ProcessPoolExecutor(1)
            return "error", "the process died"


def main() -> int:
    """Returns 1 if something failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("folder", nargs="+", type=Path)
    parser.add_argument("--transform", choices=TRANSFORMS, default="optimize")
    parser.add_argument("--sample", type=int, metavar="N", help="of each folder (default: all)")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="graphs at once")
    parser.add_argument("--quiet", action="store_true", help="print failures only")
    parser.add_argument("--write", metavar="NAME", help="write a record of this name")
    args = parser.parse_args()
    seen, rows, total = set[bytes](), [], Counter[str]()
    for folder in args.folder:
        files = {hashlib.sha256(p.read_bytes()).digest(): p for p in sorted(folder.rglob("*.onnx"))}
        todo = [path for key, path in files.items() if key not in seen]
        seen |= files.keys()
        if args.sample is not None and len(todo) > args.sample:
            todo = Random(0).sample(todo, args.sample)
        counts = Counter[str]()
        with ThreadPoolExecutor(args.jobs) as pool:
            outcomes = pool.map(partial(Workers().judge, args.transform), todo)
            for path, (outcome, words) in zip(todo, outcomes, strict=True):
                counts[outcome] += 1
                if outcome in FAULTS or not (outcome in FINE or args.quiet):
                    short = " ".join(words.split())[:400]
                    print(f"{folder.name} | {path.stem} | {outcome} | {short}", flush=True)
        total += counts
        mark = folder / "COMMIT"
        commit = mark.read_text(encoding="utf-8").strip() if mark.is_file() else ""
        cells = [folder.name, commit, str(len(todo)), *(str(counts[o]) for o in OUTCOMES)]
        rows.append(f"| {' | '.join(cells)} |")
        print(rows[-1], flush=True)
    head = ["project", "commit", "graphs", *OUTCOMES]
    table = [f"| {' | '.join(head)} |", "|" + "---|" * len(head), *rows]
    table.append(f"| all | | {total.total()} | {' | '.join(str(total[o]) for o in OUTCOMES)} |")
    print("\n".join(table))
    if args.write:
        write_record(args.write, table)
    return 1 if sum(total[o] for o in FAULTS) else 0


if __name__ == "__main__":
    sys.exit(main())
