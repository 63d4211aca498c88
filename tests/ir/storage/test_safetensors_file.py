"""Arrays come back as they were, whatever their memory looked like; the bytes are the same each time."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from onnxgrad.errors import InputError
from onnxgrad.ir.storage import safetensors_file

ARRAYS = {
    "transposed": np.arange(6, dtype=np.float32).reshape(2, 3).T,
    "every other": np.arange(8, dtype=np.float64)[::2],
    "scalar": np.array(3, np.int64),
    "empty": np.zeros((0, 2), np.float16),
    "brain": np.ones(3, ml_dtypes.bfloat16),
}


def test_they_come_back(tmp_path: Path) -> None:
    safetensors_file.write(tmp_path / "a", ARRAYS, {"b": "1", "a": "2"})
    arrays, said = safetensors_file.read(tmp_path / "a")
    assert said == {"a": "2", "b": "1"}
    assert arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(arrays[name], array)


def test_the_bytes_do_not_depend_on_the_order() -> None:
    backwards = dict(reversed(ARRAYS.items()))
    assert (
        len(
            {
                b"".join(safetensors_file.pieces(a, m))
                for a in (ARRAYS, backwards)
                for m in ({"a": "1", "b": "2"}, {"b": "2", "a": "1"})
            }
        )
        == 1
    )


@pytest.mark.parametrize("data", [b"", b"x", b"\x08" + bytes(7) + b"{}      junk", bytes(100)])
def test_what_is_no_such_file(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(InputError, match="not a safetensors file"):
        safetensors_file.read(tmp_path / "a")


@pytest.mark.parametrize("dtype", ["F8_E4M3", "F8_E5M2"])
def test_a_dtype_that_is_not_read(tmp_path: Path, dtype: str) -> None:
    header = json.dumps({"w": {"dtype": dtype, "shape": [4], "data_offsets": [0, 4]}}).encode()
    (tmp_path / "a").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    with pytest.raises(InputError, match=f"'w' is {dtype}, which is not read: convert it to one"):
        safetensors_file.read(tmp_path / "a")


def test_an_open_file_gives_what_is_asked_for(tmp_path: Path) -> None:
    safetensors_file.write(tmp_path / "a", ARRAYS)
    with safetensors_file.opened(tmp_path / "a") as stored:
        (tmp_path / "a").unlink()  # what was opened is read to the end
        assert len(stored) == len(ARRAYS) and set(stored) == set(ARRAYS)
        for name, array in ARRAYS.items():
            outline = stored.outlines[name]
            assert (outline.shape, outline.dtype) == (array.shape, array.dtype)
            np.testing.assert_array_equal(stored[name], array)
            for source in (stored, ARRAYS):
                flat = np.zeros(array.size, array.dtype)
                safetensors_file.copy(source, name, flat)
                np.testing.assert_array_equal(flat, array.reshape(-1))
        with pytest.raises(InputError, match="'scalar' ends too early"):
            stored.read("scalar", np.zeros(1000))


def test_a_name_is_looked_up_without_its_array(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    safetensors_file.write(tmp_path / "a", ARRAYS)
    with safetensors_file.opened(tmp_path / "a") as stored:
        monkeypatch.delattr(safetensors_file.Stored, "read")
        assert all(name in stored for name in ARRAYS) and "other" not in stored


def test_the_bytes_are_those_of_the_library(tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.numpy")
    dtypes = ["f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "?"]
    arrays = {f'{d} é"{n}': np.ones((n, 3), d) for d in dtypes for n in (2, 0)}
    arrays |= {"brain": ARRAYS["brain"], "scalar": ARRAYS["scalar"]}
    words = {"onnxgrad": json.dumps({"a": 'b"\n'}, sort_keys=True)}
    found = b"".join(safetensors_file.pieces(arrays, {"a": 'b"\n'}))
    assert found == library.save(arrays, words)
    safetensors_file.write(tmp_path / "a", arrays, {"a": 'b"\n'})
    assert (tmp_path / "a").read_bytes() == found


def test_a_full_disk_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="/dev/full: cannot be written: No space left on device"):
        safetensors_file.write(Path("/dev/full"), ARRAYS)
    with pytest.raises(InputError, match="a safetensors file cannot hold"):
        safetensors_file.write(tmp_path / "a", {"z": np.zeros(1, np.complex64)})
    assert list(tmp_path.iterdir()) == []
