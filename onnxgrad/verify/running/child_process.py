"""Child processes in which models run: pooled, limited in time and memory, killed at exit."""

from __future__ import annotations

import atexit
import os
import select
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from onnxgrad.errors import NotProved
from onnxgrad.interpreter import interrupts_held, python_command
from onnxgrad.limits import current, size_text
from onnxgrad.verify.running.wire import receive, send
from onnxgrad.wording import option

_SOON = 0.05  # seconds in which most answers come


class RunFailed(NotProved):
    """onnxruntime could not load or run a model. `stage`: load, run, timeout, memory or killed;
    `reason`: its own words.
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
        """A limit of ours was reached: nothing is known about the model."""
        return self.stage in ("timeout", "memory")


def _start() -> str:
    """Returns the child's program: the packages around `child_main.py` are entered without running
    their __init__.
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


class Child:
    """One child process; between threads `pool.held` shares it, by its lock."""

    def __init__(self, kind: str) -> None:
        """`kind`: the provider that it is for, or "float64"."""
        self.kind = kind
        self.lock = threading.RLock()
        self.log = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the child
        # Nobody writes to this pipe: its end is ours. pass_fds is POSIX only; elsewhere the child
        # sees its stdin end.
        watched, self.life = os.pipe() if os.name == "posix" else (-1, -1)
        try:
            with interrupts_held():
                self.process = subprocess.Popen(
                    python_command(_start(), kind, str(watched)),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self.log,
                    pass_fds=() if watched < 0 else (watched,),
                )
        except BaseException:  # an interrupt too leaves no pipe
            _close(self.life)
            raise
        finally:
            _close(watched)
        self.requests = cast(BinaryIO, self.process.stdin)
        self.answers = cast(BinaryIO, self.process.stdout)
        self.owner = os.getpid()
        atexit.register(self.kill)

    def alive(self) -> bool:
        return self.owner == os.getpid() and self.process.poll() is None

    def resident(self) -> int:
        """Bytes that it holds now; 0 if the system has no /proc."""
        return _resident(self.process.pid)

    def peak(self) -> int:
        """Bytes that it held when it held most; 0 if the system has no /proc."""
        try:
            lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        except OSError:
            return 0
        return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))

    def kill(self) -> None:
        """Kill and reap. A fork of the process that started the child leaves it alone."""
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
            except BrokenPipeError:  # what was left unsent goes nowhere
                continue

    def ask(
        self,
        timeout: float,
        verb: str,
        *arguments: Any,
        called: Callable[..., Any] | None = None,
    ) -> Any:
        """One request, bound by `timeout` seconds and by the limits in force; `called` answers what
        the child asks of us meanwhile.

        Raises LimitReached when the deadline of all work passes, RunFailed(killed | timeout |
        memory) when the child is lost otherwise, Refused when it answers with a failure.
        """
        limits = current()
        left = limits.left()
        watch = _Watch(self.process, min(timeout, left), limits.memory)
        try:
            with watch:
                # CUDA reserves far more address space than it uses: there only what is resident
                # counts
                memory = 0 if self.kind == "cuda" else limits.memory
                status, *answer = self._exchange((verb, memory, *arguments), watch)
                while status == "call" and called is not None:
                    status, *answer = self._exchange(_answer(called, answer), watch)
        except (EOFError, BrokenPipeError) as error:
            code = self.process.wait()
            self.log.seek(0)
            lines = self.log.read().decode("utf-8", "replace").strip().splitlines()
            printed = lines[-1][:300] if lines else ""
            self.kill()
            if watch.lost == "timeout" and left <= timeout:
                raise limits.out_of_time() from error
            lost = watch.lost
            if not lost and (code == -signal.SIGKILL or "bad_alloc" in printed):
                lost = "memory"  # the kernel's own watch over memory
            raise RunFailed(lost or "killed", _obituary(lost, code, timeout, printed)) from error
        except BaseException:
            # interrupted: what it still answers would be taken for the next request's answer
            self.kill()
            raise
        if status == "failed":
            raise Refused(*answer)
        return answer[0]

    def _exchange(self, message: Any, watch: _Watch) -> Any:
        """Send a message and receive the answer. The watch starts if one of them is large or the
        answer takes its time: starting a thread takes longer than most answers.
        """
        send(self.requests, message, large=watch.start)
        if not _is_readable(self.answers, min(_SOON, watch.seconds)):
            watch.start()
        return receive(self.answers, large=watch.start)


class _Watch:
    """Kills a process that takes more than some seconds, or once `start` was called more than some
    bytes; `lost` then is the reason ("timeout", "memory").
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
        """Watch from now on."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._look, daemon=True)
            self._thread.start()

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exc: object) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()


class Refused(Exception):
    """The child answered with an exception: its class name and its words."""

    def __init__(self, kind: str, words: str) -> None:
        super().__init__(kind, words)  # its arguments, so that it survives pickling
        self.kind = kind
        self.words = words


def _answer(called: Callable[..., Any], call: list[Any]) -> tuple[str, Any]:
    """Returns the result of a user's function, or how it failed: users see that as the node's
    failure.
    """
    try:
        return "ok", called(*call)
    except Exception as error:  # noqa: BLE001  # whatever it raises, the node has no result
        return "failed", (type(error).__name__, " ".join(str(error).split())[:300])


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
    """Whether bytes can be read within some seconds; False if the system cannot tell."""
    if not hasattr(select, "poll"):  # Windows
        return False
    poll = select.poll()
    poll.register(stream, select.POLLIN)
    return bool(poll.poll(1000 * seconds))


def _close(descriptor: int) -> None:
    if descriptor >= 0:
        os.close(descriptor)


def needs_more_memory() -> str:
    """Returns the words for a run that ran out of memory."""
    raised = option("--max-memory", "max_memory=")
    return f"it needs more memory than {size_text(current().memory)} ({raised})"


def _resident(pid: int) -> int:
    """Resident bytes of a process; 0 if the system has no /proc."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


_pool: dict[str, Child] = {}
_lock = threading.Lock()


def pooled(kind: str, started: Callable[[Child], object] | None = None) -> Child:
    """The warm child for a provider, or for "float64"; a new one is handed to `started`. It starts
    by itself, while we go on.
    """
    with _lock:
        child = _pool.get(kind)
        if child is None or not child.alive():
            child = Child(kind)
            if started is not None:
                try:
                    started(child)
                except BaseException:
                    child.kill()  # half prepared, it would serve the next request
                    raise
            _pool[kind] = child
        return child


@contextmanager
def held(kind: str, started: Callable[[Child], object] | None = None) -> Iterator[Child]:
    """The child of `pooled`, alive, and this thread's alone until the block ends: what it
    keeps is there.

    Threads that wait for it get another one when the one before them lost it.
    """
    while True:
        child = pooled(kind, started)
        with child.lock:
            if child.alive():
                yield child
                return


def close() -> None:
    """Kill every child of this process; the next run starts fresh ones."""
    with _lock:
        for child in _pool.values():
            child.kill()
        _pool.clear()
