"""Files that hold one array together are that array, row by row; a file without a name holds what
a step begins with.
"""

from __future__ import annotations

import errno
import pickle
import tempfile
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnxgrad import Trainer
from onnxgrad.errors import InputError
from onnxgrad.train import array_files, read_step, save_step
from onnxgrad.train.array_files import OnDisk, Shards, on_disk, read_npz
from onnxgrad.train.data import as_data
from tests.train.common import examples, step


def write(folder: Path, arrays: dict[str, Any], *ends: int, form: str = "{}-{}") -> None:
    folder.mkdir(exist_ok=True)
    for name, array in arrays.items():
        for i, part in enumerate(np.split(array, ends)):
            np.save(folder / f"{form.format(name, i)}.npy", part)


@pytest.mark.parametrize("form", ["{}-{}", "{}-0000{}-of-00004"])
def test_shards_are_one_array(tmp_path: Path, form: str) -> None:
    data = examples(50)
    write(tmp_path, data, 10, 10, 37, form=form)  # the second one is empty
    np.save(tmp_path / "y-1.npy", np.arange(50))  # one file by itself is an array of that name
    found: Any = read_npz(tmp_path)
    assert list(found) == ["labels", "x", "y-1"] and isinstance(found["x"], Shards)
    assert all(isinstance(part, np.ndarray) for part in found["x"].parts)
    for rows in (slice(3, 40, 2), np.array([49, 0, 36, 37, 9, 10]), [-1], slice(None)):
        np.testing.assert_array_equal(found["x"][rows], data["x"][rows])
    np.testing.assert_array_equal(np.asarray(found["labels"]), data["labels"])
    del found["y-1"]
    together: Any = as_data(found, 8, 1)
    assert together.facts(0, {}) == as_data(data, 8, 1).facts(0, {})
    losses = Trainer(step(), threads=1).fit(found).losses
    assert losses == Trainer(step(), threads=1).fit(data).losses


def test_shards_that_are_no_array(tmp_path: Path) -> None:
    data = {"x": np.zeros((9, 2), np.float32)}
    write(tmp_path / "a", data, 3, 6)
    (tmp_path / "a/x-1.npy").unlink()
    write(tmp_path / "b", data, 3, 6)
    np.save(tmp_path / "b/x.npy", data["x"])
    write(tmp_path / "c", data, 3, form="{}-{}-of-3")
    write(tmp_path / "d", data, 3)
    np.save(tmp_path / "d/x-1.npy", np.zeros((2, 3)))
    write(tmp_path / "e", data, 3)
    np.save(tmp_path / "e/x-01.npy", np.zeros((2, 3)))
    for name, words in {
        "a": "'x' has 2 files, but none has number 1",
        "b": "has x.npy and x-0.npy: remove one of them",
        "c": "'x' has 2 files, but none has number 2",
        "d": r"x-1.npy is float64\[2, 3\], but x-0.npy is float32\[3, 2\]",
        "e": "'x' has 3 files, but several have number 1",
    }.items():
        with pytest.raises(InputError, match=words):
            read_npz(tmp_path / name)


def test_large_arrays_in_a_temporary_file(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays: dict[str, Any] = {
        "w": np.arange(60_000, dtype=np.float32).reshape(3, -1)[:, ::2],
        "half": np.full((7, 5001), 0.1, np.float16),
        "zeros": np.zeros(99_999),
        "small": np.ones(3),
    }
    assert on_disk(arrays) is arrays
    monkeypatch.setattr(array_files, "_WORTH_A_FILE", 1 << 16)
    found = on_disk(arrays)
    assert isinstance(found, OnDisk) and list(found) == list(arrays)
    for _ in range(2):
        for name, array in arrays.items():
            assert found[name].dtype == array.dtype and np.array_equal(found[name], array)
            assert found[name].flags.writeable is (name in ("zeros", "small"))
        found.release()
    for copied in (pickle.loads(pickle.dumps(found)), deepcopy(found)):
        assert type(copied) is dict and all(np.array_equal(copied[k], a) for k, a in arrays.items())

    def full(*args: Any) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    assert on_disk(arrays) is arrays


def test_a_step_whose_weights_lie_in_a_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = step()
    monkeypatch.setattr(array_files, "_LARGE", 16)
    monkeypatch.setattr(array_files, "_WORTH_A_FILE", 64)
    made = step()
    assert isinstance(made.initial, OnDisk)
    for engine in ("blocks", "graph"):
        runs: list[Any] = [Trainer(s, threads=1, engine=engine) for s in (made, expected)]
        assert runs[0].fit(examples(16)).losses == runs[1].fit(examples(16)).losses
    save_step(made, tmp_path / "a")
    save_step(expected, tmp_path / "b")
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()
    read = read_step(tmp_path / "a").initial
    assert isinstance(read, OnDisk)
    assert all(np.array_equal(read[name], a) for name, a in expected.initial.items())
