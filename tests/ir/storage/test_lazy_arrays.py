"""Arrays that are computed by blocks have the elements of those that are computed at once."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from onnxgrad.ir.storage import lazy_arrays
from onnxgrad.ir.storage.lazy_arrays import LazyArray, drawn, elementwise, lowered, spans
from onnxgrad.ir.storage.stored_arrays import StoredArray, temporary


@pytest.fixture(autouse=True, params=[1, 7, 24, 1 << 19])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy_arrays, "_BLOCK", request.param)


def _stored(array: Any, path: Any) -> StoredArray:
    array.tofile(path)
    return StoredArray(path=str(path), offset=0, shape=array.shape, dtype="<f8")


def _parts(lazy: LazyArray) -> Any:
    return np.concatenate([np.copy(b) for _, _, b in lazy.blocks()], axis=int(lazy.transposed))


@pytest.mark.parametrize(("draw", "arguments"), [("standard_normal", ()), ("uniform", (-1.0, 1.0))])
@pytest.mark.parametrize("shape", [(10, 6), (5,), (3, 2, 4), (0, 3)])
def test_random_numbers(tmp_path: Any, draw: str, arguments: Any, shape: tuple[int, ...]) -> None:
    like = _stored(np.ones(shape), tmp_path / "ones")
    rng, other = np.random.default_rng(3), np.random.default_rng(3)
    found, wide = drawn(rng, draw, *arguments, like=like), getattr(other, draw)(*arguments, shape)
    assert np.array_equal(found.wide(), wide) and np.array_equal(found.wide(), wide)
    assert rng.random() == other.random()  # both generators go on alike
    again = pickle.loads(pickle.dumps(found))
    assert np.array_equal(again.wide(), wide) and again.size == wide.size


def test_rows_and_columns_of_random_numbers(tmp_path: Any) -> None:
    like = _stored(np.ones((10, 6)), tmp_path / "ones")
    found = drawn(np.random.default_rng(3), "standard_normal", like=like)
    wide, rows = found.wide(), np.array([[3, 0], [3, 5]])
    assert np.array_equal(found.rows(rows), wide[rows])
    assert np.array_equal(found.T.rows(rows), wide.T[rows])
    assert np.array_equal(found.T.wide(), wide.T) and np.array_equal(_parts(found.T), wide.T)
    flipped = drawn(np.random.default_rng(3), "standard_normal", like=like.T)
    assert np.array_equal(flipped.wide(), wide.T)


def test_functions_of_elements(tmp_path: Any) -> None:
    rng = np.random.default_rng(0)
    a, b, c = rng.standard_normal((3, 10, 6))
    x, y = _stored(a, tmp_path / "a"), _stored(b, tmp_path / "b")
    cases = {
        "sum": (x + y, a + b),
        "numbers": (2.0 * x - 1.0, 2 * a - 1),
        "quotient": ((1.0 + x * 0.5) / 3.0, (1 + a * 0.5) / 3),
        "numpy on the left": (c - np.float64(3) * x, c - 3 * a),
        "an array": (x * c, a * c),
        "a function": (elementwise(lowered, x * y, 0.25), lowered(a * b, 0.25)),
    }
    rows = np.array([[3, 0], [3, 5]])
    for name, (lazy, wide) in cases.items():
        assert np.array_equal(lazy.wide(), wide), name
        assert np.array_equal(lazy.rows(rows), wide[rows]), name
        assert np.array_equal(lazy.T.wide(), wide.T), name
        assert np.array_equal(lazy.T.rows(rows), wide.T[rows]), name
        assert np.array_equal(_parts(lazy.T), wide.T), name
        assert np.array_equal(pickle.loads(pickle.dumps(lazy)).wide(), wide), name


def test_other_shapes(tmp_path: Any) -> None:
    x = _stored(np.ones((10, 6)), tmp_path / "a")
    for other in (x.T, np.ones((6,)), _stored(np.ones((60,)), tmp_path / "b")):
        with pytest.raises(ValueError, match="several shapes"):
            x + other


def test_lowered_elements() -> None:
    x = np.array([0.0, 0.5, -4.0, np.inf, np.nan, 2.0])
    assert np.array_equal(lowered(x, 1.0), [1.0, 1.0, 0.25, 1.0, 1.0, 0.5])


def test_blocks_cover_the_rows() -> None:
    for shape in ((10, 6), (7,), (1, 100), ()):
        found = spans(shape)
        assert [start for start, _ in found] == [0, *(end for _, end in found[:-1])]
        assert found[-1][1] == (shape or (1,))[0]


def test_a_temporary_array_removes_its_file(tmp_path: Any) -> None:
    np.arange(6.0).tofile(tmp_path / "r")
    found = temporary(str(tmp_path / "r"), (2, 3), "<f8")
    twice = 2.0 * found
    del found
    assert np.array_equal(twice.wide(), 2 * np.arange(6.0).reshape(2, 3))
    del twice
    assert not (tmp_path / "r").exists()
