"""Mutation testing: small changes of the program, each of which the default tests should notice.

    python scripts/mutants.py learn --reach reach.json            # once: which tests enter which function
    python scripts/mutants.py run --reach reach.json --out mutants.jsonl --count 200 --seed 4
    python scripts/mutants.py report --out mutants.jsonl          # counts, and every survivor

The changes (`scripts/mutation/sites.py`: comparisons, operators, constants, and/or, not, dropped guards, swapped
arguments) are drawn by chance over all of FOLDERS. Each is made in a copy of the tree; then the default tests that
enter the changed function run, the likeliest first, until one fails. A run that goes on where it stopped skips what
--out holds already. Needs a POSIX system and Python 3.11.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.mutation import runner  # noqa: E402
from scripts.mutation.sites import Site, choose, sites  # noqa: E402

FOLDERS = ["onnxgrad/passes", "onnxgrad/grad/rules", "onnxgrad/ir", "onnxgrad/verify"]
# imported once, before the forks
_HEAVY = [
    "numpy",
    "onnx",
    "onnx.reference",
    "onnx_graphsurgeon",
    "onnx_ir",
    "hypothesis",
    "rich.console",
    "pytest_timeout",
]
_FIRST = (12, 60)  # tests of the first batches
_LIMIT = 300.0  # seconds for one batch


def learn(reach: Path, tests: list[str]) -> int:
    """Run the default suite in a copy of the tree and note who enters what."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = runner.copied(ROOT, Path(folder).resolve())
        os.chdir(tree)
        sys.path[0] = str(tree)
        plugin = runner.Learn(tree)
        code = runner.pytest.main(["-q", "-p", "no:cacheprovider", *tests], plugins=[plugin])
        plugin.reach.save(reach)
    print(f"{len(plugin.reach.seconds)} tests enter {len(plugin.reach.functions)} functions")
    return int(code)


def run(reach: runner.Reach, out: Path, chosen: list[Site]) -> int:
    """Try each change; one line of JSON per change goes to `out`."""
    for name in _HEAVY:
        importlib.import_module(name)
    done = {_key(json.loads(line)["site"]) for line in out.read_text().splitlines()} if out.exists() else set()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = runner.copied(ROOT, Path(folder).resolve())
        for i, site in enumerate(chosen):
            if _key(asdict(site)) in done:
                continue
            started = time.monotonic()
            status, test, tried = _try(tree, site, reach)
            found = {"site": asdict(site), "status": status, "test": test, "tests": tried}
            with out.open("a") as file:
                file.write(json.dumps({**found, "seconds": round(time.monotonic() - started, 1)}) + "\n")
            print(f"{i + 1:4}/{len(chosen)} {status:8} {site.path}:{site.line} {site.kind}  {test}", flush=True)
    return 0


def _try(tree: Path, site: Site, reach: runner.Reach) -> tuple[str, str, int]:
    """("killed" | "survived" | "unseen", the test that failed, how many were to run)."""
    path = tree / site.path
    source, stat = path.read_text(encoding="utf-8"), path.stat()
    tests = reach.tests_of(site.path, site.function)
    if not tests:  # a new function, or one that only a child process enters: what stands beside it
        tests = reach.tests_of(site.path, "")
    if not tests:
        return "unseen", "", 0
    path.write_text(site.apply(source), encoding="utf-8")
    try:
        for part in runner.batches(tests, _FIRST):
            result, test = runner.run_tests(tree, part, _LIMIT)
            if result != "passed":
                return "killed", test or f"({result})", len(tests)
        return "survived", "", len(tests)
    finally:
        path.write_text(source, encoding="utf-8")
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def _key(site: dict[str, object]) -> tuple[object, ...]:
    return tuple(site[k] for k in ("path", "function", "kind", "before", "after", "line"))


def report(out: Path) -> int:
    """Counts by folder, and every change that no test noticed."""
    found = [json.loads(line) for line in out.read_text().splitlines()]
    print(f"{len(found)} tried: {dict(Counter(f['status'] for f in found))}")
    for kind, count in sorted(Counter((f["site"]["kind"], f["status"]) for f in found).items()):
        print(f"  {kind[0]:18} {kind[1]:9} {count}")
    for f in found:
        if f["status"] != "killed":
            s = f["site"]
            print(
                f"{f['status']} {s['path']}:{s['line']} {s['function']} ({f['tests']} tests)\n    {s['before']}\n -> {s['after']}"
            )
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("learn", "run", "report"))
    parser.add_argument("--reach", type=Path, default=Path("reach.json"))
    parser.add_argument("--out", type=Path, default=Path("mutants.jsonl"))
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=4)
    parser.add_argument("--at", metavar="FILE:LINE", help="every change of one line instead")
    parser.add_argument("tests", nargs="*", help="learn: these tests only")
    args = parser.parse_intermixed_args()
    os.environ["CI"] = "true"  # hypothesis then draws the same examples each time
    reach, out = args.reach.resolve(), args.out.resolve()
    if args.what == "learn":
        return learn(reach, args.tests)
    if args.what == "report":
        return report(out)
    if args.at:
        path, _, line = args.at.rpartition(":")
        every = sites((ROOT / path).read_text(encoding="utf-8"), path)
        return run(runner.Reach.load(reach), out, [s for s in every if s.line == int(line)])
    return run(runner.Reach.load(reach), out, choose(ROOT, FOLDERS, args.count, args.seed))


if __name__ == "__main__":
    sys.exit(main())
