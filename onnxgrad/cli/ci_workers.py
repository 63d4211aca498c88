"""Processes of our own that do the work on several models at once: `onnxgrad ci --jobs`.

Each worker does one job after the other. One that dies takes its job with it; the job gets a second
worker, and then an outcome that says so.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import FrameType

from onnxgrad import surface  # noqa: F401  # every rule and pass is there before a job runs
from onnxgrad.errors import InternalError
from onnxgrad.pipeline.ci.outcome import ModelOutcome
from onnxgrad.pipeline.ci.work import Job, work

ATTEMPTS = 2
_PATIENCE = 5.0  # seconds that a worker has to clean up when it is told to end


def each(jobs: Sequence[Job], count: int) -> Generator[tuple[int, ModelOutcome], None, None]:
    """The outcome of every job with its index, as they come, from `count` workers; one alone is
    this process. Whoever closes the iterator stops what still runs.
    """
    if count == 1 or len(jobs) == 1:
        for index, job in enumerate(jobs):
            yield index, work(job)
        return
    workers = _Workers(jobs)
    try:
        yield from workers.run(min(count, len(jobs)))
    finally:
        workers.end()


def died(job: Job, how: str) -> ModelOutcome:
    """The outcome of a job whose workers all died."""
    outcome = ModelOutcome(job.name)
    outcome.fail(
        "error", InternalError.exit_code, f"the process that worked on it {how}, {ATTEMPTS} times"
    )
    return outcome


@dataclass(eq=False)
class _Worker:
    """A process, our end of its pipe, and the index of its job; -1 while it has none."""

    process: BaseProcess
    pipe: Connection
    index: int = -1


@dataclass
class _Workers:
    jobs: Sequence[Job]
    waiting: list[int] = field(default_factory=list)
    attempts: dict[int, int] = field(default_factory=dict)
    all: list[_Worker] = field(default_factory=list)

    def run(self, count: int) -> Generator[tuple[int, ModelOutcome], None, None]:
        """The outcomes as they come."""
        self.waiting = list(range(len(self.jobs)))
        for _ in range(count):
            self._start()
        while busy := {worker.pipe: worker for worker in self.all if worker.index >= 0}:
            for pipe in wait(list(busy)):
                worker = busy[pipe]  # type: ignore[index]  # typed as whatever can be waited for
                index, worker.index = worker.index, -1
                try:
                    outcome = worker.pipe.recv()
                except (EOFError, OSError):
                    outcome = self._lost(worker, index)
                if outcome is not None:
                    yield index, outcome
                    self._give(worker)

    def end(self) -> None:
        """End every worker, whatever it does."""
        for worker in self.all:
            worker.process.terminate()
            worker.pipe.close()
        for worker in self.all:
            worker.process.join(_PATIENCE)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
        self.all.clear()

    def _start(self) -> None:
        """A new worker with the next job."""
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs,), daemon=True)
        process.start()
        theirs.close()
        self.all.append(_Worker(process, ours))
        self._give(self.all[-1])

    def _give(self, worker: _Worker) -> None:
        """The next job for an idle worker; where there is none, it waits for the end."""
        if worker not in self.all:  # it died
            self._start() if self.waiting else None
            return
        if not self.waiting:
            return
        worker.index = self.waiting.pop(0)
        self.attempts[worker.index] = self.attempts.get(worker.index, 0) + 1
        try:
            worker.pipe.send(self.jobs[worker.index])
        except OSError:  # it died: `recv` will tell
            return

    def _lost(self, worker: _Worker, index: int) -> ModelOutcome | None:
        """What became of the job of a worker that died: nothing the first time, for it gets
        another.
        """
        worker.process.join()
        worker.pipe.close()
        self.all.remove(worker)
        if self.attempts[index] < ATTEMPTS:
            self.waiting.insert(0, index)
            self._start()
            return None
        return died(self.jobs[index], _obituary(worker.process.exitcode))


def _obituary(code: int | None) -> str:
    if code is not None and code < 0:
        return f"died of {signal.Signals(-code).name}"
    return f"exited with {code}"


def _serve(pipe: Connection) -> None:
    """What a worker runs: jobs until the pipe closes. It ends with its parent, however that
    ends.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # reaches all of us: the parent decides
    signal.signal(signal.SIGTERM, _stop)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()
    while True:
        try:
            job = pipe.recv()
        except EOFError:
            return
        pipe.send(work(job))


def _stop(number: int, _: FrameType | None) -> None:
    """Leave by an exception: what is half written goes."""
    sys.exit(128 + number)


def _end_with(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)
