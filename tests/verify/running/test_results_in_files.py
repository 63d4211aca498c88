"""Large results of children stay in files until their arrays are gone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from onnxgrad.ir.storage.stored_arrays import StoredArray
from onnxgrad.verify.proof_model import received
from onnxgrad.verify.reference.client import Float64
from onnxgrad.verify.running import results_in_files
from onnxgrad.verify.running.results_in_files import to_files
from onnxgrad.verify.running.session import run
from tests.helpers import parse


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_a_large_array_of_floats(tmp_path: Path, dtype: Any) -> None:
    large = np.random.default_rng(0).standard_normal((1 << 10, 1 << 10)).astype(dtype)
    small, whole, texts = large[:4], np.arange(1 << 18), ["a"]
    given = {"x": large, "t": large.T, "small": small, "whole": whole, "texts": texts}
    found = received(to_files(given, str(tmp_path)))
    assert found["small"] is small and found["whole"] is whole and found["texts"] is texts
    assert isinstance(found["x"], StoredArray) and len([*tmp_path.iterdir()]) == 2
    assert np.array_equal(found["x"].wide(), large.astype(np.float64))
    assert np.array_equal(found["t"].wide(), large.T.astype(np.float64))
    del found
    assert not [*tmp_path.iterdir()]


def test_without_a_folder_or_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large = np.ones(1 << 18)
    assert to_files({"x": large}, None)["x"] is large
    assert to_files({"x": large}, str(tmp_path / "missing"))["x"] is large

    def write(handle: int, value: Any) -> None:
        os.close(handle)
        raise OSError("no room")

    monkeypatch.setattr(results_in_files, "_write", write)
    assert to_files({"x": large}, str(tmp_path))["x"] is large and not [*tmp_path.iterdir()]


def test_results_of_both_children(tmp_path: Path) -> None:
    model: onnx.ModelProto = parse(
        "g (float[512,512] x) => (float[512,512] y, float z) { y = Neg (x) z = ReduceMax <keepdims = 0> (x) }"
    )
    x = np.random.default_rng(0).standard_normal((512, 512)).astype(np.float32)
    for found, kind in (
        (run(model, {"x": x}, apart=tmp_path), "<f4"),
        (Float64(model).run({"x": x}, apart=tmp_path), "<f8"),
    ):
        y = found["y"]
        assert isinstance(y, StoredArray) and y.dtype == kind and Path(y.path).parent == tmp_path
        assert np.array_equal(y.wide(), -x.astype(np.float64)) and found["z"] == x.max()
