"""What is no file: devices and pipes are written into, links followed, the rest is refused; with weights outside too."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import onnx
import pytest

from onnxgrad.errors import InputError
from onnxgrad.ir.load import load
from onnxgrad.ir.save import save
from onnxgrad.ir.storage import atomic_files
from onnxgrad.ir.storage.atomic_files import Staging, regular, write_whole
from tests.helpers import ROOT, parse
from tests.ir.test_save import external_model, values

TEXT = "g (float[2] x) => (float[2] y) { y = Relu(x) }"


def node(path: Path, kind: int, major: int, minor: int) -> Path:
    """A device node of our own, so that none of the machine's can be lost."""
    try:
        os.mknod(path, 0o666 | kind, os.makedev(major, minor))
        if kind == stat.S_IFCHR:
            os.close(os.open(path, os.O_WRONLY))
    except (PermissionError, OSError):
        pytest.skip("making device nodes needs root, and a file system that allows them")
    return path


@pytest.mark.parametrize("external", [False, True])
def test_a_device_is_written_into(tmp_path: Path, external: bool) -> None:
    null = node(tmp_path / "null", stat.S_IFCHR, 1, 3)
    before = null.stat()
    program = load(external_model(tmp_path)) if external else load(parse(TEXT))
    save(program, null)
    assert os.path.samestat(before, null.stat()) and null.is_char_device()
    assert {p.name for p in tmp_path.iterdir()} <= {"null", "model.onnx", "weights.bin"}


def test_a_full_device_is_an_error(tmp_path: Path) -> None:
    full = node(tmp_path / "full", stat.S_IFCHR, 1, 7)
    with pytest.raises(InputError, match="cannot be written: No space left"):
        save(load(parse(TEXT)), full)
    assert full.is_char_device()


@pytest.mark.parametrize("external", [False, True])
def test_a_pipe_gets_the_model_in_one_piece(tmp_path: Path, external: bool) -> None:
    pipe, got = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    save(load(external_model(tmp_path)) if external else load(parse(TEXT)), pipe)
    reader.join()
    model = onnx.load_model_from_string(got[0])
    assert pipe.is_fifo() and not any(t.external_data for t in model.graph.initializer)
    assert [t.name for t in model.graph.initializer] == (
        ["w", "tied", "unused"] if external else []
    )


@pytest.mark.parametrize("target", ["real.onnx", "missing.onnx", "sub/real.onnx"])
def test_links_are_followed_and_stay(tmp_path: Path, target: str) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "real.onnx").write_bytes(b"old")
    (tmp_path / "real.onnx").write_bytes(b"old")
    link, again = tmp_path / "link.onnx", tmp_path / "again.onnx"
    link.symlink_to(target)
    again.symlink_to("link.onnx")
    save(load(parse(TEXT)), again)
    assert os.readlink(link) == target and os.readlink(again) == "link.onnx"
    assert onnx.load(tmp_path / target).graph.node[0].op_type == "Relu"
    assert not list(tmp_path.glob("**/*.part"))


def test_a_link_and_weights_outside(tmp_path: Path) -> None:
    program = load(external_model(tmp_path))
    (tmp_path / "sub").mkdir()
    here, away = tmp_path / "here.onnx", tmp_path / "away.onnx"
    here.symlink_to("there.onnx")
    away.symlink_to("sub/there.onnx")
    save(program, here)
    assert here.is_symlink() and len(values(here)) == 3, "the weights lie beside both names"
    with pytest.raises(
        InputError, match=r"is a link into another folder.*write to .*sub/there.onnx"
    ):
        save(program, away)
    assert list((tmp_path / "sub").iterdir()) == []


def test_what_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        for name, words in (
            ("a", "symbolic links"),
            ("s", "it is a socket"),
            ("", "it is a folder"),
        ):
            with pytest.raises(InputError, match=words):
                save(load(parse(TEXT)), tmp_path / name)
    assert (tmp_path / "s").is_socket()
    with pytest.raises(InputError, match="it is a block device"):
        write_whole(node(tmp_path / "disk", stat.S_IFBLK, 7, 250), b"x")


