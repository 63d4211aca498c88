"""A small classifier, data that it can learn, and its training step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx

from onnxgrad.train import AdamW, CrossEntropy, Optimizer, TrainingStep, training_step
from tests.helpers import parse

TEXT = """
<ir_version: 8, opset_import: ["": 18]>
classify (float[N, 8] x) => (float[N, 3] logits)
{ h = MatMul (x, w1)  h1 = Add (h, b1)  h2 = Relu (h1)  p = MatMul (h2, w2)  logits = Add (p, b2) }
"""


def classifier() -> onnx.ModelProto:
    model = onnx.parser.parse_model(TEXT)
    rng = np.random.default_rng(0)
    for name, shape in (("w1", (8, 16)), ("b1", (16,)), ("w2", (16, 3)), ("b2", (3,))):
        value = (0.3 * rng.standard_normal(shape)).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    return model


def examples(count: int, seed: int = 1) -> dict[str, Any]:
    x = np.random.default_rng(seed).standard_normal((count, 8)).astype(np.float32)
    return {"x": x, "labels": x[:, :3].argmax(1)}


def step(optimizer: Optimizer | None = None, **options: Any) -> TrainingStep:
    return training_step(classifier(), CrossEntropy(), optimizer or AdamW(), **options)


def write_model(folder: Path) -> Path:
    onnx.save(classifier(), folder / "model.onnx")
    return folder / "model.onnx"


TWO = """g (float[N, 4] x, float[N, 4] mask) => (float[N, 2] y, float[N, 3] aside, float[N, 3] h) {
    m = Mul (x, mask)  t = MatMul (m, w1)  h = Tanh (t)  aside = Relu (t)
    k = MatMul (mask, w3)  s = Add (h, k)  c = Cos (h)  z = Mul (s, c)  y = MatMul (z, w2)
}"""


def two_paths(text: str = TWO) -> onnx.ModelProto:
    model = parse(text, opset=17)
    rng = np.random.default_rng(0)
    for name, shape in {"w1": (4, 3), "w2": (3, 2), "w3": (4, 3)}.items():
        value = rng.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    return model


def arrays() -> dict[str, Any]:
    rng = np.random.default_rng(1)
    x, mask = rng.standard_normal((2, 10, 4)).astype(np.float32)
    return {"x": x, "mask": mask, "labels": np.arange(10) % 2}
