"""Writes the steps that clients of the step format use as tests; see `onnxgrad help step-format`.

    python scripts/make_test_vectors.py

Each folder of onnxgrad/train/test_vectors/ gets a step and vector.safetensors: ten steps' batches,
the learning rate, the run's seed, the loss of each step, and the model's outputs afterwards.
deployed.onnx is predict.onnx with the first values as initializers.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from onnxgrad.ir.storage.safetensors_file import write
from onnxgrad.train import Trainer, save_step, training_step
from onnxgrad.train.step_folder import DEPLOYED, VECTOR, VECTORS
from onnxgrad.verify.running.session import run

STEPS, ROWS, RATE, SEED = 10, 4, 0.125, 7
OUTPUT = "logits"
# the nodes, and the options of the step
NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("logits = Gemm (x, w, b)", {"optimizer": "sgd{momentum=0.5}"}),
    "full": (
        "n = BatchNormalization (x, s, t, m, v)  d = Dropout (n)  logits = MatMul (d, w)",
        {
            "optimizer": "adamw",
            "accumulate": 2,
            "accumulate_by": "labels",
            "batch_norm": "train",
            "dropout": "train",
        },
    ),
}
VALUES = {
    "b": np.zeros(3), "s": np.ones(4), "t": np.zeros(4), "m": np.zeros(4), "v": np.ones(4),
}  # fmt: skip


def network(nodes: str, rng: np.random.Generator) -> onnx.ModelProto:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]>'
        f"g (float[N, 4] x) => (float[N, 3] logits) {{ {nodes} }}"
    )
    read = {name for node in model.graph.node for name in node.input}
    for name, value in {"w": rng.normal(0, 0.5, (4, 3)), **VALUES}.items():
        if name in read:
            tensor = onnx.numpy_helper.from_array(np.asarray(value, np.float32), name)
            model.graph.initializer.append(tensor)
    return model


def batches(count: int, rng: np.random.Generator) -> dict[str, Any]:
    """Batches whose labels can be learned; some labels are ignored, in one batch all."""
    x = rng.normal(size=(count, ROWS, 4)).astype(np.float32)
    labels = (x[..., :3] + 0.1 * x[..., 3:]).argmax(-1)
    labels[::3, 1:3] = -100
    labels[4] = -100
    return {"x": x, "labels": labels}


def make(name: str) -> None:
    nodes, options = NETWORKS[name]
    rng = np.random.default_rng(0)
    step = training_step(network(nodes, rng), "cross_entropy", **options)
    folder = VECTORS / name
    save_step(step, folder)
    Trainer(folder).deploy(folder / DEPLOYED)
    count = step.manifest.accumulate
    data = batches(STEPS * count, rng)
    trainer = Trainer(folder, rate=RATE, seed=SEED, engine="graph", threads=1)
    parts = [{k: a[i] for k, a in data.items()} for i in range(STEPS * count)]
    losses = trainer.fit(parts, steps=STEPS).losses
    found = run(onnx.load(folder / "predict.onnx"), {"x": data["x"][0], **trainer.weights})
    arrays = {f"batch.{k}": a for k, a in data.items()}
    arrays |= {"rate": np.array(RATE, np.float32), "seed": np.array(SEED)}
    arrays["losses"] = np.array(losses)
    arrays["held_out"] = np.array(trainer.evaluate(parts)["loss"])
    arrays[f"output.{OUTPUT}"] = np.asarray(found[OUTPUT])
    write(folder / VECTOR, arrays)
    sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    print(f"{name}: {sum(sizes.values())} bytes, {sizes}")


if __name__ == "__main__":
    for vector in NETWORKS:
        make(vector)
