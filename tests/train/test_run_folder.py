"""The checkpoints of a run under their names, on any file system."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from onnxgrad import Trainer
from onnxgrad.errors import InputError, RunWarning
from onnxgrad.ir.storage.atomic_files import write_whole
from onnxgrad.train import SGD
from onnxgrad.train.run_folder import LOCK, RunFolder
from tests.helpers import ROOT
from tests.train.common import examples, step


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


HOLDS = """
import os, sys, time
from pathlib import Path
from onnxgrad.train.run_folder import RunFolder
with RunFolder(Path(sys.argv[1])).locked():
    if hasattr(os, "fork") and not os.fork():  # such as a process that loads data
        print("locked", flush=True)
        time.sleep(60)
        os._exit(0)
    time.sleep(60)
"""


def test_the_lock_dies_with_its_process(tmp_path: Path) -> None:
    """Killed, a process removes nothing; the next run begins at once, though its child lives."""
    place = RunFolder(tmp_path / "run")
    words = [sys.executable, "-c", HOLDS, str(place.path)]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, cwd=ROOT, text=True, process_group=0
    ) as child:
        try:
            assert child.stdout is not None and child.stdout.readline() == "locked\n"
            with (
                pytest.raises(InputError, match="run: another run trains in this folder"),
                place.locked(),
            ):
                pass
            child.kill()
            child.wait()
            assert names(place.path) == [LOCK]
            with place.locked(), pytest.raises(InputError, match="another run"), place.locked():
                pass
        finally:
            os.killpg(child.pid, 9)
    assert names(place.path) == []
    with RunFolder(tmp_path / "new").locked():
        assert names(tmp_path / "new") == [LOCK]
    assert names(tmp_path) == ["run"]


def test_a_second_run_in_the_folder_is_refused(tmp_path: Path) -> None:
    data = examples(32)
    with RunFolder(tmp_path).locked(), pytest.raises(InputError, match="another run trains in"):
        Trainer(step(), threads=1).fit(data, folder=tmp_path)
    assert not names(tmp_path)
    Trainer(step(), threads=1).fit(data, folder=tmp_path)
    with pytest.raises(InputError, match="belongs to another run"):
        Trainer(step(SGD()), threads=1).fit(data, epochs=2, folder=tmp_path)
    trainer = Trainer(step(), threads=1)  # no failure leaves the lock
    with pytest.warns(RunWarning, match="length"):
        trainer.fit(data, epochs=2, folder=tmp_path)
    assert trainer.progress.epoch == 2
