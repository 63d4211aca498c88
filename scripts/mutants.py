"""Mutation testing: makes small changes to the program, each of which should fail a default test.

    python scripts/mutants.py run --out mutants.jsonl --count 200 --seed 4
    python scripts/mutants.py run --out mutants.jsonl --at onnxgrad/ir/clone.py:95
    python scripts/mutants.py again --out mutants.jsonl     # survivors, against today's tests
    python scripts/mutants.py report --out mutants.jsonl    # counts, and every survivor

The changes (`scripts/mutation/sites.py`: comparisons, operators, constants, and/or, not, dropped
guards, swapped arguments) are drawn at random from all of FOLDERS. Each is made in a copy of the
tree. Then default tests run until one fails: the test files that mirror the changed file, those of
the modules that import it, and with --rest all others. With --reach FILE, which `learn --reach
FILE` writes in one run of the default suite, they are the tests that enter the changed function.
With --mirrors, only the mirroring files run, which is fast; `again --reach FILE` then tries
survivors with the other tests. With --slow, `learn`, `run` and `again` take CI's slow tests in
place of the default ones: `again --slow` tells what CI as a whole notices. A change whose tests
need more than --seconds is `unfinished`, which is inconclusive. A run that continues skips the
changes that --out already holds. Needs a POSIX system and Python 3.11.
"""

from __future__ import annotations

import argparse
import compileall
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
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.mutation import runner  # noqa: E402
from scripts.mutation.near import Near  # noqa: E402
from scripts.mutation.sites import Site, choose, sites  # noqa: E402
from scripts.records import conditions  # noqa: E402

FOLDERS = [
    "onnxgrad/laws",
    "onnxgrad/passes",
    "onnxgrad/jobs",
    "onnxgrad/grad/rules",
    "onnxgrad/ir",
    "onnxgrad/verify",
]
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
# what CI runs beside the default tests (.ci/run)
_SLOW = "(slow or mpi) and not cuda and not torch and not peers and not node and not browser"
_LIMIT = 300.0  # seconds for a batch of tests without any change

# returns batches of tests for a change of a tree
Plan = Callable[[Path, Site], "list[Sequence[str]]"]


