"""How long whole commands take: `python scripts/bench_commands.py [--rounds N] [--write] [MODEL
...]`.

`onnxgrad optimize` with its proof and with --no-verify, onnxsim and onnxslim without a check, and
onnxscript's optimizer between reading and writing. The commands take turns; the numbers are medians
of wall time and of CPU time, children included. Options set the paths of commands that are not
beside this Python; `--before` is another onnxgrad whose CPU time is compared. A command that fails
has no time.
"""

from __future__ import annotations

import argparse
import math
import os
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from scripts.bench_optimize import MODELS  # noqa: E402  # runs from a checkout
from scripts.records import need_byte_code, write_record  # noqa: E402

BESIDE = Path(sys.executable).parent
PROVED, UNPROVED, BEFORE = "onnxgrad", "onnxgrad --no-verify", "before"
_ONNXSCRIPT = (
    "import sys; from onnxscript import ir, optimizer; m = ir.load(sys.argv[1]); "
    "optimizer.optimize(m); ir.save(m, sys.argv[2])"
)
Taken = tuple[float, float]  # wall and CPU seconds


def commands(options: argparse.Namespace) -> dict[str, list[str]]:
    """Returns each command's words, without its model and its result."""
    ours = [*shlex.split(options.onnxgrad), "optimize", "-q"]
    found = {
        PROVED: ours,
        UNPROVED: [*ours, "--no-verify"],
        "onnxsim": [*shlex.split(options.onnxsim)],
        "onnxslim": [*shlex.split(options.onnxslim)],
        "onnxscript": [*shlex.split(options.onnxscript), "-c", _ONNXSCRIPT],
    }
    if options.before:
        found[BEFORE] = [*shlex.split(options.before), "optimize", "-q"]
    return found


def run(name: str, words: Sequence[str], model: Path, result: Path) -> Taken | None:
    """Runs a command and returns its times, or None if it fails."""
    more = [str(result), "0"] if name == "onnxsim" else [str(result)]  # 0: it checks nothing
    if name in (PROVED, UNPROVED, BEFORE):
        more = ["-o", str(result)]
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run([*words, str(model), *more], capture_output=True, timeout=600)
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return (wall, cpu) if done.returncode == 0 and result.exists() else None


def measured(
    model: Path, found: Mapping[str, Sequence[str]], rounds: int
) -> dict[str, Taken | None]:
    """Returns the median times of every command; the commands run in turns."""
    taken: dict[str, list[Taken]] = {name: [] for name in found}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            for name, words in found.items():
                result = Path(folder) / "result.onnx"
                result.unlink(missing_ok=True)
                seconds = run(name, words, model, result)
                if seconds is not None:
                    taken[name].append(seconds)
    return {name: _medians(v) if v else None for name, v in taken.items()}


def _medians(taken: Sequence[Taken]) -> Taken:
    wall, cpu = (statistics.median(t[kind] for t in taken) for kind in (0, 1))
    return wall, cpu


def ratios(rows: Mapping[str, Mapping[str, Taken | None]], name: str, kind: int) -> list[float]:
    """Returns a command's time over the fastest peer's, per model; `kind`: 0 wall, 1 CPU."""
    found = []
    for row in rows.values():
        peers = [t[kind] for n, t in row.items() if t and n not in (PROVED, UNPROVED, BEFORE)]
        own = row[name]
        if own is not None and peers:
            found.append(own[kind] / min(peers))
    return found


def report(rows: Mapping[str, Mapping[str, Taken | None]], rounds: int) -> list[str]:
    """Returns the record: a table and the geometric means of the ratios."""
    names = list(next(iter(rows.values())))
    lines = [
        f"Whole commands (`scripts/bench_commands.py`): wall (CPU) seconds, medians of {rounds} "
        f"rounds in turns, load of the machine {os.getloadavg()[0]:.1f}. The peers check nothing.",
        "",
        f"| model | {' | '.join(names)} |",
        f"|---|{'---|' * len(names)}",
    ]
    for model, row in rows.items():
        cells = ["-" if t is None else f"{t[0]:.2f} ({t[1]:.2f})" for t in row.values()]
        lines.append(f"| {model} | {' | '.join(cells)} |")
    lines.append("")
    for name in (PROVED, UNPROVED):
        wall, cpu = ratios(rows, name, 0), ratios(rows, name, 1)
        if not wall:
            continue
        lines.append(
            f"`{name}` over the fastest peer: wall {statistics.geometric_mean(wall):.2f} "
            f"(worst {max(wall):.2f}), CPU {statistics.geometric_mean(cpu):.2f} "
            f"(worst {max(cpu):.2f})."
        )
    pairs = [(r[PROVED], r.get(BEFORE)) for r in rows.values()]
    own = [math.log(a[1] / b[1]) for a, b in pairs if a and b]
    if own:
        lines.append(f"CPU over that of before: {math.exp(statistics.mean(own)):.2f}.")
    return lines


def main() -> None:
    need_byte_code()
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true")
    for tool in ("onnxgrad", "onnxsim", "onnxslim"):
        parser.add_argument(f"--{tool}", default=str(BESIDE / tool))
    parser.add_argument("--onnxscript", default=sys.executable, help="a Python that has it")
    parser.add_argument("--before", default="")
    options = parser.parse_args()
    rows = {}
    for name in options.models:
        rows[name] = measured(ROOT / "models" / name, commands(options), options.rounds)
        print(name, rows[name], flush=True)
    lines = report(rows, options.rounds)
    print("\n".join(lines))
    if options.write:
        write_record("commands", lines)


if __name__ == "__main__":
    main()
