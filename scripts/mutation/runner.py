"""Runs tests against a changed tree: finds which tests enter which function, and forks one pytest
per change.

The parent has imported the heavy packages but not the project, so a fork starts at once and reads
the changed source.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from scripts.mutation.sites import Site

QUIET = (
    "-q",
    "-x",
    "-p",
    "no:cacheprovider",
    "--no-header",
    "--assert=plain",
    "-p",
    "no:faulthandler",
)


def copied(root: Path, folder: Path) -> Path:
    """What git knows of the working tree, in a folder of its own."""
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=root, check=True, capture_output=True, text=True
    ).stdout
    for name in filter(None, names.split("\0")):
        if (root / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, folder / name)
    return folder


@dataclass
class Reach:
    """The functions that each default test enters and its duration, from one run of the default
    suite.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    # "path::qualified.name" -> test ids
    functions: dict[str, list[str]] = field(default_factory=dict)

    def tests_of(self, path: str, function: str) -> list[str]:
        """Returns the tests that enter a function (for module-level code: any function of the
        file).

        Tests in the file that mirrors the changed one come first, then fast ones.
        """
        keys = (
            [f"{path}::{function}"]
            if function
            else [k for k in self.functions if k.startswith(f"{path}::")]
        )
        found = {test for key in keys for test in self.functions.get(key, ())}
        parts = Path(path).with_suffix("").parts[1:]
        mirror = "/".join(("tests", *parts[:-1], f"test_{parts[-1].lstrip('_')}"))
        return sorted(found, key=lambda t: (not t.startswith(mirror), self.seconds.get(t, 0.0), t))

    def plan(self, tree: Path, site: Site) -> list[Sequence[str]]:
        """Returns batches of tests that enter the changed function. The first batch is small,
        because the likeliest tests kill most changes.
        """
        # a new function, or one that only a child process enters: the tests of the file
        tests = self.tests_of(site.path, site.function) or self.tests_of(site.path, "")
        return [part for part in (tests[:12], tests[12:72], tests[72:]) if part]

    def save(self, path: Path) -> None:
        path.write_text(json.dumps({"seconds": self.seconds, "functions": self.functions}))

    @staticmethod
    def load(path: Path) -> Reach:
        return Reach(**json.loads(path.read_text()))


class Learn:
    """A pytest plugin that records which functions of the package each test enters."""

    def __init__(self, tree: Path) -> None:
        self.prefix = f"{tree}{os.sep}"
        self.reach = Reach()
        self._seen: set[CodeType] = set()
        self._tests: dict[str, set[CodeType]] = defaultdict(set)

    def _trace(self, frame: FrameType, event: str, argument: Any) -> None:
        self._seen.add(frame.f_code)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        started = time.perf_counter()
        self._seen = self._tests[item.nodeid]
        sys.settrace(self._trace)  # type: ignore[arg-type]
        try:
            yield
        finally:
            sys.settrace(None)
        self.reach.seconds[item.nodeid] = round(time.perf_counter() - started, 3)

    def pytest_sessionfinish(self) -> None:
        by_code: dict[CodeType, list[str]] = defaultdict(list)
        for test, codes in self._tests.items():
            for code in codes:
                by_code[code].append(test)
        package = f"{self.prefix}onnxgrad{os.sep}"
        for code, tests in by_code.items():
            if code.co_filename.startswith(package):
                key = f"{code.co_filename.removeprefix(self.prefix)}::{_named(code)}"
                known = self.reach.functions.setdefault(key, [])
                known += [t for t in tests if t not in known]


def _named(code: CodeType) -> str:
    """Returns the qualified name of the innermost `def` or class around a piece of code, as `sites`
    does.
    """
    return ".".join(p for p in code.co_qualname.split(".") if not p.startswith("<"))


class Only:
    """A pytest plugin that runs these tests or files in order and records the first failure."""

    def __init__(self, tests: Sequence[str], without: set[str]) -> None:
        self.without = without
        self.order = {test: i for i, test in enumerate(tests)}
        self.failed = ""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [i for i in items if i.nodeid not in self.without]
        if not any("::" in test for test in self.order):
            return
        items[:] = sorted(
            (i for i in items if i.nodeid in self.order), key=lambda i: self.order[i.nodeid]
        )

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid


def in_fork(work: Any, limit: float) -> Any:
    """Returns the result of `work()` (JSON types) in a forked process, or None if the process dies
    or exceeds `limit` seconds.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.close(reading)
        try:
            with open(os.environ.get("MUTANTS_LOG", os.devnull), "a") as null:
                os.dup2(null.fileno(), 1)
                os.dup2(null.fileno(), 2)
            os.write(writing, json.dumps(work()).encode())
        except BaseException:  # noqa: BLE001  # whatever it is, it must not run on as a second parent
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
    os.close(writing)
    deadline, answer, ended = time.monotonic() + limit, b"", False
    os.set_blocking(reading, False)
    while not ended and time.monotonic() < deadline:
        ended = os.waitpid(pid, os.WNOHANG)[0] != 0
        with contextlib.suppress(BlockingIOError):
            answer += os.read(reading, 1 << 16)
        if not ended:
            time.sleep(0.05)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)  # the fork, or children that outlived it
    if not ended:
        os.waitpid(pid, 0)
        answer = b""
    os.close(reading)
    return json.loads(answer) if answer else None


def run_tests(
    tree: Path, tests: Sequence[str], limit: float, without: Iterable[str] = ()
) -> tuple[str, str]:
    """("passed" | "failed" | "died" | "timeout", the test that failed) of some tests in `tree`."""
    started = time.monotonic()

    def work() -> list[Any]:
        os.chdir(tree)
        root = str(Path(__file__).resolve().parents[2])
        sys.path[:] = [str(tree), *(p for p in sys.path if p != root)]
        # for the commands that tests start
        os.environ.update(PYTHONPATH=str(tree), PYTHONDONTWRITEBYTECODE="1")
        sys.dont_write_bytecode = True
        plugin = Only(tests, set(without))
        files = list(dict.fromkeys(t.split("::")[0] for t in tests))
        code = pytest.main([*QUIET, f"--timeout={max(5, int(limit))}", *files], plugins=[plugin])
        return [int(code), plugin.failed]

    answer = in_fork(work, limit)
    if answer is None:
        return ("timeout" if time.monotonic() - started >= limit else "died"), ""
    code, failed = answer
    # 5: none of the tests is selected
    return ("passed" if code in (0, 5) else "failed"), failed or (
        "" if code in (0, 5) else "(collection)"
    )
