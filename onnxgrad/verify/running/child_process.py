"""Child processes in which models run: pooled, limited in time and memory, killed at exit."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import select
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

from onnxgrad.errors import InputError, NotProved
from onnxgrad.interpreter import interrupts_held, python_command
from onnxgrad.limits import current, size_text
from onnxgrad.verify.running.fork import become, may_fork
from onnxgrad.verify.running.runtimes import OTHER, command_of
from onnxgrad.verify.running.wire import receive, send
from onnxgrad.vocabulary import PROVIDERS
from onnxgrad.wording import one_line, option

_COLOUR = re.compile(r"\x1b\[[\d;]*m")
_WARNING = re.compile(r"\[[VIW]:onnxruntime:")  # a line of onnxruntime's log below an error
# numpy's products are split over the cores by the float64 reference, if they are large
_BLAS_THREADS = "OPENBLAS_NUM_THREADS"
# glibc returns freed megabytes to the system at once, and the next result gets them back page by
# page, cleared: a fifth of the time of a float64 run
_KEEPS_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 25), "MALLOC_TRIM_THRESHOLD_": str(1 << 27)}
_SOON = 0.05  # seconds within which most answers arrive


class RunFailed(NotProved):
    """onnxruntime could not load or run a model. `stage`: load, run, timeout, memory or killed.
    `reason`: onnxruntime's message.
    """

    def __init__(self, stage: str, reason: str) -> None:
        self.stage = stage
        self.reason = reason
        verb = {"load": "could not load the model", "run": "could not run the model"}.get(
            stage, "gave no answer"
        )
        super().__init__(f"{'not proved: ' if self.limit else ''}onnxruntime {verb}: {reason}")

    @property
    def limit(self) -> bool:
        """True if a limit was reached, so that nothing is known about the model."""
        return self.stage in ("timeout", "memory")


def _start() -> str:
    """Returns the child's program. It enters the packages around `child_main.py` without running
    their `__init__`.
    """
    verify = Path(__file__).resolve().parents[1]
    packages = {"onnxgrad": str(verify.parent), "onnxgrad.verify": str(verify)}
    return f"""
import gc
gc.disable()  # imports leave no garbage; `main` enables it
from types import ModuleType
for name, folder in {packages!a}.items():
    sys.modules[name] = ModuleType(name)
    sys.modules[name].__path__ = [folder]
