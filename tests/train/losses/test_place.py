"""What losses read of a model, and the labels that they ask for."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import onnxgrad
from onnxgrad import Trainer, training_step
from onnxgrad.errors import InputError
from onnxgrad.train import SGD
from onnxgrad.train.losses import MSE, BCEWithLogits, CrossEntropy, Loss
from onnxgrad.verify.running.session import run
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
        ("int32[M, 2] labels", CrossEntropy(), "'labels' are i32.M,2. already.*requires i64.N."),
        ("float[N] labels", CrossEntropy(), "'labels' are f32.N. already"),
        (
            "float[N, 4] target",
            MSE(),
            "'target' are f32.N,4. already.*requires f32.N,3.: choose another name",
        ),
        ("int64[N, 3] target", MSE(), "already"),
        (
            "float[N] x",
            CrossEntropy(target="y"),
            "already, the loss of cross_entropy requires i64.N.",
        ),
        ("float[N] x", MSE("w"), "not a value of the model; its outputs are y: f32"),
    ],
)
def test_labels_that_do_not_fit(inputs: str, loss: Loss, words: str) -> None:
    model = parse(f"g (float[N, 3] z, {inputs}) => (float[N, 3] y) {{ y = Identity (z) }}")
    with pytest.raises(InputError, match=words):
        with_loss(model, loss)


def teacher_and_student() -> onnx.ModelProto:
    """x of a batch through two matrices, `s` and `t`; what they give, each in a form or two."""
    model = parse(
        """g (float[N, 3] x) => (float[N, 2] student, float[N, 2] teacher) {
            h = MatMul (x, s) student = Tanh (h)
            k = MatMul (x, t) teacher = Tanh (k)
            double = Cast <to = 11> (teacher)
            answer = ArgMax <axis = 1, keepdims = 0> (teacher)
            all = ReduceMean <axes = [0], keepdims = 1> (teacher)
        }""",
        opset=17,
    )
    rng = np.random.default_rng(0)
    for name in "st":
        value = rng.standard_normal((3, 2)).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    return model


X = np.random.default_rng(1).standard_normal((5, 3)).astype(np.float32)


@pytest.mark.parametrize(
    ("inside", "outside"),
    [
        (MSE("student", target="teacher"), MSE("student")),
        (MSE("student", target="double"), MSE("student")),
        (CrossEntropy("student", target="answer"), CrossEntropy("student")),
        (MSE("student", target="teacher") + MSE("student", target="double"), 2.0 * MSE("student")),
        ("mse{output=student,target=teacher}", "mse{output=student}"),
    ],
)
def test_a_value_of_the_model_is_a_target_that_learns_nothing(inside: Any, outside: Any) -> None:
    model = teacher_and_student()
    answers = run(model, {"x": X})["teacher"]
    ours = training_step(model, inside, SGD(lr=0.1))
    assert [f.name for f in ours.manifest.of_role("parameter")] == ["s"]
    assert [f.name for f in ours.manifest.of_role("batch")] == ["x"]
    theirs = training_step(model, outside, SGD(lr=0.1), wrt=["s"])
    (label,) = [f for f in theirs.manifest.of_role("batch") if f.name != "x"]
    given = answers.argmax(1) if label.dtype == "int64" else answers
    one, two = Trainer(ours), Trainer(theirs)
    for _ in range(3):
        assert one.step({"x": X}) == pytest.approx(two.step({"x": X, label.name: given}), rel=1e-6)
    np.testing.assert_allclose(one.parameters["s"], two.parameters["s"], rtol=1e-6)


def test_a_target_is_fixed_where_another_loss_trains_it() -> None:
    """d (mse(student, teacher fixed) + mse(teacher, y)) by t is that of the second alone."""
    model = teacher_and_student()
    both = MSE("student", target="teacher") + MSE("teacher", target="y")
    y = np.ones((5, 2), np.float32)
    one = Trainer(training_step(model, both, SGD(lr=0.1)))
    two = Trainer(training_step(model, MSE("teacher", target="y"), SGD(lr=0.1)))
    for trainer in (one, two):
        trainer.step({"x": X, "y": y})
    np.testing.assert_allclose(one.parameters["t"], two.parameters["t"], rtol=1e-6)
    assert set(one.parameters) == {"s", "t"}


def test_a_model_may_be_its_own_teacher() -> None:
    """A trunk that both share learns by the student's path only: the proof holds the target too."""
    model = parse(
        """g (float[N, 3] x) => (float[N, 2] y) {
            h = MatMul (x, w) slow = Tanh (h) y = Sigmoid (slow)
        }"""
    )
    value = np.random.default_rng(0).standard_normal((3, 2)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(value, "w"))
    step = training_step(model, MSE("y", target="slow"), SGD(lr=1.0))
    assert len(step.stops) == 1
    after = Trainer(step)
    after.step({"x": X})
    slow = np.tanh(X.astype(np.float64) @ value)
    y = 1 / (1 + np.exp(-slow))
    g = 2 * (y - slow) / y.size * y * (1 - y) * (1 - slow**2)
    np.testing.assert_allclose(after.parameters["w"], value - X.T @ g, rtol=1e-5, atol=1e-6)
    evaluation = onnxgrad.to_proto(step.evaluation)
    loss = step.manifest.loss
    inputs = {"x": X, "w": value}
    report = onnxgrad.check_gradient(evaluation, "w", loss, inputs=inputs, stop=list(step.stops))
    assert report.ok, str(report)


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (MSE("student", target="all"), r"'all' are f32\[1,2\] already.*requires f32\[N,2\]"),
        (MSE("student", target="answer"), "'answer' are i64.N. already"),
    ],
)
def test_a_value_that_is_no_target(loss: Loss, words: str) -> None:
    with pytest.raises(InputError, match=words):
        training_step(teacher_and_student(), loss, SGD())


@pytest.mark.parametrize("name", ["target", "labels"])
def test_a_value_that_is_called_as_labels_are_by_default(name: str) -> None:
    model = parse(f"g (float[N, 3] z) => (float[N, 3] y) {{ {name} = Tanh (z) y = Abs ({name}) }}")
    with pytest.raises(InputError, match=f"'{name}' are a value of the model already"):
        with_loss(model, BCEWithLogits("y") if name == "labels" else MSE("y"))


def test_what_is_no_output_for_a_loss() -> None:
    integers = parse("g (int64[N, 3] z) => (int64[N, 3] y) { y = Identity (z) }")
    with pytest.raises(InputError, match=r"must name the output.* y: i64"):
        with_loss(integers, MSE())
    with pytest.raises(InputError, match=r"'y', i64.N,3., not a floating-point tensor"):
        with_loss(integers, MSE("y"))
    two = parse("g (float z) => (float a, float b) { a = Abs (z) b = Neg (z) }")
    with pytest.raises(
        InputError, match=r"must name the output that it reads: the model has a: f32.., b: f32"
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
