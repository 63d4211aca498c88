"""What watches training: lines that anybody can read, a picture, and the end that comes early."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnxgrad.errors import InputError
from onnxgrad.train.callbacks import (
    EarlyStopping,
    Event,
    History,
    JsonLines,
    RangeTest,
    log_to,
)

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


def test_a_table_has_a_column_for_each_result(tmp_path: Path) -> None:
    path = tmp_path / "log.CSV"
    names = ["loss", "f1{average=micro,axis=1}"]
    for _ in range(2):
        log = log_to(path, names)
        log(Event(1, 0, 2.0, 0.1, gradient_norm=0.5))
        log(Event(1, 0, 1.5, 0.0, {"loss": 1.5, names[1]: 0.25}))
    with path.open(newline="") as file:
        first, *rows = list(csv.reader(file))
    assert first == ["step", "epoch", "loss", "rate", "gradient_norm", "held_out_loss",
                     "held_out_f1{average=micro,axis=1}"]  # fmt: skip
    assert (
        rows == [["1", "0", "2.0", "0.1", "0.5", "", ""], ["1", "0", "", "", "", "1.5", "0.25"]] * 2
    )
    with pytest.raises(
        InputError, match=r"its columns are step,.*, those of this run step,.*: choose"
    ):
        log_to(path, ["loss"])
    assert type(log_to(tmp_path / "csv", names)) is JsonLines


@pytest.mark.parametrize("rest", ["", "3,0,1.0,0.1,", "3,0,"])
def test_a_table_is_cut_where_the_run_stands(tmp_path: Path, rest: str) -> None:
    path = tmp_path / "log.csv"
    log = log_to(path, [])
    log.cut(0, 0)  # there is none
    log(EVENTS[0])
    before = path.read_bytes()
    log(EVENTS[1])
    path.write_bytes(path.read_bytes() + rest.encode())
    log.cut(len(before), 1)
    assert path.read_bytes() == before
    log.cut(0, 0)  # the names of the columns, too
    assert path.read_bytes() == b""
    path.write_text("step,name\n1,other\n0,kept")
    log.cut(0, 1)
    assert path.read_text().endswith("kept")


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


def test_event_files(tmp_path: Path) -> None:
    """A resumed run hides the steps after its checkpoint; nothing else of the folder changes."""
    with pytest.raises(InputError, match="tensorboard needs a folder"):
        log_to("tensorboard", [])
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2", reason="extra `tensorboard`")
    for part in ("first", "second"):
        (tmp_path / part).mkdir()
        log = log_to("tensorboard", [], tmp_path / part)
        if part == "second":
            log.cut(0, 1)
        for event in EVENTS[part == "second" :]:
            log(event)
        assert log.size == 0  # as before a checkpoint
    seen = []
    for path in sorted(tmp_path.glob("*/events.out.tfevents.*")):
        data, at = path.read_bytes(), 0
        while at < len(data):  # length, its checksum, an event, its checksum
            size = int.from_bytes(data[at : at + 8], "little")
            event = event_pb2.Event.FromString(data[at + 12 : at + 12 + size])
            at += 16 + size
            if event.HasField("session_log"):
                seen.append(("start", event.step))
            seen += [(v.tag, event.step, v.simple_value) for v in event.summary.value]
    second = [("loss", 2, 1.0), ("rate", 2, np.float32(0.1))]
    second += [("held_out/loss", 2, 1.5), ("held_out/accuracy", 2, 0.5)]
    first = [("loss", 1, 2.0), ("rate", 1, np.float32(0.1))]
    assert seen == [*first, *second, ("start", 2), *second]


def test_patience() -> None:
    stopping = EarlyStopping(2)
    told = [stopping(Event(1, 0, 0.0, 0.0, {"loss": loss})) for loss in (3.0, 2.0, 2.0, 1.9, 5, 6)]
    assert told == [False, False, False, False, False, True]
    assert stopping(EVENTS[0]) is False


def ranged(loss_at: Any) -> tuple[RangeTest, int]:
    """A test of a loss that is a function of the rate, and the number of its steps."""
    test = RangeTest()
    for step in range(1, test.steps + 1):
        rate = test.rate(step)
        if test(Event(step, 0, loss_at(rate), rate)):
            return test, step
    return test, test.steps


def test_rates_grow_by_one_factor() -> None:
    test = RangeTest(low=1e-4, high=1e-1, steps=4)
    assert [test.rate(n) for n in (1, 2, 3, 4)] == pytest.approx([1e-4, 1e-3, 1e-2, 1e-1])
    assert RangeTest().steepest is None


def test_the_loss_falls_most_before_its_least() -> None:
    """It falls around 1e-3 and grows from 0.1 on: the test ends there."""
    test, steps = ranged(lambda r: 2 / (1 + (1e3 * r) ** 2) + 1 + 1e3 * max(r - 0.1, 0))
    assert 5e-4 < (test.steepest or 0) < 3e-3
    assert test.rate(steps) < 0.3 and len(test.history.losses) == steps
    assert test.means[-1] > 4 * min(test.means) >= test.means[-2]
    rising, steps = ranged(lambda r: 1 + r)
    assert rising.steepest is None and test.means[0] == test.history.losses[0]


def test_means_are_those_of_the_weights() -> None:
    test, _ = ranged(lambda r: np.sin(1e6 * r) + 2)
    losses = np.array(test.history.losses)
    weights = 0.9 ** np.arange(10)[::-1]
    assert test.means[9] == pytest.approx((weights * losses[:10]).sum() / weights.sum())