from onnxgrad.verify.running.child_main import main
main()
"""


def _python_of(kind: str) -> str:
    """Returns the interpreter of the kind of a `Runtime`; empty if it is this one."""
    return kind.removeprefix(OTHER).partition("\0")[0]


def _settings(kind: str) -> dict[str, str]:
    """Returns environment variables for the libraries of a child, which users may override."""
    return {_BLAS_THREADS: "1", **(_KEEPS_MEMORY if kind == "float64" else {})}


class Child:
    """One child process. Threads share it through `pool.held`, which takes its lock."""

    def __init__(self, kind: str, *, fork: bool = False) -> None:
        """`kind`: a provider, "float64", or that of a `Runtime`. `fork`: fork this process."""
        self.kind = kind
        self.lock = threading.RLock()
        self.log = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the child
        # Nobody writes to this pipe: it closes when we end. pass_fds is POSIX only; elsewhere the
        # child notices the end of its stdin.
        watched, self.life = os.pipe() if os.name == "posix" else (-1, -1)
        other = kind.startswith(OTHER)
        command, sent = (
            command_of(kind, str(watched))
            if other and _python_of(kind)
            else (python_command(_start(), "runtime" if other else kind, str(watched)), b"")
        )
        try:
            with interrupts_held():
                self.process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self.log,
                    pass_fds=() if watched < 0 else (watched,),
                    env={**_settings(kind), **os.environ},
                    # it never returns to run the command
                    preexec_fn=partial(become, kind, watched, _settings(kind)) if fork else None,
                    restore_signals=not fork,
                )
        except OSError as error:
            _close(self.life)
            if not sent:
                raise
            raise InputError(f"{command[0]}: cannot be started: {error.strerror}") from error
        except BaseException:  # close the pipe even after an interrupt
            _close(self.life)
            raise
        finally:
            _close(watched)
        self.requests = cast(BinaryIO, self.process.stdin)
        self.answers = cast(BinaryIO, self.process.stdout)
        self.owner = os.getpid()
        atexit.register(self.kill)
        with contextlib.suppress(BrokenPipeError):  # it ended at once: the first request says why
            self.requests.write(sent)
            self.requests.flush()

    @property
    def on_cpu(self) -> bool:
        """Whether models run on the CPU, where the address space may be limited. Devices reserve
        far more of it than they use: only resident memory counts there.
        """
        return self.kind in ("cpu", "float64") or self.kind.endswith(f"\0{PROVIDERS['cpu']}")

    def alive(self) -> bool:
        return self.owner == os.getpid() and self.process.poll() is None

    def resident(self) -> int:
        """Returns the bytes that the child holds now; 0 if the system has no /proc."""
        return _resident(self.process.pid)

    def peak(self) -> int:
        """Returns the most bytes that the child has held; 0 if the system has no /proc."""
        try:
            lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        except OSError:
            return 0
        return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))

    def kill(self) -> None:
        """Kills and reaps the child. A fork of the process that started the child leaves
        it alone.
        """
        if self.owner != os.getpid():
            return
        atexit.unregister(self.kill)
        self.process.kill()
        self.process.wait()
        _close(self.life)
        self.life = -1
        for stream in (self.requests, self.answers, self.log):
            try:
                stream.close()
            except BrokenPipeError:  # drop unsent data
                continue

    def ask(
        self,
        timeout: float,
        verb: str,
        *arguments: Any,
        called: Callable[..., Any] | None = None,
    ) -> Any:
        """Sends one request and returns the answer, within `timeout` seconds and the limits in
        force. `called` answers calls of the child in the meantime.

        Raises LimitReached if the deadline of all work passes, RunFailed (killed, timeout or
        memory) if the child is lost for another reason, and Refused if the child answers with a
        failure.
        """
        limits = current()
        left = limits.left()
        watch = _Watch(self.process, min(timeout, left), limits.memory)
        try:
            with watch:
                memory = limits.memory if self.on_cpu else 0
                status, *answer = self._exchange((verb, memory, *arguments), watch)
                while status == "call" and called is not None:
                    status, *answer = self._exchange(_answer(called, answer), watch)
        except (EOFError, BrokenPipeError) as error:
            code = self.process.wait()
            self.log.seek(0)
            printed = last_words(self.log.read().decode("utf-8", "replace"))
            self.kill()
            if watch.lost == "timeout" and left <= timeout:
                raise limits.out_of_time() from error
            lost = watch.lost
            if not lost and (code == -signal.SIGKILL or "bad_alloc" in printed):
                lost = "memory"  # the kernel's out-of-memory killer
            raise RunFailed(lost or "killed", _obituary(lost, code, timeout, printed)) from error
        except BaseException:
            # interrupted: a late answer would be mistaken for the answer to the next request
            self.kill()
            raise
        if status == "failed":
            raise Refused(*answer)
        return answer[0]

    def _exchange(self, message: Any, watch: _Watch) -> Any:
        """Sends a message and receives the answer. The watch starts only if one of them is large or
        the answer is late, because starting a thread takes longer than most answers.
        """
        send(self.requests, message, large=watch.start)
        if not _is_readable(self.answers, min(_SOON, watch.seconds)):
            watch.start()
        return receive(self.answers, large=watch.start)


class _Watch:
    """Kills a process that exceeds a time limit, or a memory limit after `start` was called. `lost`
    is then the reason ("timeout" or "memory").
    """

    def __init__(self, process: subprocess.Popen[bytes], seconds: float, memory: int) -> None:
        self.lost, self.seconds = "", seconds
        self._process, self._memory = process, memory
        self._deadline = time.monotonic() + seconds
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def _look(self) -> None:
        while not self._done.wait(min(0.2, max(0.0, self._deadline - time.monotonic()))):
            if time.monotonic() >= self._deadline:
                self.lost = "timeout"
            elif _resident(self._process.pid) > self._memory:
                self.lost = "memory"
            if self.lost:
                self._process.kill()
                return

    def start(self) -> None:
        """Starts the watch."""
        if self._thread is None:
            thread = threading.Thread(target=self._look, daemon=True)
            thread.start()  # an interrupt here leaves nothing to join
            self._thread = thread

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exc: object) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()


class Refused(Exception):
    """The child answered with an exception. It carries the name of its class and its message, in
    one line.
    """

    def __init__(self, kind: str, words: str) -> None:
        super().__init__(kind, words)  # the arguments make it picklable
        self.kind = kind
        self.words = one_line(words)


def _answer(called: Callable[..., Any], call: list[Any]) -> tuple[str, Any]:
    """Returns the result of a user's function, or its failure, which users see as the failure of
    the node.
    """
    try:
        return "ok", called(*call)
    except Exception as error:  # noqa: BLE001  # any exception means that the node has no result
        return "failed", (type(error).__name__, one_line(error, 300))


def last_words(log: str) -> str:
    """Returns the last line of a log, without colours. onnxruntime's warnings do not count, because
    no process dies of them, and they may be of an earlier run.
    """
    lines = _COLOUR.sub("", log).splitlines()
    told = [line.strip() for line in lines if line.strip() and not _WARNING.search(line)]
    return told[-1][:300] if told else ""


def _obituary(lost: str, code: int, timeout: float, printed: str) -> str:
    if lost == "timeout":
        return f"no answer within {timeout:g} s"
    if lost == "memory":
        return needs_more_memory()
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        return f"it died of {name}" + (f" ({printed})" if printed else "")
    return f"it exited with {code}" + (f" ({printed})" if printed else "")


def _is_readable(stream: BinaryIO, seconds: float) -> bool:
    """Returns whether bytes can be read within some seconds; False if the system cannot tell."""
    if not hasattr(select, "poll"):  # Windows
        return False
    poll = select.poll()
    poll.register(stream, select.POLLIN)
    return bool(poll.poll(1000 * seconds))


def _close(descriptor: int) -> None:
    if descriptor >= 0:
        os.close(descriptor)


def needs_more_memory() -> str:
    """Returns the message for a run that ran out of memory."""
    raised = option("--max-memory", "max_memory=")
    return f"it needs more memory than {size_text(current().memory)} ({raised})"


def _resident(pid: int) -> int:
    """Returns the resident bytes of a process; 0 if the system has no /proc."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


