"""Calls in a background thread: their order, errors and limits, and an end that leaves nothing."""

from __future__ import annotations

import threading
import time

import pytest

from onnxgrad.errors import InputError
from onnxgrad.limits import current, limited
from onnxgrad.verify.running.background import Background
from onnxgrad.verify.running.child_process import held, pooled
from onnxgrad.verify.running.session import open_session
from tests.helpers import parse
from tests.verify.running.test_session import ENDLESS


def test_calls_in_order_with_results_and_errors_within_the_limits() -> None:
    made: list[int] = []

    def refuse() -> int:
        raise InputError("not this one")

    with limited(50, "3GB"), Background() as line:
        first, second = line.call(made.append, 1), line.call(refuse)
        memory = line.call(lambda: (made.append(2), current().memory)[1])
        assert memory.result() == 3_000_000_000 and made == [1, 2] and first.result() is None
        for _ in range(2):
            with pytest.raises(InputError, match="not this one"):
                second.result()


def test_the_end_kills_the_child_of_a_call_under_way_and_waits_for_the_thread() -> None:
    import numpy as np

    before = threading.active_count()
    session = open_session(parse(ENDLESS))
    feeds = {"n": np.array(10**7), "x": np.zeros((300, 300), np.float32)}
    child = pooled("cpu")
    never: list[int] = []
    with Background("cpu") as line:
        line.call(session.run, feeds)
        line.call(never.append, 1)
        time.sleep(0.2)
        started = time.monotonic()
    assert time.monotonic() - started < 5 and threading.active_count() == before
    assert not child.alive() and not never
    with held("cpu") as another:  # the next run starts a new child
        assert another.alive()
