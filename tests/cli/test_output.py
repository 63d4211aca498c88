from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from onnxgrad.cli import output
from onnxgrad.cli.output import Output
from tests.cli.conftest import Result


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


@pytest.mark.parametrize(
    "words",
    [
        ("optimize", "--no-verify"),
        ("optimize", "--no-verify", "-v"),
        ("grad", "--no-verify"),
        ("grad", "--no-verify", "--mark", "--checkpoint", "auto"),
        ("grad", "--no-verify", "--jvp"),
        ("extract", "--no-verify", "--outputs", "p"),
        ("edit", "--no-verify", "--rename", "p=renamed"),
        ("convert-opset", "--to", "21", "--no-verify"),
        ("float16", "--no-verify"),
        ("metadata", "--set", "a=b"),
        ("place", "--device", "cuda=op:MatMul"),
    ],
)
def test_every_command_says_last_what_it_wrote(
    run: Callable[..., Result], branches: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    command, *options = words
    if command == "grad":
        options += ["--target", "y"]
    out, report = tmp_path / "out.onnx", tmp_path / "report.json"
    done = run(command, branches, "-o", out, *options, "--json", report)
    assert done.code == 0 and done.out.splitlines()[-1] == f"wrote {out}, {report}", done
    assert run(command, branches, "-o", out, *options, "-q").out == ""
    assert f"wrote {out}" not in run(command, branches, "-o", out, *options, "--json", "-").out


def test_of_many_files_some_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    for verbose, last in ((False, "f5, 2 more (-v)"), (True, "f5, f6, f7")):
        out = Output(verbose=verbose)
        out.wrote(*(f"f{i}" for i in range(8)), None, "f0")
        out.finish()
        assert capsys.readouterr().out == f"wrote f0, f1, f2, f3, f4, {last}\n"
    Output().finish()
    assert capsys.readouterr().out == ""
