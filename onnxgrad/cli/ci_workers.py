"""Processes of our own that do the work on several models at once: `onnxgrad ci --jobs`.

Each worker does one job after the other. One that dies takes its job with it; the job gets a second
worker, and then an outcome that says so. What is written is what one process writes: where the
first failure ends the work, a worker asks before it writes, and is answered once all models before
its own have passed.
"""

from __future__ import annotations

import contextlib
import functools
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


def each(
    jobs: Sequence[Job], count: int, *, keep_going: bool = True
) -> Generator[tuple[int, ModelOutcome], None, None]:
    """The outcome of every job with its index, as they come, from `count` workers; one alone is
    this process. Without `keep_going` of the jobs up to the first that fails, perhaps of others
    too, which then wrote nothing. Whoever closes the iterator stops what still runs.
    """
    if count == 1 or len(jobs) == 1:
        for index, job in enumerate(jobs):
            outcome = work(job)
            yield index, outcome
            if not (outcome.ok or keep_going):
                return
        return
    workers = _Workers(jobs, keep_going)
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
    """A process, our end of its pipe, and the index of its job; -1 while it has none. `asks`: it
    waits to be told whether it may write.
    """

    process: BaseProcess
    pipe: Connection
    index: int = -1
    asks: bool = False


@dataclass
class _Workers:
    jobs: Sequence[Job]
    keep_going: bool = True
    passed: set[int] = field(default_factory=set)
    end_at: int = field(init=False)  # jobs from here on do not count
    waiting: list[int] = field(default_factory=list)
    attempts: dict[int, int] = field(default_factory=dict)
    all: list[_Worker] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.end_at = len(self.jobs)

    def run(self, count: int) -> Generator[tuple[int, ModelOutcome], None, None]:
        """The outcomes as they come."""
        self.waiting = list(range(len(self.jobs)))
        for _ in range(count):
            self._start()
        while any(0 <= worker.index < self.end_at for worker in self.all):
            busy = {worker.pipe: worker for worker in self.all if worker.index >= 0}
            for pipe in wait(list(busy)):
                worker = busy[pipe]  # type: ignore[index]  # typed as whatever can be waited for
                index = worker.index
                outcome = self._heard(worker)
                if outcome is not None:
                    self._judge(index, outcome)
                    yield index, outcome
                    self._give(worker)
            self._answer()

    def _heard(self, worker: _Worker) -> ModelOutcome | None:
        """What became of its job; None where it asks, or where another worker gets the job."""
        try:
            said: ModelOutcome | None = worker.pipe.recv()
        except (EOFError, OSError):
            index, worker.index, worker.asks = worker.index, -1, False
            return self._lost(worker, index)
        worker.asks = said is None
        if said is not None:
            worker.index = -1
        return said

    def _judge(self, index: int, outcome: ModelOutcome) -> None:
        if outcome.ok:
            self.passed.add(index)
        elif not self.keep_going:
            self.end_at = min(self.end_at, index)
            self.waiting = [i for i in self.waiting if i < self.end_at]

    def _answer(self) -> None:
        """Tell those who ask whether they may write, as soon as that is known."""
        for worker in self.all:
            allowed = self.keep_going or self.passed.issuperset(range(worker.index))
            if worker.asks and (allowed or worker.index > self.end_at):
                worker.asks = False
                with contextlib.suppress(OSError):  # it died: `recv` will tell
                    worker.pipe.send(allowed)

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
        pipe.send(work(job, functools.partial(_asked, pipe)))


def _asked(pipe: Connection) -> bool:
    """Whether the job at work may write its result; waits for those before it."""
    pipe.send(None)
    answer: bool = pipe.recv()
    return answer


def _stop(number: int, _: FrameType | None) -> None:
    """Leave by an exception: what is half written goes."""
    sys.exit(128 + number)


def _end_with(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)
