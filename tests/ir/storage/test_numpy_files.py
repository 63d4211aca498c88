"""A file of arrays that is none, or whose headers lie, is refused before memory is allocated."""

from __future__ import annotations

import io
import os
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from onnxgrad.errors import InputError
from onnxgrad.ir.storage import numpy_files
from onnxgrad.ir.storage.numpy_files import ArraysFile, read_arrays
from tests.helpers import parse


def header(shape: str, descr: str = "<f4", data: bytes = b"\0" * 8) -> bytes:
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data


def zipped(content: bytes, name: str = "x.npy") -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return file.getvalue()


def declared(content: bytes, size: int) -> bytes:
    """The directory of the archive declares another size of its only member."""
    made = bytearray(zipped(content))
    at = made.rindex(b"PK\x01\x02") + 24
    made[at : at + 4] = size.to_bytes(4, "little")
    return bytes(made)


def pickled() -> bytes:
    file = io.BytesIO()
    np.savez(file, x=np.array([object()], dtype=object))
    return file.getvalue()


LYING = {
    "many": header("(1000000000000000,)"),
    "negative": header("(-1,)"),
    "overflow": header("(9223372036854775807, 9223372036854775807)"),
    "no bytes each": header("(1000000000000000,)", "<U0"),
    "nonsense": header("'text'"),
    "cut": header("(2,)")[:20],
    "empty": b"",
    "text": b"no array",
    "version 2": b"\x93NUMPY\x02\x00\xff\xff\xff\xff{}",
    "member of many": zipped(header("(1000000000000000,)")),
    "negative member": zipped(header("(-1,)")),
    "no array": zipped(b"text", "readme.txt"),
    "larger": declared(header("(900000000,)"), 3_900_000_000),
    "smaller": declared(header("(2,)"), 4),
    "bomb": declared(header("(2,)"), 4_000_000_000),
    "broken": zipped(header("(2,)"))[:60],
    "pickled": pickled(),
}


@pytest.mark.parametrize("what", LYING)
def test_a_file_that_lies_is_refused_without_memory(what: str, tmp_path: Path) -> None:
    (tmp_path / "f.npz").write_bytes(LYING[what])
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=r"f\.npz: cannot be read: ") as error:
            read_arrays(tmp_path / "f.npz")
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    assert "\n" not in str(error.value)


def test_sound_files_are_read_as_numpy_reads_them(tmp_path: Path) -> None:
    for array in (np.eye(3, order="F")[:2], np.array(1), np.zeros((0, 4)), np.array(["a", ""])):
        np.save(tmp_path / "a.npy", array)
        np.savez_compressed(tmp_path / "a.npz", a=array)
        one, several = read_arrays(tmp_path / "a.npy"), read_arrays(tmp_path / "a.npz")
        assert isinstance(several, dict) and isinstance(one, np.ndarray)
        for found in (one, several["a"]):
            assert found.dtype == array.dtype and np.array_equal(found, array)


COMMANDS = {
    "verify": ("verify", "m.onnx", "m.onnx", "--input"),
    "expect": ("verify", "m.onnx", "--input", "x.npz", "--expect"),
    "optimize": ("optimize", "m.onnx", "-o", "o.onnx", "--input"),
    "check-grad": ("check-grad", "m.onnx", "--input"),
    "bench": ("bench", "m.onnx", "--input"),
}
FILES = (*LYING, "missing", "folder", "pipe")


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_refuses_each_file_in_one_line(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from onnxgrad.cli.app import main

    monkeypatch.chdir(tmp_path)
    Path("m.onnx").write_bytes(
        parse("g (float[2] x) => (float[2] y) { y = Neg (x) }").SerializeToString()
    )
    np.savez("x.npz", x=np.ones(2, np.float32))
    Path("folder.npz").mkdir()
    os.mkfifo("pipe.npz")
    for what in FILES:
        if what in LYING:
            Path(f"{what}.npz").write_bytes(LYING[what])
        code, line = main([*COMMANDS[command], f"{what}.npz"]), capsys.readouterr().err
        assert code == 2 and line.count("\n") == 1 and f"{what}.npz" in line, (what, line)
    assert not Path("o.onnx").exists()


def test_large_arrays_stay_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless they are compressed; whatever their order in memory and the length of their names."""
    monkeypatch.setattr(numpy_files, "_MAPPED", 180)
    wide = np.random.default_rng(0).standard_normal((5, 7))
    columns, long = np.asfortranarray(wide), "n" * 99
    given = {"x": wide, "columns": columns, long: wide[1:], "y": wide[:1, :1]}
    for save, some in ((np.savez, True), (np.savez_compressed, False)):
        save(tmp_path / "a.npz", **given)
        found: Any = read_arrays(tmp_path / "a.npz", mapped=True)
        assert found.keys() == given.keys()
        for name, array in given.items():
            np.testing.assert_array_equal(found[name], array)
            assert isinstance(found[name].base, np.memmap) == (some and name != "y"), name
        whole: Any = read_arrays(tmp_path / "a.npz")
        assert not isinstance(whole["x"].base, np.memmap)


def test_arrays_are_written_one_by_one_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    wide = {"bf": np.ones(2, ml_dtypes.bfloat16), "i4": np.ones(2, ml_dtypes.int4)}
    with ArraysFile(path) as file:
        for name, array in {"a/b": np.arange(3), "s": np.array(["x", "é"], object), **wide}.items():
            assert file.add(name, array) == ""
        assert file.add("n" * 70_000, np.arange(3)) == "its name does not fit into a zip file"
    found = read_arrays(path)
    assert isinstance(found, dict)
    assert found["a/b"].tolist() == [0, 1, 2] and found["s"].tolist() == ["x", "é"]
    assert found["bf"].dtype == np.float32 and found["i4"].dtype == np.int8
    before = path.read_bytes()
    with pytest.raises(KeyError), ArraysFile(path) as file:
        file.add("c", np.arange(9))
        raise KeyError
    with ArraysFile(path):
        pass
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == ["run.npz"]
    for bad in (tmp_path / "no" / "f.npz", tmp_path, Path("/dev/null")):
        with pytest.raises(InputError):
            ArraysFile(bad)
