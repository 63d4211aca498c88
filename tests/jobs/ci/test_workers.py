"""Workers: the same as one process alone, and what becomes of those that die."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

import onnxgrad
from onnxgrad.jobs.ci.outcome import ModelOutcome
from onnxgrad.jobs.ci.plan import plan_of
from onnxgrad.jobs.ci.work import Job, Setup
from onnxgrad.jobs.ci.workers import _Worker, _Workers, died, each
from onnxgrad.jobs.recipe import parse
from tests.cli.conftest import BRANCHES
from tests.helpers import ROOT
from tests.helpers import parse as model_of

PLUGIN = """
from onnxgrad import P, capture, op, rewrite
from onnxgrad.rewrite.worklist import count

x = capture("x")


@rewrite(P.Tanh(x), shrinks=count())
def tanh_is_nothing(x):
    return x
"""


@pytest.fixture
def jobs(tmp_path: Path) -> list[Job]:
    """Two models, the second of which cannot be read."""
    onnx.save(model_of(BRANCHES), tmp_path / "a.onnx")
    (tmp_path / "b.onnx").write_bytes(b"no model")
    (tmp_path / "wrong.py").write_text(PLUGIN)
    table = {"ci": {"models": ["*.onnx"], "out": "build"}, "verify": {"checks": ["float64"]}}
    (tmp_path / "build").mkdir()
    recipe = parse(table, str(tmp_path / "onnxgrad.toml"))
    return list(plan_of(recipe, setup=Setup((str(tmp_path / "wrong.py"),))).jobs)


@pytest.mark.slow
def test_two_workers_give_what_one_process_gives(jobs: list[Job]) -> None:
    """Of a model that can be read, of one that cannot, of one that a plugin breaks; the first has
    a pass that only a process with every rule has.
    """
    options = jobs[0].options.having(passes="default,lower-training")
    plain = replace(jobs[0], setup=Setup(), options=options)

    def outcome(count: int, given: list[Job]) -> list[object]:
        found = dict(each(given, count))
        for one in found.values():
            one.seconds = 0.0
        return [found[i].to_dict() | {"proof": None} for i in range(len(given))]

    with onnxgrad.temporary_rules():
        alone = [*outcome(1, [plain]), *outcome(1, jobs)]
    written = Path(str(plain.output)).read_bytes()
    Path(str(plain.output)).unlink()
    assert outcome(2, [plain, *jobs]) == alone
    assert [one["status"] for one in alone] == ["passed", "different", "error"]  # type: ignore[index]
    assert Path(str(plain.output)).read_bytes() == written


@pytest.mark.slow
def test_a_worker_that_dies_is_tried_again_once(jobs: list[Job]) -> None:
    workers = _Workers(jobs)
    running = workers.run(1)
    killed: list[int] = []
    start = workers._start

    def start_and_kill() -> None:
        start()
        pid = workers.all[-1].process.pid
        if len(killed) < 2:
            killed.append(pid)
            os.kill(pid, signal.SIGKILL)

    workers._start = start_and_kill  # type: ignore[method-assign]
    try:
        found = dict(running)
    finally:
        workers.end()
    assert len(killed) == 2 and workers.attempts == {0: 2, 1: 1}
    assert (found[0].status, found[0].exit_code) == ("error", 3)
    assert found[0].error == "the process that worked on it died of SIGKILL, 2 times"
    assert found[1].exit_code == 2  # the other job had its turn


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks processes up in /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_end_from_outside_ends_the_workers(tmp_path: Path, number: signal.Signals) -> None:
    for name in "ab":
        onnx.save(model_of(BRANCHES), tmp_path / f"{name}.onnx")
    (tmp_path / "onnxgrad.toml").write_text(
        'require.latency = "<= 9"\n[bench]\nseconds = 60\nrounds = 3000\n[ci]\nmodels = ["*.onnx"]\nout = "o"\n'
    )
    command = [sys.executable, "-m", "onnxgrad", "ci", "--jobs", "2", "--update"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, cwd=tmp_path, env=env, start_new_session=True)
    deadline = time.monotonic() + 60
    while len(members(process.pid)) < 5 and time.monotonic() < deadline:  # ours, theirs, their own
        time.sleep(0.2)
    time.sleep(2)
    os.kill(process.pid, number)
    code = process.wait(30)
    assert code == (-number if number == signal.SIGKILL else 128 + number)
    while members(process.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert members(process.pid) == []
    left = sorted(p.name for p in tmp_path.rglob("*"))
    assert left == ["a.onnx", "b.onnx", "o", "onnxgrad.toml"]


def members(session: int) -> list[int]:
    """The processes of a session that still run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, *numbers = path.read_text().rpartition(")")[2].split()
            if int(numbers[2]) == session and state != "Z":
                found.append(int(path.parent.name))
    return found


def test_what_is_said_of_the_dead(jobs: list[Job]) -> None:
    assert died(jobs[0], "exited with 3").name == "a.onnx"


@pytest.mark.parametrize("count", [1, 2])
def test_nothing_behind_a_failure_is_written(jobs: list[Job], count: int) -> None:
    """However long the one that fails takes: a later model waits for it before it is written."""
    good, bad = replace(jobs[0], setup=Setup()), jobs[1]
    later = replace(good, name="c", output=f"{good.output}.later")
    found = dict(each([good, bad, later], count, keep_going=False))
    assert found[0].ok and not found[1].ok
    assert Path(str(good.output)).exists() and not Path(str(later.output)).exists()
    assert 2 not in found or found[2].output is None


def test_what_waits_is_answered_in_order(jobs: list[Job]) -> None:
    """A stand-in for each worker: who may write, and when that is known."""
    told: list[tuple[int, bool]] = []

    class Told(_Worker):
        def tell(self, answer: bool) -> None:
            told.append((self.index, answer))

    def workers(keep_going: bool) -> _Workers:
        found = _Workers(jobs * 2, keep_going)
        found.all = [Told(None, i, asks=True) for i in range(4)]  # type: ignore[arg-type]
        return found

    done, no = ModelOutcome("a"), ModelOutcome("b", "failed", 1)
    stopping = workers(False)
    stopping._answer()
    assert told == [(0, True)]
    stopping._judge(0, done)
    stopping._answer()
    assert told[1:] == [(1, True)]
    stopping._judge(2, no)
    stopping._answer()
    assert told[2:] == [(3, False)] and stopping.end_at == 2
    told.clear()
    workers(True)._answer()
    assert told == [(i, True) for i in range(4)]
