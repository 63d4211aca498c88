"""Mutation testing: small changes of the program, each of which the default tests should notice.

    python scripts/mutants.py run --out mutants.jsonl --count 200 --seed 4
    python scripts/mutants.py run --out mutants.jsonl --at onnxgrad/ir/clone.py:95
    python scripts/mutants.py again --out mutants.jsonl           # survivors, against the tests as they are now
    python scripts/mutants.py report --out mutants.jsonl          # counts, and every survivor

The changes (`scripts/mutation/sites.py`: comparisons, operators, constants, and/or, not, dropped guards, swapped
arguments) are drawn by chance over all of FOLDERS. Each is made in a copy of the tree; then default tests run until one
fails: the test files that mirror the changed one, those of the modules that import it, with --rest all others. With
--reach FILE, made by `learn --reach FILE` (one run of the default suite), they are the tests that enter the changed
function. A run that goes on where it stopped skips what --out holds already. Needs a POSIX system and Python 3.11.
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
from collections.abc import Callable, Sequence
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
_LIMIT = 300.0  # seconds for one batch

Plan = Callable[[Path, Site], "list[Sequence[str]]"]  # which tests see a change of a tree, in batches


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


def run(plan: Plan, out: Path, chosen: list[Site]) -> int:
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
            status, test, tried = _try(tree, site, plan)
            found = {"site": asdict(site), "status": status, "test": test, "tests": tried}
            with out.open("a") as file:
                file.write(json.dumps({**found, "seconds": round(time.monotonic() - started, 1)}) + "\n")
            print(f"{i + 1:4}/{len(chosen)} {status:8} {site.path}:{site.line} {site.kind}  {test}", flush=True)
    return 0


def _try(tree: Path, site: Site, plan: Plan) -> tuple[str, str, int]:
    """("killed" | "survived" | "unseen", the test that failed, how many test files or tests were to run)."""
    path = tree / site.path
    source, stat = path.read_text(encoding="utf-8"), path.stat()
    parts = plan(tree, site)
    if not parts:
        return "unseen", "", 0
    path.write_text(site.apply(source), encoding="utf-8")
    try:
        for part in parts:
            while True:
                result, test = runner.run_tests(tree, part, _LIMIT, without=_BROKEN)
                path.write_text(source, encoding="utf-8")
                if result == "passed" or "::" not in test or _passes_here(tree, test):
                    break
                path.write_text(site.apply(source), encoding="utf-8")
            if result != "passed":
                return "killed", test or f"({result})", sum(len(p) for p in parts)
            path.write_text(site.apply(source), encoding="utf-8")
        return "survived", "", sum(len(p) for p in parts)
    finally:
        path.write_text(source, encoding="utf-8")
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


_TRUSTED: set[str] = set()
_BROKEN: set[str] = set()


def _passes_here(tree: Path, test: str) -> bool:
    """Whether a test passes without any change; one that does not tells nothing, and is left out from then on."""
    if test not in _TRUSTED | _BROKEN:
        (_TRUSTED if runner.run_tests(tree, [test], _LIMIT)[0] == "passed" else _BROKEN).add(test)
    return test in _TRUSTED


def _key(site: dict[str, object]) -> tuple[object, ...]:
    return tuple(site[k] for k in ("path", "function", "kind", "before", "after", "line"))


def report(out: Path) -> int:
    """Counts by folder, and every change that no test noticed."""
    found = [json.loads(line) for line in out.read_text().splitlines()]
    print(f"{len(found)} tried: {dict(Counter(f['status'] for f in found))}")
    for kind, count in sorted(Counter((f["site"]["kind"], f["status"]) for f in found).items()):
        print(f"  {kind[0]:18} {kind[1]:9} {count}")
    for f in found:
        s = f["site"]
        if f["status"] != "killed":
            print(f"{f['status']} {s['path']}:{s['line']} {s['function']}\n    {s['before']}\n -> {s['after']}")
    return 0


def again(plan: Plan, out: Path) -> int:
    """Try the survivors of an earlier run once more; each keeps its line in `out`."""
    before = [json.loads(line) for line in out.read_text().splitlines()]
    chosen = [Site(**f["site"]) for f in before if f["status"] != "killed"]
    fresh = out.with_suffix(".again")
    fresh.unlink(missing_ok=True)
    run(plan, fresh, [_moved(s) for s in chosen])
    after = {_key(f["site"])[:5]: f for f in map(json.loads, fresh.read_text().splitlines())}
    out.write_text("".join(json.dumps(after.get(_key(f["site"])[:5], f)) + "\n" for f in before))
    return 0


def _moved(site: Site) -> Site:
    """The site in the sources as they are now, where it may stand some lines further on."""
    now = sites((ROOT / site.path).read_text(encoding="utf-8"), site.path)
    alike = [s for s in now if _key(asdict(s))[:5] == _key(asdict(site))[:5]]
    return min(alike, key=lambda s: abs(s.line - site.line), default=site)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("learn", "run", "again", "report"))
    parser.add_argument("--reach", type=Path, help="which tests enter which function")
    parser.add_argument("--out", type=Path, default=Path("mutants.jsonl"))
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=4)
    parser.add_argument("--at", metavar="FILE:LINE", help="every change of one line instead")
    parser.add_argument(
        "--rest", action="store_true", help="also the test files that have nothing to do with the change"
    )
    parser.add_argument("tests", nargs="*", help="learn: these tests only")
    args = parser.parse_intermixed_args()
    os.environ["CI"] = "true"  # hypothesis then draws the same examples each time
    out = args.out.resolve()
    if args.what == "report":
        return report(out)
    if args.what == "learn":
        return learn((args.reach or Path("reach.json")).resolve(), args.tests)
    plan: Plan = runner.Near(args.rest) if args.reach is None else runner.Reach.load(args.reach.resolve()).plan
    if args.what == "again":
        return again(plan, out)
    if args.at:
        path, _, line = args.at.rpartition(":")
        every = sites((ROOT / path).read_text(encoding="utf-8"), path)
        return run(plan, out, [s for s in every if s.line == int(line)])
    return run(plan, out, choose(ROOT, FOLDERS, args.count, args.seed))


if __name__ == "__main__":
    sys.exit(main())
