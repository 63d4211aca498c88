from __future__ import annotations

import time

import pytest

from onnxgrad.cli import output
from onnxgrad.cli.output import Output


def test_a_bar_for_long_work_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = Output(color="always")
    with out.progress("m", 4) as advance:
        advance("short", 1)
    assert "short" not in capsys.readouterr().err
    monkeypatch.setattr(output, "_PATIENCE", 0.01)
    with out.progress("m", 4) as advance:
        advance("fold", 9)  # more steps than expected: not full before the end
        time.sleep(0.3)
        advance("running", None)
        time.sleep(0.3)
    shown = capsys.readouterr()
    assert "m: fold" in shown.err and "m: running" in shown.err and shown.out == ""
    assert shown.err.endswith("\x1b[2K")  # the line is gone


def test_no_bar_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "_PATIENCE", 0.0)
    with Output().progress("m", 4) as advance:
        advance("fold", 1)
        time.sleep(0.1)
    assert capsys.readouterr().err == ""
