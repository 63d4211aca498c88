from __future__ import annotations

import time

import pytest

from onnxgrad.cli import report
from onnxgrad.cli.report import Output, bytes_text, change, clean, seconds_text


def test_a_bar_for_long_work_only(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    out = Output(color="always")
    with out.progress("m", 4) as advance:
        advance("short", 1)
    assert "short" not in capsys.readouterr().err
    monkeypatch.setattr(report, "_PATIENCE", 0.01)
    with out.progress("m", 4) as advance:
        advance("fold", 9)  # more steps than expected: not full before the end
        time.sleep(0.3)
        advance("running", None)
        time.sleep(0.3)
    shown = capsys.readouterr()
    assert "m: fold" in shown.err and "m: running" in shown.err and shown.out == ""
    assert shown.err.endswith("\x1b[2K")  # the line is gone


def test_no_bar_in_a_pipe(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(report, "_PATIENCE", 0.0)
    with Output().progress("m", 4) as advance:
        advance("fold", 1)
        time.sleep(0.1)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (99_940, "99.9 kB"), (999_600, "1 MB"), (2_904_027, "2.9 MB")],
)
def test_sizes(size: int, text: str) -> None:
    assert bytes_text(size) == text


def test_small_texts() -> None:
    assert seconds_text(0.0123) == "12 ms" and seconds_text(61) == "61.0 s"
    assert str(change(4, 1)) == "-3 (-75 %)" and str(change(0, 2)) == "+2" and str(change(3, 3)) == "="
    assert clean("a\x1b[2Jb\tc\nd") == "a\\x1b[2Jb\tc\nd"
