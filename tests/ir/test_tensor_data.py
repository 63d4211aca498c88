"""onnxgrad/ir/tensor_data.py: arrays to tensors and back."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import numpy_helper

from onnxgrad.ir.tensor_data import elements, tensor_of

ARRAYS: dict[str, Any] = {
    "a number": np.array(3.5, np.float32),
    "nothing": np.zeros((0, 3), np.float32),
    "float64": np.arange(3.0),
    "int64": np.arange(6).reshape(2, 3),
    "int32": np.arange(6, dtype=np.int32),
    "bool": np.array([[True, False]]),
    "transposed": np.arange(6, dtype=np.float32).reshape(2, 3).T,
    "every second": np.arange(6)[::2],
    "float16": np.arange(3, dtype=np.float16),
    "bfloat16": np.arange(3).astype(ml_dtypes.bfloat16),
    "uint8": np.arange(3, dtype=np.uint8),
    "strings": np.array(["a", "ö"], object),
}


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
def test_a_tensor_is_that_of_onnx(array: Any) -> None:
    made, expected = tensor_of(array, "n"), numpy_helper.from_array(array, "n")
    assert made == expected and made.SerializeToString() == expected.SerializeToString()
    back = elements(made)
    assert back.shape == array.shape and (back == array).all()
