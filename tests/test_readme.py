"""The README's Python runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import onnxgrad
from onnxgrad.cli.app import main
from onnxgrad.ir.load import load
from tests.helpers import ROOT

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


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


def test_the_recipe_before_deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (recipe,) = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)
    (tmp_path / "models").mkdir()
    name = "mobilenet_v2.raw.onnx"
    (tmp_path / "models" / name).symlink_to(ROOT / "models" / name)
    (tmp_path / "onnxgrad.toml").write_text(f"{recipe}\n[bench]\nseconds = 0.2\nrounds = 5\n")
    monkeypatch.chdir(tmp_path)
    assert main(["ci", "-q", "--update"]) == 0
    assert (tmp_path / "build" / name).is_file() and (tmp_path / "onnxgrad.lock.json").is_file()


def test_the_pattern_example_is_short() -> None:
    (example,) = [b for b in BLOCKS if "fuse_qkv" in b]
    assert len(example.strip().splitlines()) < 25
