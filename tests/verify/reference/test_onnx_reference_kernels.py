"""Operators that onnx.reference computes, called as exporters write them."""

from __future__ import annotations

import numpy as np
import pytest

import onnxgrad
from tests.helpers import parse

X = np.arange(12, dtype=np.float32).reshape(3, 4) / 7
VECTORS = [
    ("float[3,4] y", "y = CumSum (x, k)", "int64[1] k = {1}"),
    ("float[3,4] y", "y = CumSum <exclusive = 1> (x, k)", "int32[1] k = {-2}"),
    ("float[3,4] y", "y = CumProd (x, k)", "int64[1] k = {0}"),
    ("float[3,M] y", "s = SplitToSequence <axis = 1> (x) y = SequenceAt (s, k)", "int64[1] k = {2}"),
    (
        "float[3,M] y",
        "s = SplitToSequence <axis = 1> (x) e = SequenceErase (s, k) y = ConcatFromSequence <axis = 1> (e)",
        "int64[1] k = {2}",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("result", "body", "number"), VECTORS)
def test_a_number_that_is_a_vector_of_one_element(result: str, body: str, number: str) -> None:
    """torch.tril of TorchScript's exporter has CumSum with such an axis, and onnxruntime reads it."""
    model = parse(f"g (float[3,4] x) => ({result}) <{number}> {{ {body} }}", opset=26)
    wanted = onnxgrad.run(model, inputs={"x": X})["y"]
    assert np.allclose(onnxgrad.run(model, inputs={"x": X}, evaluator="float64")["y"], wanted)
    assert onnxgrad.check_gradient(model, "x", "y").ok


@pytest.mark.parametrize("window", ["HannWindow", "HammingWindow", "BlackmanWindow"])
def test_the_size_of_a_window_that_is_a_vector(window: str) -> None:
    model = parse(f"g (int64[1] n) => (float[M] y) {{ y = {window} (n) }}", opset=20)
    given = {"n": np.array([6])}
    wanted = onnxgrad.run(model, inputs=given)["y"]
    got = onnxgrad.run(model, inputs=given, evaluator="float64")["y"]
    assert np.allclose(got, wanted, atol=1e-6)
