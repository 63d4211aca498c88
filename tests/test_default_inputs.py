"""Every job accepts weights that are also inputs: of IR 3, which lists all weights there, and of newer files, where
callers may override them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

import onnxgrad
from tests.helpers import parse

RNG = np.random.default_rng(3)


def model(ir: int, batch: str = "N") -> onnx.ModelProto:
    numbers = [", ".join(map(str, RNG.standard_normal(16).round(3))) for _ in range(2)]
    weights = " ".join(
        f"float[4,4] w{i} = {{{v}}}{',' if i == 0 else ''}" for i, v in enumerate(numbers)
    )
    text = f"""g (float[{batch},4] x, float[4,4] w0, float[4,4] w1) => (float[{batch},4] y) <{weights}> {{
        t = Transpose<perm = [1, 0]>(w0)  a = MatMul(x, t)  b = Tanh(a)  y = MatMul(b, w1)
    }}"""
    made = parse(text, opset=8)
    made.ir_version = ir
    onnx.checker.check_model(made)
    return made


def inputs_of(made: onnx.ModelProto) -> list[str]:
    return [v.name for v in made.graph.input]


def reads_what_it_lists(made: Any) -> None:
    onnx.checker.check_model(made)
    read = {n for node in made.graph.node for n in node.input}
    assert {t.name for t in made.graph.initializer} <= read


SGD = {"loss": "mse{output=y}", "optimizer": "sgd{lr=0.1}"}
JOBS: dict[str, Callable[[onnx.ModelProto], Any]] = {
    "optimize": onnxgrad.optimize,
    "float16": onnxgrad.float16,
    "convert_opset": lambda m: onnxgrad.convert_opset(m, 17),
    "extract to b": lambda m: onnxgrad.extract(m, outputs="b"),
    "extract from b": lambda m: onnxgrad.extract(m, inputs="b"),
    "extract from a weight": lambda m: onnxgrad.extract(m, inputs=["b", "w1"]),
    "lift": lambda m: onnxgrad.lift(m, weights="w0").rest,
    "gradient": lambda m: onnxgrad.gradient(m, "params", adjoint="input"),
    "gradient of x": lambda m: onnxgrad.gradient(m, "x", adjoint="input"),
    "check_gradient": lambda m: onnxgrad.check_gradient(m, "params"),
    "training_step": lambda m: onnxgrad.training_step(m, SGD["loss"], SGD["optimizer"]),
    "evaluation": lambda m: onnxgrad.training_step(m, SGD["loss"], "adam{lr=0.1}"),
    "vmap": onnxgrad.vmap,
    "open_batch": lambda m: onnxgrad.open_batch(model(m.ir_version, "1")),
    "jacobian": lambda m: onnxgrad.jacobian(m, "x"),
    "edit": lambda m: onnxgrad.edit(m, rename={"x": "z"}),
    "verify": lambda m: onnxgrad.verify(m, m),
    "inspect": onnxgrad.inspect,
    "diff": lambda m: onnxgrad.diff(m, m),
}


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("ir", [3, 8])
def test_every_job(ir: int, job: str) -> None:
    made = JOBS[job](model(ir))
    if isinstance(made, onnx.ModelProto):
        onnx.checker.check_model(made)
        if job.startswith("extract"):
            reads_what_it_lists(made)


@pytest.mark.parametrize("ir", [3, 8])
def test_a_part_lists_the_weights_that_it_reads(ir: int) -> None:
    made = model(ir)
    assert inputs_of(onnxgrad.extract(made, outputs="b")) == ["x", "w0"]
    assert inputs_of(onnxgrad.extract(made, inputs="b")) == ["b", "w1"]


@pytest.mark.parametrize("ir", [3, 8])
def test_training_sees_the_weights(ir: int) -> None:
    step = onnxgrad.training_step(model(ir), SGD["loss"], SGD["optimizer"])
    assert {"w0", "w1"} <= {v.name for v in step.train.main.inputs}
