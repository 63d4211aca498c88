"""Witnesses that are searched: small graphs over old constants, none for other numbers."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, numpy_helper

from onnxgrad.verify.exact.weights import rounding
from onnxgrad.verify.exact.witnesses import guesses, has_floats

RNG = np.random.default_rng(3)
A, B = (RNG.standard_normal(5).astype(np.float32) for _ in range(2))
V = RNG.uniform(0.5, 2, 5).astype(np.float32)
W, U = (RNG.standard_normal(shape).astype(np.float32) for shape in ((4, 5), (5, 3)))
K = RNG.standard_normal((5, 2, 3, 3)).astype(np.float32)


def old(**constants: np.ndarray) -> ModelProto:
    model = ModelProto(ir_version=8)
    tensors = (numpy_helper.from_array(array, name) for name, array in constants.items())
    model.graph.initializer.extend(tensors)
    return model


def stored(array: np.ndarray) -> TensorProto:
    return numpy_helper.from_array(np.asarray(array, np.float32), "new")


@pytest.mark.parametrize(
    ("constants", "new"),
    [
        ({"a": A, "b": B}, A + B),
        ({"a": A, "b": B}, A - B),
        ({"a": A, "v": V}, A / np.sqrt(V)),
        ({"a": A, "b": B, "v": V}, (A + B) * V),
        ({"a": A}, -A),
        ({"w": W}, W.T),
        ({"w": W, "a": A}, W * A),
        ({"k": K, "a": A}, K * A.reshape(5, 1, 1, 1)),
        ({"w": W}, W.sum(0)),
        ({"w": W, "u": U}, W @ U),
        ({"a": A, "u": U}, A @ U),
        ({"a": A, "s": np.float32(0.3)}, A * np.float32(0.3)),
    ],
)
def test_a_graph_that_computes_the_weight(
    constants: dict[str, np.ndarray], new: np.ndarray
) -> None:
    first = guesses(old(**constants), stored(new))[0]
    assert first.close and rounding(stored(new), first.witness) == ""


def test_a_weight_one_ulp_off_is_near_its_own_value() -> None:
    off = A.copy()
    off[2] = np.nextafter(off[2], np.float32(np.inf))
    (same, *_) = guesses(old(a=A), stored(off))
    assert "is not the rounding" in rounding(stored(off), same.witness)


def test_other_numbers_have_no_graph_that_agrees() -> None:
    every = guesses(old(a=A, b=B), stored(RNG.standard_normal(5)))
    assert every and not any(g.close for g in every)
    assert guesses(old(), stored(A)) == []
    assert guesses(old(a=A), numpy_helper.from_array(np.arange(5), "new")) == []
    assert guesses(old(a=np.full(5, np.inf, np.float32)), stored(A)) == []


def test_constants_of_floats() -> None:
    assert has_floats(old(a=A)) and not has_floats(old(i=np.arange(3)))
