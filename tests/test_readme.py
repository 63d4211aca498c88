"""The README's Python and its commands run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import onnxgrad
from onnxgrad.ir.load import load
from tests.helpers import ROOT
from tests.pages import Command, commands, run_command

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
COMMANDS = [c for b in re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL) for c in commands(b)]


@pytest.mark.parametrize("index", range(len(BLOCKS)))
def test_block(index: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models").symlink_to(ROOT / "models")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(BLOCKS[index], "README.md", "exec"), names)
    if "fused" in names:
        block = load(names["fused"]).main
        assert sum(b.op == "MatMul" for b in block.bindings) == 72
        assert onnxgrad.verify(Path("models/bert.onnx"), names["fused"]).ok


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.words[1])
def test_command(
    command: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "models").symlink_to(ROOT / "models")
    monkeypatch.chdir(tmp_path)
    run_command(command, capsys)


def test_the_three_promises_stand_first() -> None:
    assert [c.words[1] for c in COMMANDS] == ["optimize", "grad", "train-step"]
    assert all(c.output for c in COMMANDS)


def test_the_pattern_example_is_short() -> None:
    (example,) = [b for b in BLOCKS if "fuse_qkv" in b]
    assert len(example.strip().splitlines()) < 25


def test_it_is_short() -> None:
    assert len(TEXT.splitlines()) <= 180
