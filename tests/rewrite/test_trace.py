"""The record of a run: numbers, counts, reasons once, and the limit."""

from __future__ import annotations

import pytest

from onnxgrad.rewrite.trace import Decline, Trace, decline


def test_firings_are_numbered_and_know_their_pass() -> None:
    trace = Trace()
    for pass_name, rule in (("one", "a"), ("one", "b"), ("two", "a")):
        trace.pass_name = pass_name
        trace.fired(rule, "y = Relu(x)")
    assert [(f.number, f.pass_name, f.rule) for f in trace.rewrites] == [
        (1, "one", "a"),
        (2, "one", "b"),
        (3, "two", "a"),
    ]


@pytest.mark.parametrize(
    ("limit", "stopped"), [(None, [False] * 3), (0, [True] * 3), (2, [False, False, True])]
)
def test_the_limit_stops_after_that_many(limit: int | None, stopped: list[bool]) -> None:
    trace, found = Trace(limit=limit), []
    for _ in range(3):
        found.append(trace.stopped)
        trace.fired("a", "")
    assert found == stopped


def test_a_near_miss_is_recorded_once_and_only_where_asked_for() -> None:
    silent, told = Trace(), Trace(explain=True)
    for trace in (silent, told):
        for where, reason in (
            ("x", "too long"),
            ("x", "too long"),
            ("z", "too long"),
            ("x", "too wide"),
        ):
            trace.missed("law", where, reason)
    assert not silent.declined
    assert list(told.declined) == [
        ("law", "x", "too long"),
        ("law", "z", "too long"),
        ("law", "x", "too wide"),
    ]


def test_counts_are_made_on_first_use() -> None:
    trace = Trace()
    trace.of("law").tried += 2
    trace.of("law").applied += 1
    counts = trace.counts["law"]
    assert (counts.tried, counts.matched, counts.applied) == (2, 0, 1) and list(trace.counts) == [
        "law"
    ]


def test_a_decline_is_returned_or_raised() -> None:
    answer = decline("for a reason")
    assert isinstance(answer, Decline) and answer.reason == str(answer) == "for a reason"
    with pytest.raises(Decline, match="for a reason"):
        raise answer
