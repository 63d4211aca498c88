"""A step is the model's own loss, its gradient, and the optimiser's formula; nothing else goes in or out."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import onnxgrad
from onnxgrad import check_gradient
from onnxgrad.errors import InputError
from onnxgrad.ir.save import to_proto
from onnxgrad.train import MSE, SGD, AdamW, CrossEntropy, TrainingStep, training_step
from onnxgrad.train.engines.graph import GraphEngine
from onnxgrad.train.losses import BCEWithLogits, L2Penalty
from onnxgrad.train.step import forward
from onnxgrad.verify.running.session import run
from tests.helpers import ROOT, stored_arrays
from tests.train.modes_common import DROPOUT, batches, network

MLP = ROOT / "models" / "training" / "mlp.onnx"
CLASSIFIER = """
<ir_version: 8, opset_import: ["": 18]>
classify (float[N, 4] x) => (float[N, 3] logits)
<float[4, 3] w = {1, 0, 2, 0, 1, 1, -1, 0, 1, 2, 1, 0}, float[3] b = {0, 0.5, 0}>
{ p = MatMul (x, w)  logits = Add (p, b) }
"""


def classifier() -> onnx.ModelProto:
    return onnx.parser.parse_model(CLASSIFIER)


def batch_of(name: str) -> dict[str, Any]:
    stored = stored_arrays(MLP.with_name(f"{name}.npz"))
    return {k.removeprefix("in:"): stored[k] for k in stored if k.startswith("in:")}


def taken(
    step: TrainingStep, values: dict[str, Any], batch: dict[str, Any], number: int, rate: float
) -> Any:
    """The loss of one step, and the values of the next."""
    following = {f.name: f.next for f in step.manifest.inputs if f.next}
    feeds = {
        **batch,
        **values,
        "step": np.array(number),
        "learning_rate": np.array(rate, np.float32),
    }
    found = run(to_proto(step.train), feeds, outputs=[step.manifest.loss, *following.values()])
    return found[step.manifest.loss], {name: found[new] for name, new in following.items()}


def test_a_step_of_sgd_is_the_parameters_minus_the_gradient() -> None:
    step = training_step(MLP, optimizer=SGD())
    batch = batch_of("mlp")
    loss, new = taken(step, dict(step.initial), batch, 1, 0.5)
    stored = stored_arrays(MLP.with_suffix(".npz"))
    np.testing.assert_allclose(loss, stored["loss64"], rtol=1e-6)
    assert set(new) == {k.removeprefix("grad:") for k in stored if k.startswith("grad:")} - set(
        batch
    )
    for name, value in new.items():
        np.testing.assert_allclose(
            value, step.initial[name] - 0.5 * stored[f"grad:{name}"], atol=1e-6
        )


def test_training_makes_the_loss_smaller_and_evaluation_has_the_same_loss() -> None:
    step = training_step(MLP, optimizer=AdamW())
    values, batch, losses = dict(step.initial), batch_of("mlp"), []
    for number in range(1, 21):
        parameters = {f.name: values[f.name] for f in step.manifest.of_role("parameter")}
        held = run(to_proto(step.evaluation), {**batch, **parameters})[step.manifest.loss]
        loss, values = taken(step, values, batch, number, 1e-2)
        np.testing.assert_allclose(loss, held, rtol=1e-6)
        losses.append(loss)
    assert losses[-1] < 0.3 * losses[0]


def test_a_loss_behind_a_model_without_one() -> None:
    step = training_step(classifier(), CrossEntropy(), SGD())
    x, labels = np.eye(4, dtype=np.float32)[:2], np.array([2, 0])
    loss, new = taken(step, dict(step.initial), {"x": x, "labels": labels}, 1, 1.0)
    z = x @ step.initial["w"] + step.initial["b"]
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    np.testing.assert_allclose(loss, -np.log(p[[0, 1], labels]).mean(), rtol=1e-6)
    error = (p - np.eye(3)[labels]) / 2
    np.testing.assert_allclose(new["w"], step.initial["w"] - x.T @ error, atol=1e-6)
    np.testing.assert_allclose(new["b"], step.initial["b"] - error.sum(0), atol=1e-6)
    sums = ["loss.numerator", "loss.denominator"]
    assert [v.name for v in step.evaluation.main.outputs] == ["logits", "loss", *sums]
    assert [v.name for v in step.train.main.outputs] == ["loss", "loss.divisor", "w.new", "b.new"]


def test_a_function_is_a_loss_and_other_values_are_returned_on_demand() -> None:
    step = training_step(
        classifier(),
        lambda v: onnxgrad.op.ReduceSum(v["logits"] * v["logits"], keepdims=0),
        SGD(),
        metrics=["logits"],
    )
    assert [v.name for v in step.train.main.outputs][:2] == ["logits", "loss"]
    assert step.manifest.metrics == ("logits",)


def test_a_text_is_a_value_of_the_model_or_a_loss() -> None:
    step = training_step(classifier(), "cross_entropy{label_smoothing=0.1} + 0.1*mse", SGD())
    assert [f.name for f in step.manifest.of_role("batch")] == ["x", "labels", "target"]
    assert [(f.classes, f.ignored) for f in step.manifest.of_role("batch")] == [
        (None, None),
        (3, -100),
        (None, None),
    ]
    assert (
        training_step(MLP, "loss", SGD()).manifest.loss
        == training_step(MLP, optimizer=SGD()).manifest.loss
        == "loss"
    )


def test_a_value_of_the_model_keeps_its_name_as_the_loss() -> None:
    text = CLASSIFIER.replace(
        "logits = Add (p, b)", "logits = Add (p, b) own = ReduceMax <keepdims = 0> (logits)"
    )
    model = onnx.parser.parse_model(text)
    for loss in ("own", lambda v: v["own"]):
        step = training_step(model, loss, SGD())
        assert step.manifest.loss == "own"
        assert [v.name for v in step.evaluation.main.outputs][:2] == ["logits", "own"]


def test_losses_add_up_and_have_weights() -> None:
    one = training_step(classifier(), CrossEntropy() + 0.5 * MSE(), SGD(), "w")
    feeds = {
        "x": np.ones((2, 4), np.float32),
        "labels": np.array([0, 1]),
        "target": np.zeros((2, 3), np.float32),
    }
    parts = []
    for loss in (CrossEntropy(), MSE()):
        step = training_step(classifier(), loss, SGD(), "w")
        own = {
            k: v for k, v in feeds.items() if k in {f.name for f in step.manifest.of_role("batch")}
        }
        parts.append(taken(step, dict(step.initial), own, 1, 0.1)[0])
    np.testing.assert_allclose(
        taken(one, dict(one.initial), feeds, 1, 0.1)[0], parts[0] + 0.5 * parts[1], rtol=1e-6
    )


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (None, "not a scalar"),
        ("nothing", "nor a value of the model"),
        ("mse{reduction=some}", "reduction must be one of mean, sum"),
        (CrossEntropy("x2"), "not a value of the model"),
        (
            CrossEntropy(target="w"),
            r"'w' are f32.* already, the loss of cross_entropy requires i64",
        ),
        (lambda v: v["logits"], "not a floating-point scalar"),
        (CrossEntropy, r"the loss CrossEntropy is a class: write CrossEntropy\(\)"),
    ],
)
def test_a_loss_that_does_not_fit(loss: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        training_step(classifier(), loss)


def test_constants_of_a_loss_are_no_parameters() -> None:
    loss = CrossEntropy(weight=[1, 2, 3], label_smoothing=0.1) + 0.1 * BCEWithLogits(
        target="t", pos_weight=[1, 2, 3]
    )
    step = training_step(classifier(), loss + 0.01 * L2Penalty("*"), SGD(), ["params", "[a-w]*"])
    assert [f.name for f in step.manifest.of_role("parameter")] == ["w", "b"]
    assert [f.name for f in step.manifest.of_role("batch")] == ["x", "labels", "t"]


@pytest.mark.parametrize("opset", [11, 13, 15])
def test_losses_of_older_models(opset: int) -> None:
    model = classifier()
    model.opset_import[0].version = opset
    feeds = {"x": np.ones((2, 4), np.float32), "labels": np.array([0, 1])}
    loss = CrossEntropy(label_smoothing=0.1) + L2Penalty("w")
    found, expected = (training_step(m, loss, SGD()) for m in (model, classifier()))
    a, b = (taken(step, dict(step.initial), feeds, 1, 0.1) for step in (found, expected))
    np.testing.assert_allclose(a[0], b[0], rtol=1e-6)
    np.testing.assert_allclose(a[1]["w"], b[1]["w"], atol=1e-6)


def test_the_original_is_left_as_it_was() -> None:
    model = classifier()
    before = model.SerializeToString(deterministic=True)
    training_step(model, CrossEntropy())
    assert model.SerializeToString(deterministic=True) == before


def test_weights_that_the_file_holds_as_constants_are_trained_as_initializers_are() -> None:
    """As Paddle's exporter writes them. Behind the Transpose nothing of the first value may be kept."""
    text = """
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[N,2] x) => (float[N,3] y) %s {
      %s
      turned = Transpose (w)
      y = MatMul (x, turned)
    }
    """
    values = "float[3,2] {1, -2, 0.5, 3, 2, 1}"
    batch = {"x": np.array([[1, 2], [3, -1]], np.float32), "target": np.ones((2, 3), np.float32)}
    runs = []
    for inner in (
        text % ("<float[3,2] w = {1, -2, 0.5, 3, 2, 1}>", ""),
        text % ("", f"w = Constant <value = {values}> ()"),
    ):
        model = onnx.parser.parse_model(inner)
        step = training_step(model, MSE(), SGD(lr=0.1), "w")
        trainer = onnxgrad.Trainer(step)
        losses = [trainer.step(batch) for _ in range(5)]
        runs.append((losses, trainer.evaluate([batch])["loss"]))
        exported = trainer.export(model)
        (tensor,) = [
            *exported.graph.initializer,
            *(n.attribute[0].t for n in exported.graph.node if n.op_type == "Constant"),
        ]
        assert np.array_equal(onnx.numpy_helper.to_array(tensor), trainer.parameters["w"])
    assert runs[0] == runs[1]
    assert runs[0][0][4] < 0.5 * runs[0][0][0]


