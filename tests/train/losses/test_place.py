"""What losses read of a model, and the labels that they ask for."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto

import onnxgrad
from onnxgrad.errors import InputError
from onnxgrad.train.losses import MSE, CrossEntropy, Loss
from onnxgrad.verify.running.run import run
from tests.helpers import parse
from tests.train.losses.common import labels_of, through, with_loss

HALVES = [TensorProto.FLOAT16, TensorProto.BFLOAT16]


@pytest.mark.parametrize("dtype", HALVES)
def test_half_precision_is_computed_in_float32(dtype: int) -> None:
    graph = with_loss(through({"y": ["N", 3]}, dtype), MSE())
    assert labels_of(graph) == {"target": "f32[N,3]"}
    assert onnxgrad.load(graph).main.outputs[0].dtype == TensorProto.FLOAT


def test_float16_gradients() -> None:
    graph = onnxgrad.gradient(
        with_loss(through({"z": ["N", 3]}, TensorProto.FLOAT16), CrossEntropy()), "z_in"
    )
    z = np.array([[0.5, -1.0, 2.0], [60000.0, 0.0, -0.5]], np.float16)
    loss, gradient = run(graph, {"z_in": z, "labels": np.array([2, 1])}).values()
    assert (loss.dtype, gradient.dtype) == (np.float32, np.float16)
    np.testing.assert_allclose(loss, 30000.12, rtol=1e-5)
    np.testing.assert_allclose(gradient[1], [0.5, -0.5, 0.0])


def test_an_input_of_the_labels_name_is_taken() -> None:
    model = parse(
        "g (float[N, 3] z, int32[N] labels) => (float[N, 3] y, int32[N] l) { y = Identity (z) l = Identity (labels) }"
    )
    graph = with_loss(model, CrossEntropy())
    assert [v.name for v in graph.graph.input] == ["z", "labels"]
    feeds = {"z": np.eye(3, dtype=np.float32), "labels": np.arange(3, dtype=np.int32)}
    np.testing.assert_allclose(*run(graph, feeds).values(), np.log(np.e + 2) - 1, rtol=1e-6)


def test_floats_of_another_precision_are_cast() -> None:
    model = parse(
        "g (float[N] a, double[N] target) => (float[N] y, double[N] u) { y = Abs (a) u = Abs (target) }"
    )
    graph = with_loss(model, MSE("y"))
    (value,) = run(graph, {"a": np.array([-1.0], np.float32), "target": np.array([3.0])}).values()
    assert value == 4.0


@pytest.mark.parametrize(
    ("inputs", "loss", "words"),
    [
        ("int32[M, 2] labels", CrossEntropy(), "'labels' are i32.M,2. already.*wants i64.N."),
        ("float[N] labels", CrossEntropy(), "'labels' are f32.N. already"),
        (
            "float[N, 4] target",
            MSE(),
            "'target' are f32.N,4. already.*wants f32.N,3.: choose another name",
        ),
        ("int64[N, 3] target", MSE(), "already"),
        ("float[N] x", MSE(target="y"), "a value of the model already"),
        ("float[N] x", MSE("w"), "no value of the model; its outputs are y: f32"),
    ],
)
def test_labels_that_do_not_fit(inputs: str, loss: Loss, words: str) -> None:
    model = parse(f"g (float[N, 3] z, {inputs}) => (float[N, 3] y) {{ y = Identity (z) }}")
    with pytest.raises(InputError, match=words):
        with_loss(model, loss)


def test_what_is_no_output_for_a_loss() -> None:
    integers = parse("g (int64[N, 3] z) => (int64[N, 3] y) { y = Identity (z) }")
    with pytest.raises(InputError, match=r"must name the output.* y: i64"):
        with_loss(integers, MSE())
    with pytest.raises(InputError, match=r"'y', i64.N,3., not a floating-point tensor"):
        with_loss(integers, MSE("y"))
    two = parse("g (float z) => (float a, float b) { a = Abs (z) b = Neg (z) }")
    with pytest.raises(
        InputError, match=r"must name the output that it is of: the model has a: f32.., b: f32"
    ):
        with_loss(two, MSE())
    unknown = parse(
        "g (float[N] z, int64[M] s) => (float y) { r = Reshape (z, s) y = ReduceSum <keepdims = 0> (r) }"
    )
    with pytest.raises(InputError, match=r"'r', whose rank is not known"):
        with_loss(unknown, MSE("r"))


def test_an_inner_value_has_losses_too() -> None:
    model = parse("g (float[N, 3] z) => (float[N, 3] y) { h = Exp (z) y = Abs (h) }")
    (value,) = run(
        with_loss(model, MSE("h")), {k: np.zeros((1, 3), np.float32) for k in ("z", "target")}
    ).values()
    assert value == 1.0