def learn(reach: Path, tests: list[str]) -> int:
    """Runs the default suite in a copy of the tree and records which test enters which function."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = runner.copied(ROOT, Path(folder).resolve())
        os.chdir(tree)
        sys.path[0] = str(tree)
        plugin = runner.Learn(tree)
        code = runner.pytest.main(["-q", "-p", "no:cacheprovider", *tests], plugins=[plugin])
        plugin.reach.save(reach)
    print(f"{len(plugin.reach.seconds)} tests enter {len(plugin.reach.functions)} functions")
    return int(code)


def run(plan: Plan, out: Path, chosen: list[Site], seconds: float) -> int:
    """Tries each change and writes a line of JSON per change to `out`, or a second one if the first
    was inconclusive.
    """
    for name in _HEAVY:
        importlib.import_module(name)
    done = _found(out)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = runner.copied(ROOT, Path(folder).resolve())
        compileall.compile_dir(tree, quiet=2)  # so that a fork compiles only the changed file
        killed: list[tuple[Site, str]] = []
        for i, site in enumerate(chosen):
            if _key(asdict(site)) not in done:
                found = _try(tree, site, plan, out, seconds)
                print(
                    f"{i + 1:4}/{len(chosen)} {found['status']:10} {site.path}:{site.line} "
                    f"{site.kind}  {found['test']}"
                )
                sys.stdout.flush()
                killed += [(site, str(found["test"]))] if "::" in str(found["test"]) else []
            if len(killed) >= 25 or i + 1 == len(chosen):
                killed = [
                    (s, str(_try(tree, s, plan, out, seconds)["test"]))
                    for s in _untold(tree, killed)
                ]
        _untold(tree, killed)
    return 0


def _try(tree: Path, site: Site, plan: Plan, out: Path, seconds: float) -> dict[str, object]:
    """Tries one change and records its status (killed, survived, unseen by any test, unfinished)
    and the test.
    """
    path = tree / site.path
    source, stat = path.read_text(encoding="utf-8"), path.stat()
    started = time.monotonic()
    parts = plan(tree, site)
    status, test = "survived" if parts else "unseen", ""
    path.write_text(site.apply(source), encoding="utf-8")
    try:
        for part in parts:
            left = started + seconds - time.monotonic()
            result, test = (
                runner.run_tests(tree, part, left, without=_BROKEN) if left > 5 else ("timeout", "")
            )
            if result != "passed":
                status = "unfinished" if result == "timeout" else "killed"
                test = test or f"({result})"
                break
    finally:
        path.write_text(source, encoding="utf-8")
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    found: dict[str, object] = {
        "site": asdict(site),
        "status": status,
        "test": test,
        "tests": sum(map(len, parts)),
    }
    with out.open("a") as file:
        file.write(json.dumps({**found, "seconds": round(time.monotonic() - started, 1)}) + "\n")
    return found


_BROKEN: set[str] = set()


def _untold(tree: Path, killed: list[tuple[Site, str]]) -> list[Site]:
    """Returns the changes whose test also fails on the unchanged tree, which proves nothing. The
    test is left out from then on.
    """
    tests = sorted({test for _, test in killed} - _BROKEN)
    while tests:
        result, test = runner.run_tests(tree, tests, _LIMIT, without=_BROKEN)
        if result == "passed" or test not in tests:
            break
        _BROKEN.add(test)
        tests.remove(test)
    return [site for site, test in killed if test in _BROKEN]


def _found(out: Path) -> dict[tuple[object, ...], dict[str, Any]]:
    """Returns the result of each change; the last line counts."""
    lines = map(json.loads, out.read_text().splitlines()) if out.exists() else ()
    return {_key(found["site"]): found for found in lines}


def _key(site: dict[str, Any]) -> tuple[object, ...]:
    return (
        *(site[k] for k in ("path", "function", "kind", "before", "after", "line")),
        site.get("nth", 0),
    )


def report(out: Path) -> int:
    """Prints counts by folder, and every change that no test noticed."""
    found = list(_found(out).values())
    print(conditions())
    print(f"{len(found)} tried: {dict(Counter(f['status'] for f in found))}")
    for kind, count in sorted(Counter((f["site"]["kind"], f["status"]) for f in found).items()):
        print(f"  {kind[0]:18} {kind[1]:9} {count}")
    for f in found:
        s = f["site"]
        if f["status"] != "killed":
            print(
                f"{f['status']} {s['path']}:{s['line']} {s['function']}\n    {s['before']}\n -> "
                f"{s['after']}"
            )
    return 0


def again(plan: Plan, out: Path, seconds: float) -> int:
    """Tries the changes again that an earlier run did not kill. Each keeps its line in `out`, also
    if its place no longer exists.
    """
    before = list(_found(out).values())
    survivors = [f["site"] for f in before if f["status"] != "killed"]
    moved = {_key(s): now for s in survivors if (now := _moved(Site(**s)))}
    fresh = out.with_suffix(".again")
    fresh.unlink(missing_ok=True)
    run(plan, fresh, list(moved.values()), seconds)
    found = _found(fresh)
    after = {key: found[_key(asdict(site))] for key, site in moved.items()}
    out.write_text("".join(json.dumps(after.get(_key(f["site"]), f)) + "\n" for f in before))
    return 0


def _moved(site: Site) -> Site | None:
    """Returns the site in the current sources, where its line may have moved, or None if it no
    longer exists.
    """
    now = sites((ROOT / site.path).read_text(encoding="utf-8"), site.path)
    alike = [s for s in now if _key(asdict(s))[:5] == _key(asdict(site))[:5]]
    return min(alike, key=lambda s: (abs(s.line - site.line), s.nth != site.nth), default=None)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("learn", "run", "again", "report"))
    parser.add_argument("--reach", type=Path, help="which tests enter which function")
    parser.add_argument("--out", type=Path, default=Path("mutants.jsonl"))
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=4)
    parser.add_argument("--at", metavar="FILE:LINE", help="every change of one line instead")
    parser.add_argument(
        "--mirrors", action="store_true", help="only the test files that mirror the changed one"
    )
    parser.add_argument("--seconds", type=float, default=300.0, help="for the tests of one change")
    parser.add_argument(
        "--rest",
        action="store_true",
        help="also the test files that have nothing to do with the change",
    )
    parser.add_argument(
        "--slow", action="store_true", help="CI's slow tests in place of the default ones"
    )
    parser.add_argument("tests", nargs="*", help="learn: these tests only")
    args = parser.parse_intermixed_args()
    os.environ["CI"] = "true"  # hypothesis then draws the same examples each time
    if args.slow:
        os.environ["PYTEST_ADDOPTS"] = f"-m '{_SLOW}'"
    out = args.out.resolve()
    if args.what == "report":
        return report(out)
    if args.what == "learn":
        return learn((args.reach or Path("reach.json")).resolve(), args.tests)
    plan: Plan = (
        Near(args.rest, args.mirrors)
        if args.reach is None
        else runner.Reach.load(args.reach.resolve()).plan
    )
    if args.what == "again":
        return again(plan, out, args.seconds)
    if args.at:
        path, _, line = args.at.rpartition(":")
        every = sites((ROOT / path).read_text(encoding="utf-8"), path)
        return run(plan, out, [s for s in every if s.line == int(line)], args.seconds)
    return run(plan, out, choose(ROOT, FOLDERS, args.count, args.seed), args.seconds)


if __name__ == "__main__":
    sys.exit(main())
