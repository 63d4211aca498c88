"""A classifier of 8x8 digits, made without a framework, and its training step as a folder that
Node.js and a web page train with.

    python scripts/examples/make_digits.py [FOLDER] [--network cnn|mlp]
        [--optimizer momentum|sgd|adamw]

FOLDER (scripts/examples/step when left out) gets digits.onnx, the model with its first weights, and
beside it train.onnx, eval.onnx, state.safetensors and manifest.json.
"""

from __future__ import annotations

import argparse
import functools
import sys
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from onnxgrad import train

HERE = Path(__file__).resolve().parent
NODES = {
    "mlp": "h = Gemm (x, w1, b1)  r = Relu (h)  logits = Gemm (r, w2, b2)",
    "cnn": """
        image = Reshape (x, square)
        c = Conv <pads = [1, 1, 1, 1]> (image, w1, b1)
        r = Relu (c)
        p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)
        f = Flatten (p)
        logits = Gemm (f, w2, b2)
    """,
}
SHAPES = {
    "mlp": {"w1": (64, 32), "b1": (32,), "w2": (32, 10), "b2": (10,)},
    "cnn": {"w1": (16, 1, 3, 3), "b1": (16,), "w2": (256, 10), "b2": (10,)},
}
OPTIMIZERS: dict[str, train.Optimizer] = {
    "sgd": train.SGD(lr=0.05),
    "momentum": train.SGD(lr=0.05, momentum=0.9),
    "adamw": train.AdamW(lr=0.005),
}
TRAINED_ON = 1500  # the digits after them are held out


@functools.cache
def digits() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The images, float32[1797, 64] from 0 to 1, and their labels, int64[1797]."""
    lines = (HERE / "digits.txt").read_text(encoding="ascii").splitlines()
    rows = [line.split() for line in lines if not line.startswith("#")]
    pixels = [[int(c, 17) for c in image] for _, image in rows]
    return np.array(pixels, np.float32) / 16, np.array([int(label) for label, _ in rows])


def batch(number: int, size: int = 32) -> dict[str, NDArray[np.generic]]:
    """Batch `number`, from 0 on: the next `size` digits in their order, round and round."""
    images, labels = digits()
    chosen = (number * size + np.arange(size)) % TRAINED_ON
    return {"x": images[chosen], "labels": labels[chosen]}


def network(name: str, seed: int = 0) -> onnx.ModelProto:
    """The classifier with random weights, scaled by what each output sums (He et al. 2015)."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]>'
        f"digits (float[N, 64] x) => (float[N, 10] logits) {{ {NODES[name]} }}"
    )
    rng = np.random.default_rng(seed)
    for weight, shape in SHAPES[name].items():
        summed = np.prod(shape[1:]) if len(shape) == 4 else shape[0]
        scale = np.sqrt(2 / summed) if len(shape) > 1 else 0
        value = (scale * rng.standard_normal(shape)).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(value, weight))
    if name == "cnn":
        square = helper.make_tensor("square", TensorProto.INT64, [4], [-1, 1, 8, 8])
        model.graph.initializer.append(square)
    return model


def write(folder: Path, name: str = "cnn", optimizer: str = "momentum") -> None:
    """Writes the model and its training step."""
    folder.mkdir(parents=True, exist_ok=True)
    model = network(name)
    step = train.training_step(model, train.CrossEntropy(), OPTIMIZERS[optimizer])
    train.save_step(step, folder)
    onnx.save(model, folder / "digits.onnx")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=HERE / "step")
    parser.add_argument("--network", choices=NODES, default="cnn")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="momentum")
    args = parser.parse_args()
    write(args.folder, args.network, args.optimizer)
    print(f"{args.folder}: {', '.join(sorted(p.name for p in args.folder.iterdir()))}")


if __name__ == "__main__":
    main()
