"""The child processes of this process, one per kind of work, started on first use and again
after a death.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from onnxgrad.verify.running.process import Child

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
                    child.kill()  # half prepared, it would serve whoever asks next
                    raise
            _pool[kind] = child
        return child


@contextmanager
def held(kind: str, started: Callable[[Child], object] | None = None) -> Iterator[Child]:
    """The child of `pooled`, alive, and this thread's alone until the block ends: what it was asked
    to keep is there.

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
