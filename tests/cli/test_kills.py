"""Runs that are ended at random moments, and disks that are full at each write: OUT is whole, old or new."""

from __future__ import annotations

import errno
import functools
import io
import os
import resource
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

from onnxgrad.ir import files
from scripts.sweep_kills import SIGNALS, model_with_weights, sweep
from tests.cli.conftest import Result
from tests.helpers import ROOT

Run = Callable[..., Result]


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks processes up in /proc")
@pytest.mark.parametrize(("count", "words"), [(6, ("--no-verify",)), (3, ())])
def test_ended_at_random_moments(count: int, words: tuple[str, ...]) -> None:
    outcomes, wrong = sweep(count, 24, 7, *words)
    assert not wrong
    for number in SIGNALS:
        landed = sum(n for outcome, n in outcomes.items() if outcome.startswith(number.name))
        assert landed == count // len(SIGNALS), outcomes


class Disk:
    """Fails at one of the calls that bring data to it."""

    def __init__(self, full_at: int) -> None:
        self.full_at, self.calls = full_at, 0

    def call(self) -> None:
        self.calls += 1
        if self.calls - 1 == self.full_at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def open(self, descriptor: int, mode: str) -> Any:
        disk = self

        class File(io.FileIO):
            def write(self, data: Any) -> int:
                disk.call()
                return super().write(data) or 0

        return io.BufferedWriter(File(descriptor, "w"))


def test_a_disk_that_is_full_at_each_write(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = (
        model_with_weights(tmp_path / name, 1, seed) for seed, name in enumerate(("old", "new"))
    )
    out = tmp_path / "out"
    out.mkdir()
    assert run("optimize", old, "-o", out / "o.onnx", "--no-verify").code == 0
    before = {p.name: p.read_bytes() for p in out.iterdir()}
    inputs = {p: p.read_bytes() for p in new.parent.iterdir()}
    replace, sync = os.replace, os.fsync

    def synced(disk: Disk, descriptor: int) -> None:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):  # folders are synced where that is possible
            disk.call()
        sync(descriptor)

    full_at, code = 0, 2
    while code == 2:
        disk = Disk(full_at)
        with monkeypatch.context() as patched:
            patched.setattr(files, "open", disk.open, raising=False)
            patched.setattr(os, "replace", lambda a, b, disk=disk: (disk.call(), replace(a, b)))
            patched.setattr(os, "fsync", functools.partial(synced, disk))
            done = run("optimize", new, "-o", out / "o.onnx", "--no-verify")
        code, full_at = done.code, full_at + 1
        if code == 2:
            assert done.err.endswith(
                f"{out / 'o.onnx'}: cannot be written: No space left on device\n"
            )
            assert {p.name: p.read_bytes() for p in out.iterdir()} == before
        assert {p: p.read_bytes() for p in new.parent.iterdir()} == inputs
    assert code == 0 and full_at > 6, "two files: written, synced, renamed"
    assert len(list(out.iterdir())) == 2 and onnx.load(out / "o.onnx").graph.initializer


@pytest.mark.parametrize(
    "limit", [1, pytest.param(0, marks=pytest.mark.slow), pytest.param(8, marks=pytest.mark.slow)]
)
def test_a_file_that_may_not_grow(tmp_path: Path, limit: int) -> None:
    """RLIMIT_FSIZE in 64 KiB: the kernel refuses a write in the middle of the weights."""
    model = model_with_weights(tmp_path / "in", 1, 0)
    done = subprocess.run(
        [sys.executable, "-m", "onnxgrad", "optimize", model, "-o", tmp_path / "o.onnx", "--no-verify"],
        cwd=ROOT, capture_output=True, timeout=120, env={**os.environ, "PYTHONPATH": str(ROOT)},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit << 16, limit << 16)),
    )  # fmt: skip
    assert (
        done.returncode == 2
        and done.stderr.count(b"\n") == 1
        and b"cannot be written" in done.stderr
    )
    assert [p.name for p in tmp_path.iterdir()] == ["in"]
