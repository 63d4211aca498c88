"""`onnxgrad run`: one run of a model in either evaluator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxgrad
from onnxgrad.errors import CannotRun, InputError
from tests.helpers import parse

TEXT = (
    "g (float[N,2] x, float[N,2] z) => (float[N,2] y, int64[2] s) { y = Div (x, z) s = Shape (x) }"
)
X = np.array([[1, 2], [3, 4]], np.float32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "m.onnx"
    onnx.save(parse(TEXT), file)
    return file


@pytest.mark.parametrize(
    ("evaluator", "dtype"), [("onnxruntime", np.float32), ("float64", np.float64)]
)
def test_given_inputs(evaluator: str, dtype: type, path: Path) -> None:
    found = onnxgrad.run(path, inputs={"x": X, "z": X + 2}, evaluator=evaluator)
    assert list(found) == ["y", "s"] and found["y"].dtype == dtype
    np.testing.assert_allclose(
        found["y"],
        X.astype(dtype) / (X.astype(dtype) + 2),
        rtol=1e-6 if dtype == np.float32 else 1e-15,
    )
    assert found["s"].tolist() == [2, 2]


def test_generated_inputs_follow_seed_and_sizes(path: Path) -> None:
    one, same, other = (onnxgrad.run(path, dims={"N": 5}, seed=s)["y"] for s in (3, 3, 4))
    assert one.shape == (5, 2) and (one == same).all() and (one != other).any()
    assert onnxgrad.run(path, inputs={"x": X})["y"].shape == (2, 2), (
        "the other input has the size of the given one"
    )


def test_what_does_not_run(path: Path, tmp_path: Path) -> None:
    out = tmp_path / "o.npz"
    with pytest.raises(InputError, match="wants shape"):
        onnxgrad.run(path, inputs={"x": X[0]}, save=out)
    with pytest.raises(CannotRun, match="does not run on the given inputs"):
        onnxgrad.run(path, inputs={"x": X, "z": np.ones((3, 2), np.float32)}, save=out)
    with pytest.raises(InputError, match="no input of this name"):
        onnxgrad.run(path, inputs={"q": X}, save=out)
    with pytest.raises(InputError, match=r"save: outputs are written as an \.npz: end the"):
        onnxgrad.run(path, inputs={"x": X}, save=tmp_path / "o.npy")
    assert not out.exists() and not (tmp_path / "o.npy").exists()
