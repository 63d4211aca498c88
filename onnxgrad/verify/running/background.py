"""Calls in a background thread, so that child processes work while this process does.

The thread mostly waits for child processes. Results and errors reach the caller on request.
"""

from __future__ import annotations

import contextvars
import functools
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Generic, ParamSpec, TypeVar

from onnxgrad.verify.running.child_process import interrupt

_P = ParamSpec("_P")
_R = TypeVar("_R")
_AGAIN = 0.05  # seconds between attempts to end a call
_ATTEMPTS = 20


class Later(Generic[_R]):
    """The result of a call in a background thread."""

    def __init__(self, call: Callable[[], _R]) -> None:
        self._call = call
        self._done = threading.Event()
        self._found: list[_R] = []
        self._error: BaseException | None = None

    def make(self) -> None:
        """Makes the call, in the background thread."""
        try:
            self._found.append(self._call())
        except BaseException as error:  # noqa: BLE001  # `result` raises it
            self._error = error
        finally:
            self._done.set()

    def result(self) -> _R:
        """Waits for the call. Returns its result, or raises its error."""
        self._done.wait()
        if self._error is not None:
            raise self._error
        return self._found[0]


class Background:
    """A thread that makes calls one after the other, within the limits of the thread that starts
    it. A context manager; all calls finish before it exits.
    """

    def __init__(self, *kinds: str) -> None:
        """`kinds`: the child processes that the calls use."""
        self._kinds = kinds
        self._calls: SimpleQueue[Later[Any] | None] = SimpleQueue()
        self._stopped = False
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._work,), daemon=True)
        self._thread.start()

    def call(self, function: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> Later[_R]:
        """Adds a call to the queue."""
        later = Later(functools.partial(function, *args, **kwargs))
        self._calls.put(later)
        return later

    def _work(self) -> None:
        while (later := self._calls.get()) is not None and not self._stopped:
            later.make()

    def __enter__(self) -> Background:
        return self

    def __exit__(self, *exc: object) -> None:
        """Ends the thread. The children that a call under way uses are killed. A call that computes
        in this process for long is left to itself, in a daemon thread.
        """
        self._stopped = True
        self._calls.put(None)
        self._thread.join(_AGAIN)
        for _ in range(_ATTEMPTS):
            if not self._thread.is_alive():
                return
            interrupt(self._kinds)
            self._thread.join(_AGAIN)