_pool: dict[str, Child] = {}
_lock = threading.Lock()


def pooled(kind: str, started: Callable[[Child], object] | None = None) -> Child:
    """Returns the warm child for a provider or for "float64". A new child is passed to `started`.
    It starts in the background.
    """
    with _lock:
        child = _pool.get(kind)
        if child is None or not child.alive():
            child = Child(kind)
            if started is not None:
                try:
                    started(child)
                except BaseException:
                    child.kill()  # otherwise a half-prepared child would serve the next request
                    raise
            _pool[kind] = child
        return child


def warm(kind: str) -> None:
    """Starts the pooled child while this program starts, as a fork if possible."""
    with _lock:
        if kind not in _pool:
            _pool[kind] = Child(kind, fork=may_fork())


@contextmanager
def held(kind: str, started: Callable[[Child], object] | None = None) -> Iterator[Child]:
    """Yields the child of `pooled`, alive and locked for this thread until the block ends, so that
    the child keeps its state.

    A thread that waits for a child gets another one if the thread before it lost the child.
    """
    while True:
        child = pooled(kind, started)
        with child.lock:
            if child.alive():
                yield child
                return


def interrupt(kinds: Iterable[str]) -> None:
    """Kills the processes of these kinds, so that a thread that waits for an answer gets an error.
    The next run starts new ones.
    """
    with _lock:
        for kind in kinds:
            if kind in _pool:
                _pool[kind].process.kill()


def release() -> None:
    """Kills every child of this process, but waits for their ends only when it ends itself: it
    takes milliseconds to free the memory of each. The next run starts new ones.
    """
    with _lock:
        for child in _pool.values():
            if child.owner == os.getpid():
                child.process.kill()
        _pool.clear()


def close() -> None:
    """Kills every child of this process. The next run starts new ones."""
    with _lock:
        for child in _pool.values():
            child.kill()
        _pool.clear()
