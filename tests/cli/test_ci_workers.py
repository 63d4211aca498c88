"""Workers: the same as one process alone, and what becomes of those that die."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import onnx
import pytest

from onnxgrad.cli.ci_workers import _Workers, died, each
from onnxgrad.pipeline.ci.plan import plan_of
from onnxgrad.pipeline.ci.work import Job
from onnxgrad.pipeline.recipe import parse
from tests.cli.conftest import BRANCHES
from tests.helpers import parse as model_of


@pytest.fixture
def jobs(tmp_path: Path) -> list[Job]:
    """Three models, the second of which cannot be read."""
    for name in "abc":
        onnx.save(model_of(BRANCHES), tmp_path / f"{name}.onnx")
    (tmp_path / "b.onnx").write_bytes(b"no model")
    table = {"ci": {"models": ["*.onnx"], "out": "build"}, "verify": {"legs": ["float64"]}}
    (tmp_path / "build").mkdir()
    return list(plan_of(parse(table, str(tmp_path / "onnxgrad.toml"))).jobs)


def test_two_workers_give_what_one_process_gives(jobs: list[Job]) -> None:
    def outcome(count: int) -> list[object]:
        found = dict(each(jobs, count))
        assert sorted(found) == [0, 1, 2]
        for one in found.values():
            one.seconds = 0.0
        made = [Path(job.output or "") for job in jobs]
        files = [path.read_bytes() if path.exists() else None for path in made]
        return [found[i].to_dict() | {"proof": None} for i in range(3)] + files

    assert outcome(1) == outcome(2)


def test_a_worker_that_dies_is_tried_again_once(jobs: list[Job]) -> None:
    workers = _Workers(jobs[:2])
    running = workers.run(1)
    killed: list[int] = []
    start = workers._start

    def start_and_kill() -> None:
        start()
        pid = workers.all[-1].process.pid
        assert pid is not None
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


def test_closing_ends_the_workers(jobs: list[Job]) -> None:
    workers = _Workers(jobs)
    running = workers.run(2)
    next(running)
    processes = [worker.process for worker in workers.all]
    running.close()
    workers.end()
    assert len(processes) == 2 and not any(process.is_alive() for process in processes)


def test_what_is_said_of_the_dead(jobs: list[Job]) -> None:
    assert died(jobs[0], "exited with 3").name == "a.onnx"
