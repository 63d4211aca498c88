"""What watches training: lines that anybody can read, a picture, and the end that comes early."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from onnxgrad.errors import InputError
from onnxgrad.train.callbacks import EarlyStopping, Event, History, JsonLines

EVENTS = [
    Event(1, 0, 2.0, 0.1),
    Event(2, 0, 1.0, 0.1),
    Event(2, 0, 1.5, 0.0, {"loss": 1.5, "accuracy": 0.5}),
]


def test_lines_are_added(tmp_path: Path) -> None:
    for _ in range(2):
        for event in EVENTS:
            JsonLines(tmp_path / "log")(event)
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert lines[0] == {"step": 1, "epoch": 0, "loss": 2.0, "rate": 0.1}
    assert lines[2] == {"step": 2, "epoch": 0, "evaluation": {"loss": 1.5, "accuracy": 0.5}}
    assert len(lines) == 6


def test_a_norm_is_told_where_there_is_one(tmp_path: Path) -> None:
    for norm in (0.5, float("inf")):
        JsonLines(tmp_path / "log")(Event(1, 0, 2.0, 0.1, gradient_norm=norm))
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [line["gradient_norm"] for line in lines] == [0.5, None]


def test_a_log_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        JsonLines(tmp_path)(EVENTS[0])


def test_history_tells_steps_from_evaluations(tmp_path: Path) -> None:
    history = History()
    for event in EVENTS:
        history(event)
    assert history.losses == [2.0, 1.0]
    assert history.evaluations == [{"loss": 1.5, "accuracy": 0.5}]
    pytest.importorskip("matplotlib", reason="the extra `plot` draws")
    history.plot(tmp_path / "loss.png")
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_patience() -> None:
    stopping = EarlyStopping(2)
    told = [stopping(Event(1, 0, 0.0, 0.0, {"loss": loss})) for loss in (3.0, 2.0, 2.0, 1.9, 5, 6)]
    assert told == [False, False, False, False, False, True]
    assert stopping(EVENTS[0]) is False
