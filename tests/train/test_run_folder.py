"""The checkpoints of a run under their names, on any file system."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from onnxgrad.errors import InputError
from onnxgrad.ir.storage.atomic_files import write_whole
from onnxgrad.train.run_folder import RunFolder


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


@pytest.mark.parametrize("links", [True, False])
def test_the_last_few_stay(tmp_path: Path, links: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise OSError(errno.EPERM, "no second names here")

    if not links:
        monkeypatch.setattr(os, "link", refused)
    place = RunFolder(tmp_path / "a" / "run", keep=2)
    for steps in (8, 9, 10, 10):
        place.save(lambda path, steps=steps: write_whole(path, b"%d" % steps), steps)
    assert [(p.name, p.read_text()) for p in place.kept()] == [
        ("checkpoint-9.safetensors", "9"),
        ("checkpoint-10.safetensors", "10"),
    ]
    assert names(place.path) == sorted([*(p.name for p in place.kept()), place.last.name])
    RunFolder(place.path, keep=1).link(11)
    assert [p.name for p in place.kept()] == ["checkpoint-11.safetensors"]


def test_a_disk_that_is_full_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    place = RunFolder(tmp_path, keep=1)
    with pytest.raises(InputError, match=r"checkpoint-1\.safetensors: cannot be written: No space"):
        place.save(lambda path: path.write_text("1") and None, 1)
    assert names(tmp_path) == [place.last.name]
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be made"):
        RunFolder(tmp_path / "file" / "run").save_best(lambda path: None)
