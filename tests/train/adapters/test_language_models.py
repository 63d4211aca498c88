"""Adapters of quantised language models with checkpointing and per sample: the gradient of the dequantised weights."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxgrad import gradient
from onnxgrad.train import SGD, CrossEntropy, Trainer, training_step
from onnxgrad.train.adapters import lora
from onnxgrad.verify.running.session import run
from tests.language_models import ARCHITECTURES, WEIGHTS, Architecture, LanguageModel, Weights

ADAPTED = ["*attn*", "*mlp*"]


def dense(model: onnx.ModelProto, matrices: dict[str, np.ndarray[Any, Any]]) -> onnx.ModelProto:
    """The model with float matrices in place of the quantised ones, under the names of the integers."""
    found = onnx.ModelProto()
    found.CopyFrom(model)
    del found.graph.node[:], found.graph.initializer[:]
    integers: dict[str, str] = {}
    for node in model.graph.node:
        if node.op_type == "DequantizeLinear":
            integers[node.output[0]] = node.input[0]
            continue
        new = found.graph.node.add()
        new.CopyFrom(node)
        if node.op_type == "MatMulNBits" or (node.input[1:2] and node.input[1] in integers):
            name = integers.get(node.input[1], node.input[1])
            new.CopyFrom(helper.make_node("MatMul", [node.input[0], name], node.output))
            w = matrices[name.rpartition(".")[0]]
            found.graph.initializer.append(numpy_helper.from_array(w.astype(np.float32), name))
    kept = {t.name for t in found.graph.initializer}
    found.graph.initializer.extend(t for t in model.graph.initializer if t.name not in kept)
    return found


def with_loss(model: onnx.ModelProto, values: dict[str, np.ndarray[Any, Any]]) -> onnx.ModelProto:
    """The model with the mean cross-entropy as output, and these adapters, which move it."""
    adapted = lora(model, ADAPTED, rank=2)
    for t in adapted.graph.initializer:
        if t.name.endswith(".lora_B"):
            rng = np.random.default_rng(len(values))
            values.setdefault(t.name, rng.normal(0, 0.1, t.dims).astype(np.float32))
            t.CopyFrom(numpy_helper.from_array(values[t.name], t.name))
    adapted.graph.node.extend(
        [
            helper.make_node("Transpose", ["logits"], ["turned"], perm=[0, 2, 1]),
            helper.make_node("SoftmaxCrossEntropyLoss", ["turned", "labels"], ["loss"]),
        ]
    )
    labels = helper.make_tensor_value_info("labels", TensorProto.INT64, ["batch", "length"])
    adapted.graph.input.append(labels)
    adapted.graph.output.append(helper.make_tensor_value_info("loss", TensorProto.FLOAT, []))
    return adapted


def captured(node: onnx.NodeProto) -> list[str]:
    """The names that nodes of nested graphs read."""
    inner = [n for a in node.attribute if a.HasField("g") for n in a.g.node]
    return [name for n in inner for name in (*n.input, *captured(n))]


def check(architecture: Architecture, weights: Weights, **choices: Any) -> None:
    language = LanguageModel(architecture, weights)
    model, batch = language.build(), language.batch(3)
    batch["labels"] = np.roll(batch["input_ids"], -1, axis=1)
    values: dict[str, np.ndarray[Any, Any]] = {}
    quantised = with_loss(model, values)
    floats = with_loss(dense(model, language.matrices), values)
    assert not {n.op_type for n in floats.graph.node} & {"MatMulNBits", "DequantizeLinear"}
    expected = run(gradient(floats, "*.lora_*", "loss"), batch)
    graph = gradient(quantised, "*.lora_*", "loss", **choices)
    assert "Loop" in [n.op_type for n in graph.graph.node]
    # nothing keeps a float matrix from the forward to the backward part
    readers = Counter(name for n in graph.graph.node for name in n.input)
    readers.update(name for n in graph.graph.node for name in captured(n))
    matrices = [n.output[0] for n in graph.graph.node if n.op_type == "DequantizeLinear"]
    assert [readers[name] for name in matrices] == [1] * len(matrices)
    # at its default options onnxruntime rounds the inputs of products with dequantised weights
    got = run(graph, batch, optimize=False)
    names = [name for name in expected if name.endswith("_grad")]
    assert len(names) == 2 * len(values)
    for name in names:
        value, scale = got[name], np.abs(expected[name]).max()
        assert scale > 0
        if choices.get("per_sample"):
            assert len(value) == 3
            value = value.mean(0)
        np.testing.assert_allclose(value, expected[name], rtol=0, atol=1e-5 * scale, err_msg=name)


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small matrices are taken by blocks too."""
    monkeypatch.setattr("onnxgrad.grad.rules._by_blocks.LEAST", 256)


CHOICES: dict[str, dict[str, Any]] = {
    "plain": {},
    "checkpoint": {"checkpoint": "auto"},
    "per sample": {"per_sample": True},
    "both": {"per_sample": True, "checkpoint": "auto"},
}


@pytest.mark.slow
@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_gradient_of_adapters_is_that_of_dequantised_weights(
    architecture: Architecture, weights: Weights, choice: str
) -> None:
    check(architecture, weights, **CHOICES[choice])


@pytest.mark.usefixtures("blocks")
def test_one_of_the_above() -> None:
    check("llama", "int4", **CHOICES["both"])


@pytest.mark.slow
@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_steps_with_checkpoints_are_steps_without(
    architecture: Architecture, weights: Weights
) -> None:
    """Plain training rounds nothing either, though onnxruntime rounds in the products that it fuses by default."""
    language = LanguageModel(architecture, weights)
    model, batch = language.build(), language.batch(3)
    batch["labels"] = np.roll(batch["input_ids"], -1, axis=1)
    loss = CrossEntropy("logits", axis=-1, target="labels")
    models = (model, model, dense(model, language.matrices))
    losses = []
    for which, checkpoint in zip(models, (None, "auto", None), strict=True):
        adapted = lora(which, ADAPTED, rank=2)
        step = training_step(adapted, loss, SGD(0.05), "*.lora_*", checkpoint=checkpoint)
        trainer = Trainer(step, threads=1)
        losses.append([trainer.step(batch) for _ in range(5)])
    assert losses[0][-1] < losses[0][0] - 0.001
    np.testing.assert_allclose(losses[1], losses[0], rtol=2e-6)
    np.testing.assert_allclose(losses[2], losses[0], rtol=1e-5)
