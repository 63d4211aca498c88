"""Arrays that stay in files are those of the tensors."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest

from onnxgrad.errors import InputError
from onnxgrad.ir.storage import lazy_arrays
from onnxgrad.ir.storage.stored_arrays import as_stored, is_storable, stored
from onnxgrad.ir.types import Array


def _tensor(array: Array, folder: Path) -> onnx.TensorProto:
    """Returns the tensor of an array that lies behind other bytes of a file."""
    (folder / "w.data").write_bytes(b"before.." + array.tobytes() + b"behind")
    made = onnx.TensorProto(
        name="w",
        data_type=onnx.helper.np_dtype_to_tensor_dtype(array.dtype),
        dims=array.shape,
        data_location=onnx.TensorProto.EXTERNAL,
    )
    for key, value in (("location", "w.data"), ("offset", "8"), ("length", str(array.nbytes))):
        made.external_data.add(key=key, value=value)
    return made


@pytest.mark.parametrize("block", [1, 7, 24, 1 << 19])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_elements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: type, block: int) -> None:
    monkeypatch.setattr(lazy_arrays, "_BLOCK", block)
    array = np.random.default_rng(0).standard_normal((10, 6)).astype(dtype)
    tensor = _tensor(array, tmp_path)
    assert is_storable(tensor)
    found, wide = stored(tensor, tmp_path), array.astype(np.float64)
    own = as_stored(tensor, tmp_path)
    assert own.dtype == array.dtype and np.array_equal(own, array)
    assert np.array_equal(found.wide(), wide)
    assert np.array_equal(found.T.wide(), wide.T)
    rows = np.array([[3, 0], [3, 9]])
    assert np.array_equal(found.rows(rows), wide[rows])
    assert np.array_equal(found.T.rows(rows % 6), wide.T[rows % 6])
    for start, end, part in found.blocks():
        assert np.array_equal(part, wide[start:end])
    for start, end, part in found.T.blocks():
        assert np.array_equal(part, wide.T[:, start:end])
    for start, end in ((0, 6), (2, 5), (3, 3)):
        for lies, lying in ((found, array), (found.T, array.T)):
            parts = lies.part(0, start, end), lies.part(1, start, end)
            expected = lying[start:end], lying[:, start:end]
            for part, wanted in zip(parts, expected, strict=True):
                assert part.dtype == dtype and np.array_equal(part, wanted)


@pytest.mark.parametrize("shape", [(), (5,), (0, 3), (2, 3, 4)])
def test_shapes(tmp_path: Path, shape: tuple[int, ...]) -> None:
    array = np.asarray(np.random.default_rng(0).standard_normal(shape), np.float32)
    found = stored(_tensor(array, tmp_path), tmp_path)
    assert found.wide().shape == shape and np.array_equal(found.wide(), array.astype(float))


def test_integers_are_loaded(tmp_path: Path) -> None:
    assert not is_storable(_tensor(np.arange(5), tmp_path))


@pytest.mark.parametrize(
    ("location", "bytes_left", "words"),
    [("../w.data", 28, "w"), ("other.data", 28, "missing"), ("w.data", 27, "cannot be read")],
)
def test_a_place_that_onnx_refuses(
    tmp_path: Path, location: str, bytes_left: int, words: str
) -> None:
    tensor = _tensor(np.ones(5, np.float32), tmp_path)
    (tmp_path / "w.data").write_bytes(bytes(bytes_left))
    tensor.external_data[0].value = location
    with pytest.raises(InputError, match=words):
        stored(tensor, tmp_path)


def test_a_file_that_became_shorter(tmp_path: Path) -> None:
    found = stored(_tensor(np.ones(5, np.float32), tmp_path), tmp_path)
    (tmp_path / "w.data").write_bytes(bytes(20))
    with pytest.raises(InputError, match="became shorter"):
        found.wide()