def test_a_sparse_weight_is_named_as_one() -> None:
    model = classifier()
    (w, _) = model.graph.initializer
    indices = onnx.helper.make_tensor("places", onnx.TensorProto.INT64, [12], range(12))
    values = onnx.helper.make_tensor(
        "w", onnx.TensorProto.FLOAT, [12], onnx.numpy_helper.to_array(w).ravel()
    )
    model.graph.sparse_initializer.append(onnx.helper.make_sparse_tensor(values, indices, [4, 3]))
    model.graph.initializer.remove(w)
    with pytest.raises(
        InputError, match=r"'w' is a sparse weight, .* leave it out by wrt='params,!w'"
    ):
        training_step(model, CrossEntropy(), SGD())
    assert training_step(model, CrossEntropy(), SGD(), wrt="params,!w").initial.keys() == {"b"}


def test_weights_inside_a_branch_are_trained() -> None:
    model = onnx.parser.parse_model("""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[N] x, bool c) => (float[N] y) {
      y = If (c) <
        then_branch = a () => (float[N] p) { w = Constant <value = float {3}> () p = Mul (x, w) },
        else_branch = b () => (float[N] q) <float v = {5}> { q = Mul (x, v) }>
    }
    """)
    trainer = onnxgrad.Trainer(training_step(model, MSE(), SGD(lr=0.5), ["w", "v"]))
    x = np.ones(1, np.float32)
    assert trainer.step({"x": x, "c": np.array(True), "target": x}) == 4
    assert trainer.parameters == {"w": 1, "v": 5}
    assert trainer.evaluate([{"x": x, "c": np.array(True), "target": x}])["loss"] == 0


@pytest.mark.slow
def test_the_loss_is_that_of_the_step_and_its_gradient_is_right() -> None:
    step = training_step(
        network(DROPOUT), CrossEntropy(), SGD(), batch_norm="train", dropout="train"
    )
    program = forward(step)
    assert [v.name for v in program.main.outputs] == ["loss"]
    names = {v.name for v in program.main.inputs}
    assert names == {"x", "labels", "seed", *step.initial}
    model, engine, batch = to_proto(program, weights=True), GraphEngine(step), batches(1)[0]
    given = {**step.initial, "seed": np.array(engine.draw(1))}
    loss = run(model, {**batch, **given})["loss"]
    np.testing.assert_allclose(loss, engine.run(batch, 1, 1.0).loss, rtol=1e-6)
    weights = [fed.name for fed in step.manifest.of_role("parameter")]
    assert check_gradient(model, weights, "loss", seed=0, inputs=given).ok


def test_a_step_without_modes_has_one_too() -> None:
    program = forward(training_step(network(), CrossEntropy(), SGD()))
    assert {v.name for v in program.main.inputs} == {
        "x", "labels", "conv_w", "bn_w", "bn_b", "fc_w", "fc_b",
    }  # fmt: skip
