"""A small network with BatchNormalization and Dropout, as a file for inference has it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

TEXT = """
<ir_version: 10, opset_import: ["": %d]>
net (float[N, 3, 6, 6] x) => (float[N, 4] logits)
{
  c = Conv <pads = [1, 1, 1, 1]> (x, conv_w)
  n = BatchNormalization <momentum = 0.9> (c, bn_w, bn_b, bn_mean, bn_var)
  r = Relu (n)
  f = Flatten (r)
  %s
  logits = Gemm <transB = 1> (f2, fc_w, fc_b)
}
"""
SHAPES = {
    "conv_w": (5, 3, 3, 3),
    "bn_w": (5,),
    "bn_b": (5,),
    "bn_mean": (5,),
    "bn_var": (5,),
    "fc_w": (4, 180),
    "fc_b": (4,),
}
DROPOUT = "f2 = Dropout (f, ratio)"


def weights() -> dict[str, Any]:
    """Numbers like those of a network in training."""
    rng = np.random.default_rng(0)
    found = {k: 0.2 * rng.standard_normal(s).astype(np.float32) for k, s in SHAPES.items()}
    found["bn_w"] += 1
    found["bn_var"] = np.abs(found["bn_var"]) + np.float32(0.5)
    return found


def network(middle: str = "f2 = Identity (f)", opset: int = 18) -> onnx.ModelProto:
    """The network with these nodes between the convolution and the last layer."""
    model = onnx.parser.parse_model(TEXT % (opset, middle))
    for name, value in weights().items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    ratio = onnx.numpy_helper.from_array(np.array(0.25, np.float32), "ratio")
    if "ratio" in middle:
        model.graph.initializer.append(ratio)
    return model


def batches(count: int, size: int = 8) -> list[dict[str, Any]]:
    """Images, of which the labels are a property."""
    rng = np.random.default_rng(3)
    found = []
    for _ in range(count):
        x = (rng.standard_normal((size, 3, 6, 6)) * 2 + 0.5).astype(np.float32)
        found.append({"x": x, "labels": (x[:, 0, 0, 0] > 0) * 2 + (x[:, 1, 2, 3] > 0)})
    return found
