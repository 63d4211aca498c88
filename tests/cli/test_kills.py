"""Runs that are ended at random moments, and disks that are full at each write: OUT is whole, old or new."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import resource
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest

from onnxgrad.errors import InputError
from onnxgrad.ir.storage import atomic_files
from onnxgrad.train import Adam, read_step, save_step
from scripts.sweep_kills import SIGNALS, model_with_weights, sweep
from tests.cli.conftest import Result
from tests.helpers import ROOT, parse
from tests.train.common import step

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


@contextlib.contextmanager
def full(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every call that brings something to the disk goes through `disk`."""
    replace, sync, link = os.replace, os.fsync, os.link

    def synced(descriptor: int) -> None:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):  # folders are synced where that is possible
            disk.call()
        sync(descriptor)

    with monkeypatch.context() as patched:
        patched.setattr(atomic_files, "open", disk.open, raising=False)
        patched.setattr(os, "replace", lambda a, b: (disk.call(), replace(a, b)))
        patched.setattr(os, "link", lambda a, b: (disk.call(), link(a, b)))
        patched.setattr(os, "fsync", synced)
        yield


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
    full_at, code = 0, 2
    while code == 2:
        with full(Disk(full_at), monkeypatch):
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


@pytest.mark.parametrize("there", [False, True])
def test_a_full_disk_leaves_no_half_step(
    there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new folder is not there, an older step is whole, and the error names a file."""
    made, folder = step(), tmp_path / "a" / "step"
    if there:
        save_step(step(Adam()), folder)
    before = {p: p.read_bytes() if p.is_file() else None for p in tmp_path.rglob("*")}
    full_at, named, failed = 0, set[str](), True
    while failed:
        try:
            with full(Disk(full_at), monkeypatch):
                save_step(made, folder)
            failed = False
        except InputError as error:
            path, _, why = str(error).partition(": ")
            assert why == "cannot be written: No space left on device"
            named.add(Path(path).name)
            assert {
                p: p.read_bytes() if p.is_file() else None for p in tmp_path.rglob("*")
            } == before
        full_at += 1
    assert {
        "train.onnx",
        "eval.onnx",
        "predict.onnx",
        "state.safetensors",
        "manifest.json",
    } <= named and full_at > 12
    assert {p.name for p in folder.iterdir()} == named - {"step"}
    assert read_step(folder).manifest == made.manifest


PAIRS = [("lift", "--prepare", "{a}"), ("optimize", "--lift", "{a}")]
DIVIDED = "g (float[N,2] x, float[2] w) => (float[N,2] y) { e = Exp(w) y = Mul(x, e) }"


@pytest.mark.parametrize("words", PAIRS, ids=lambda w: w[0])
@pytest.mark.parametrize("there", [False, True])
def test_a_preparation_and_its_rest_are_written_both_or_none(
    words: tuple[str, ...], there: bool, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Into two folders; whichever write or rename fails, or is interrupted, both are as before."""
    for name in ("in", "a", "b"):
        (tmp_path / name).mkdir()
    model, a, b = tmp_path / "in" / "m.onnx", tmp_path / "a" / "p.onnx", tmp_path / "b" / "o.onnx"
    onnx.save(parse(DIVIDED), model)
    for path in (a, b) if there else ():
        onnx.save(parse(DIVIDED), path)
    before = {p: p.read_bytes() for p in (a, b) if p.exists()}
    full_at, code = 0, 2
    line = [
        words[0],
        model,
        *(w.format(a=a) for w in words[1:]),
        "--weights",
        "w",
        "-o",
        b,
        "--no-verify",
    ]
    while code == 2:
        with full(Disk(full_at), monkeypatch):
            done = run(*line)
        code, full_at = done.code, full_at + 1
        files = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file() and p != model}
        if code == 2:
            assert done.err.endswith(".onnx: cannot be written: No space left on device\n")
            assert files == before
    assert code == 0 and files.keys() == {a, b} and full_at > 6
    assert {v.name for v in onnx.load(a).graph.output} == {"e"}
    replace = os.replace

    def interrupted(source: Path, target: Path) -> None:
        if target == b:
            raise KeyboardInterrupt
        replace(source, target)

    before = {p: p.read_bytes() for p in (a, b)}
    monkeypatch.setattr(os, "replace", interrupted)
    assert run(*line[:-1], "--no-verify", "-q").code == 130
    assert {p: p.read_bytes() for p in (a, b)} == before
    assert len([p for p in tmp_path.rglob("*") if p.is_file()]) == 3


@pytest.mark.slow
def test_killed_while_the_second_model_is_written(tmp_path: Path) -> None:
    """Neither has its name yet; the next command removes what was left."""
    code = f"""
import os, signal
from pathlib import Path
import onnxgrad
from onnxgrad.ir.save import save_all
from onnxgrad.ir.storage import atomic_files
program, count, sync = onnxgrad.load("models/training/mlp.onnx"), [], os.fsync
def killed(handle):
    count.append(handle)
    os.kill(os.getpid(), signal.SIGKILL) if len(count) == 2 else sync(handle)
os.fsync = killed
save_all({{Path({str(tmp_path)!r}, n): program for n in ("a.onnx", "b.onnx")}})
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=120)
    assert done.returncode == -9
    assert [p.suffix for p in tmp_path.iterdir()] == [".part"] * 2
    atomic_files.sweep(tmp_path)
    assert not list(tmp_path.iterdir())


def test_reports_on_a_full_disk_name_their_file(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_with_weights(tmp_path / "in", 1, 0)
    with full(Disk(0), monkeypatch):
        done = run("inspect", model, "--json", tmp_path / "r.json")
    assert done.code == 2 and f"{tmp_path / 'r.json'}: cannot be written: No space" in done.err
    assert [p.name for p in tmp_path.iterdir()] == ["in"]
    with full(Disk(0), monkeypatch), pytest.raises(OSError, match="No space left") as error:
        atomic_files.write_whole(tmp_path / "w", b"data")
    assert error.value.filename == str(tmp_path / "w")


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


@pytest.mark.slow
def test_eight_commands_that_write_one_output(tmp_path: Path) -> None:
    """Each with another weight: one model is left, with its own weights and no others."""
    models = [model_with_weights(tmp_path / f"in{i}", 2, i) for i in range(8)]
    out = tmp_path / "out"
    out.mkdir()
    for _ in range(3):
        running = [
            subprocess.Popen(
                [sys.executable, "-m", "onnxgrad", "optimize", str(model), "-o", str(out / "o.onnx"),
                 "--no-verify", "-q"],
                cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
            for model in models
        ]  # fmt: skip
        assert [process.wait(120) for process in running] == [0] * 8
        (weight,) = onnx.load(out / "o.onnx", load_external_data=False).graph.initializer
        location = next(e.value for e in weight.external_data if e.key == "location")
        assert {p.name for p in out.iterdir()} == {"o.onnx", location}
        held = onnx.load(out / "o.onnx").graph.initializer[0].raw_data
        assert held in [(m.parent / "w.bin").read_bytes() for m in models]
