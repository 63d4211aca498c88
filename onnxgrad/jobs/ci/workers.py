"""Processes that work on several models at once.

Each worker does one job after the other. If a worker dies, its job gets a second worker, and then
an outcome that says so. The same files are written as by one process: if the first failure ends the
work, a worker asks before it writes, and may write once all models before its own have passed.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, BinaryIO, cast

from onnxgrad.errors import InternalError
from onnxgrad.interpreter import ignore_interrupts, interrupts_held, python_command
from onnxgrad.jobs.ci.outcome import ModelOutcome
from onnxgrad.jobs.ci.work import Bounding, Job, work
from onnxgrad.verify.running.process_limits import bounding_us
from onnxgrad.verify.running.wire import receive, send

ATTEMPTS = 2
_PATIENCE = 5.0  # seconds that a worker has to clean up before it is killed


def each(
    jobs: Sequence[Job], count: int, *, keep_going: bool = True, limits: Bounding = bounding_us
) -> Generator[tuple[int, ModelOutcome], None, None]:
    """Yields the index and the outcome of every job as they finish, from `count` workers; one
    worker is this process, which `limits` bounds. Without `keep_going`, yields those of the jobs up
    to the first that fails, and possibly of others, which then wrote nothing. Closing the iterator
    stops running jobs.
    """
    if count == 1 or len(jobs) == 1:
        for index, job in enumerate(jobs):
            outcome = work(job, limits=limits)
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
    """Returns the outcome of a job whose workers all died."""
    outcome = ModelOutcome(job.name, variant=job.variant)
    outcome.fail(
        "error", InternalError.exit_code, f"the process that worked on it {how}, {ATTEMPTS} times"
    )
    return outcome


_GONE = object()  # the last message of a worker that ended


@dataclass(eq=False)
class _Worker:
    """A process and the index of its job, -1 without one. `asks`: whether it waits for permission
    to write.
    """

    process: subprocess.Popen[bytes]
    index: int = -1
    asks: bool = False

    def tell(self, message: Any) -> None:
        """Sends a job or an answer. Raises OSError if the worker is dead."""
        send(cast(BinaryIO, self.process.stdin), message)

    def hear(self, heard: queue.SimpleQueue[tuple[_Worker, Any]]) -> None:
        """Passes on the messages of the worker until it ends."""
        with contextlib.suppress(EOFError):
            while True:
                heard.put((self, receive(cast(BinaryIO, self.process.stdout))))
        heard.put((self, _GONE))

    def reap(self, patience: float | None = None) -> None:
        """Waits for the end of the process, and kills it after `patience` seconds."""
        try:
            self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(BrokenPipeError):  # unsent messages are lost
                cast(BinaryIO, stream).close()


@dataclass
class _Workers:
    jobs: Sequence[Job]
    keep_going: bool = True
    passed: set[int] = field(default_factory=set)
    end_at: int = field(init=False)  # jobs from here on do not count
    heard: queue.SimpleQueue[tuple[_Worker, Any]] = field(default_factory=queue.SimpleQueue)
    waiting: list[int] = field(default_factory=list)
    attempts: dict[int, int] = field(default_factory=dict)
    all: list[_Worker] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.end_at = len(self.jobs)

    def run(self, count: int) -> Generator[tuple[int, ModelOutcome], None, None]:
        """Yields the outcomes as they finish."""
        self.waiting = list(range(len(self.jobs)))
        for _ in range(count):
            self._start()
        while any(0 <= worker.index < self.end_at for worker in self.all):
            worker, message = self.heard.get()
            index = worker.index
            outcome = self._heard(worker, message)
            if outcome is not None:
                self._judge(index, outcome)
                yield index, outcome
                self._give(worker)
            self._answer()

    def _heard(self, worker: _Worker, message: Any) -> ModelOutcome | None:
        """Returns the outcome of the job; None if the worker asks, or if another one gets
        the job.
        """
        if message is _GONE:
            index, worker.index, worker.asks = worker.index, -1, False
            return self._lost(worker, index)
        outcome: ModelOutcome | None = message
        worker.asks = outcome is None
        if outcome is not None:
            worker.index = -1
        return outcome

    def _judge(self, index: int, outcome: ModelOutcome) -> None:
        if outcome.ok:
            self.passed.add(index)
        elif not self.keep_going:
            self.end_at = min(self.end_at, index)
            self.waiting = [i for i in self.waiting if i < self.end_at]

    def _answer(self) -> None:
        """Answers waiting workers whether they may write, as soon as that is known."""
        for worker in self.all:
            allowed = self.keep_going or self.passed.issuperset(range(worker.index))
            if worker.asks and (allowed or worker.index > self.end_at):
                worker.asks = False
                with contextlib.suppress(OSError):  # it died: `hear` reports that
                    worker.tell(allowed)

    def end(self) -> None:
        """Ends every worker."""
        for worker in self.all:
            worker.process.terminate()
        for worker in self.all:
            worker.reap(_PATIENCE)
        self.all.clear()

    def _start(self) -> None:
        """Starts a worker with the next job."""
        with interrupts_held():
            process = subprocess.Popen(
                python_command(_SERVE, package=True),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        worker = _Worker(process)
        self.all.append(worker)
        threading.Thread(target=worker.hear, args=(self.heard,), daemon=True).start()
        self._give(worker)

    def _give(self, worker: _Worker) -> None:
        """Gives an idle worker the next job; if there is none, lets it wait."""
        if worker not in self.all:  # it died
            self._start() if self.waiting else None
            return
        if not self.waiting:
            return
        worker.index = self.waiting.pop(0)
        self.attempts[worker.index] = self.attempts.get(worker.index, 0) + 1
        try:
            worker.tell(self.jobs[worker.index])
        except OSError:  # it died: `hear` reports that
            return

    def _lost(self, worker: _Worker, index: int) -> ModelOutcome | None:
        """Returns the outcome of the job of a worker that died; None the first time, when another
        worker gets the job.
        """
        worker.reap()
        self.all.remove(worker)
        if index < 0:
            return None
        if self.attempts[index] < ATTEMPTS:
            self.waiting.insert(0, index)
            self._start()
            return None
        return died(self.jobs[index], _obituary(worker.process.returncode))


def _obituary(code: int) -> str:
    if code < 0:
        return f"died of {signal.Signals(-code).name}"
    return f"exited with {code}"


_SERVE = "from onnxgrad.jobs.ci.workers import serve; serve()"


def serve() -> None:
    """Runs a worker: reads jobs from stdin and writes outcomes to stdout, until it is terminated or
    its parent ends.
    """
    ignore_interrupts()
    signal.signal(signal.SIGTERM, _stop)
    # both pipes are ours alone: a plugin reads nothing, and prints to stderr
    requests = os.fdopen(os.dup(0), "rb", buffering=0)
    answers = os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    received: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(requests, received), daemon=True).start()

    def may_write() -> bool:
        send(answers, None)
        return bool(received.get())

    while True:
        send(answers, work(received.get(), may_write))


def _read(requests: BinaryIO, received: queue.SimpleQueue[Any]) -> None:
    """Puts the messages of the parent into a queue, and ends this process if the parent is gone."""
    try:
        while True:
            received.put(receive(requests))
    except EOFError:
        os._exit(1)


def _stop(number: int, _: FrameType | None) -> None:
    """Leaves by an exception, so that half-written files are removed."""
    sys.exit(128 + number)
