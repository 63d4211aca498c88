"""The forward part of a step has the loss of the step, and its gradient is the one that the step follows."""

from __future__ import annotations

import numpy as np

from onnxgrad.grad import check_gradient
from onnxgrad.ir.save import to_proto
from onnxgrad.train import SGD, CrossEntropy, training_step
from onnxgrad.train.engines.graph import GraphEngine
from onnxgrad.train.forward import forward
from onnxgrad.verify.running.run import run
from tests.train.modes_common import DROPOUT, batches, network


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