def test_a_model_is_not_read_from_a_device(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(InputError, match="is a device or a pipe"):
        load(pipe)


pytest.importorskip("fcntl")

WRITER = """
import sys, time
from pathlib import Path
from onnxgrad.ir.storage.atomic_files import Staging
with Staging(Path(sys.argv[1])) as staging:
    part = staging.part(Path(sys.argv[1]) / "made")
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
        first = one.part(tmp_path / "one")
        first.file.write(b"one")
        first.settle()
        with Staging(tmp_path) as two:
            second = two.part(tmp_path / "two")
            second.file.write(b"two")
            two.publish((second, tmp_path / "two"))
        one.publish((first, tmp_path / "one"))
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"one": b"one", "two": b"two"}


def test_what_is_not_ours_stays(tmp_path: Path) -> None:
    ours = atomic_files.new_name()
    host = ours.split("-")[1]
    names = [".onnxgrad-0123456789abcdef.part", f".onnxgrad-{host}-0123.part", "x.part"]
    names += [ours.replace(host, "00000000" if host != "00000000" else "11111111")]
    for name in names:
        (tmp_path / name).write_bytes(b"x")
    target = tmp_path / "kept"
    target.write_bytes(b"x")
    (tmp_path / atomic_files.new_name()).symlink_to(target)
    (tmp_path / atomic_files.new_name()).mkdir()
    os.mkfifo(tmp_path / atomic_files.new_name())
    before = set(tmp_path.iterdir())
    atomic_files.sweep(tmp_path)
    assert set(tmp_path.iterdir()) == before


def test_an_empty_one_is_given_time_to_be_locked(tmp_path: Path) -> None:
    path = tmp_path / atomic_files.new_name()
    path.touch()
    atomic_files.sweep(tmp_path)
    assert path.exists()
    old = time.time() - 60
    os.utime(path, (old, old))
    atomic_files.sweep(tmp_path)
    assert not path.exists()


def test_a_folder_that_cannot_be_looked_into(tmp_path: Path) -> None:
    atomic_files.sweep(tmp_path / "nowhere")


@pytest.mark.parametrize("size", [0, 1, 9, 10, 11])
@pytest.mark.parametrize("most", [None, 0, 10])
def test_a_file_of_so_many_bytes_and_no_more(tmp_path: Path, size: int, most: int | None) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * size)
    if most is None or size <= most:
        assert regular(path, most) == path
        return
    with pytest.raises(InputError, match=f"has {size} bytes, more than the {most} that are read"):
        regular(path, most)


@pytest.mark.parametrize("published", [True, False])
def test_an_interrupt_leaves_either_all_old_files_or_none(
    published: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal between the last rename and the removal of weights that nothing reads any more left these."""
    out, old = tmp_path / "o.onnx", tmp_path / "o.data"
    out.write_bytes(b"old")
    old.write_bytes(b"weights")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(
        atomic_files if published else os, "_sync_folder" if published else "replace", interrupted
    )
    with pytest.raises(KeyboardInterrupt), atomic_files.Staging(tmp_path) as staging:
        part = staging.part(out)
        part.file.write(b"new")
        staging.replaced = [old]
        staging.publish((part, out))
    left = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    assert left == ({"o.onnx": b"new"} if published else {"o.onnx": b"old", "o.data": b"weights"})


def test_a_file_is_hashed_in_pieces(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(atomic_files, "_PIECE", 7)
    (tmp_path / "a").write_bytes(data := bytes(range(250)))
    digest = hashlib.sha256(b"before")
    atomic_files.hash_file(digest, tmp_path / "a")
    assert digest.digest() == hashlib.sha256(b"before" + data).digest()
