"""The README's Python runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import onnxgrad
from onnxgrad.ir.load import load
from tests.helpers import ROOT

BLOCKS = re.findall(
    r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL
)


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


def test_the_pattern_example_is_short() -> None:
    (example,) = [b for b in BLOCKS if "fuse_qkv" in b]
    assert len(example.strip().splitlines()) < 25
