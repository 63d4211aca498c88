"""What a killed process left unfinished goes with the next save; what somebody is writing stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from onnxgrad.ir import leftovers
from onnxgrad.ir.files import Staging, write_whole
from tests.helpers import ROOT

pytest.importorskip("fcntl")

WRITER = """
import sys, time
from pathlib import Path
from onnxgrad.ir.files import Staging
with Staging(Path(sys.argv[1])) as staging:
    part = staging.part()
    part.file.write(b"half")
    part.settle()
    print(part.path.name, flush=True)
    time.sleep(600)
"""


def parts(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.glob(".*.part"))


def test_of_a_killed_process(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert child.stdout is not None
    try:
        name = child.stdout.readline().strip()
        write_whole(tmp_path / "a", b"1")
        assert parts(tmp_path) == [name]  # its writer lives
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
    assert parts(tmp_path) == [name]
    write_whole(tmp_path / "a", b"2")
    assert parts(tmp_path) == [] and (tmp_path / "a").read_bytes() == b"2"


def test_two_that_write_at_once_leave_each_other_alone(tmp_path: Path) -> None:
    with Staging(tmp_path) as one:
        first = one.part()
        first.file.write(b"one")
        first.settle()
        with Staging(tmp_path) as two:
            second = two.part()
            second.file.write(b"two")
            two.publish((second, tmp_path / "two"))
        one.publish((first, tmp_path / "one"))
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"one": b"one", "two": b"two"}


def test_what_is_not_ours_stays(tmp_path: Path) -> None:
    ours = leftovers.new_name()
    host = ours.split("-")[1]
    names = [".onnxgrad-0123456789abcdef.part", f".onnxgrad-{host}-0123.part", "x.part"]
    names += [ours.replace(host, "00000000" if host != "00000000" else "11111111")]
    for name in names:
        (tmp_path / name).write_bytes(b"x")
    target = tmp_path / "kept"
    target.write_bytes(b"x")
    (tmp_path / leftovers.new_name()).symlink_to(target)
    (tmp_path / leftovers.new_name()).mkdir()
    os.mkfifo(tmp_path / leftovers.new_name())
    before = set(tmp_path.iterdir())
    leftovers.sweep(tmp_path)
    assert set(tmp_path.iterdir()) == before


def test_an_empty_one_is_given_time_to_be_locked(tmp_path: Path) -> None:
    path = tmp_path / leftovers.new_name()
    path.touch()
    leftovers.sweep(tmp_path)
    assert path.exists()
    old = time.time() - 60
    os.utime(path, (old, old))
    leftovers.sweep(tmp_path)
    assert not path.exists()


def test_a_folder_that_cannot_be_looked_into(tmp_path: Path) -> None:
    leftovers.sweep(tmp_path / "nowhere")
