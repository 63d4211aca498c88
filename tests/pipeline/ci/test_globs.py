"""What a glob would find is what it finds."""

from __future__ import annotations

import glob
from pathlib import Path

import pytest

from onnxgrad.pipeline.ci.globs import broken_links, meets

_NAMES = (
    "a.onnx", ".a.onnx", "b[1].onnx", "sub/a.onnx", "sub/deep/c.onnx", "sub/.hidden/d.onnx", "sub/e",
)  # fmt: skip


@pytest.mark.parametrize(
    "pattern",
    ["*.onnx", "./*.onnx", "**/*.onnx", "**", "**/**", "sub/**", "sub/*/c.onnx", "**/deep/*", ".*",
     "*/?.onnx", "sub/.hidden/*", "[ab]*", "sub/../a.onnx", "a.onnx", "nothing"],
)  # fmt: skip
def test_as_glob_does(tmp_path: Path, pattern: str) -> None:
    for name in _NAMES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = glob.glob(str(tmp_path / pattern), recursive=True)
    files = {Path(n).resolve().relative_to(tmp_path).as_posix() for n in found if Path(n).is_file()}
    assert {n for n in _NAMES if meets(pattern, n)} == files


def test_links_to_nowhere(tmp_path: Path) -> None:
    (tmp_path / "a.onnx").touch()
    (tmp_path / "b.onnx").symlink_to("a.onnx")
    (tmp_path / "c.onnx").symlink_to("gone.onnx")
    assert broken_links("*.onnx", tmp_path) == ["c.onnx"]
