"""What onnx infers wrongly: pools in ceil_mode, at every opset, and a Resize to computed sizes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from onnxgrad.errors import DoesNotType
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.load import load
from onnxgrad.ir.ops import op
from onnxgrad.verify.running.session import run

POOLS = [
    ("kernel_shape = [3, 2], strides = [2, 3]", (7, 6)),
    ("kernel_shape = [2, 2], strides = [2, 2], pads = [1, 0, 1, 1]", (6, 5)),
    ("kernel_shape = [1, 2], strides = [3, 2], dilations = [1, 2]", (5, 8)),
    ("kernel_shape = [3, 3], strides = [2, 2]", (8, 7)),
]


@pytest.mark.parametrize("opset", [19, 21, 22])
@pytest.mark.parametrize(("attributes", "size"), POOLS)
def test_as_onnxruntime(attributes: str, size: tuple[int, int], opset: int) -> None:
    """Two in a row: the second has the first's size to go by, and what reads it as well."""
    h, w = size
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : {opset}]> g (float[1,2,{h},{w}] x) => (float[1,2,h,w] y, float[1,2,h,w] z) {{
        y = MaxPool <ceil_mode = 1, {attributes}> (x)
        p = Pad <mode = "edge"> (y, n)
        z = AveragePool <ceil_mode = 1, kernel_shape = [1, 1], strides = [2, 3]> (p) }}"""
    )
    model.graph.initializer.append(
        onnx.numpy_helper.from_array(np.array([0, 0, 1, 0, 0, 0, 0, 2]), "n")
    )
    found = run(model, {"x": np.zeros((1, 2, h, w), np.float32)})
    y, z = load(model).main.outputs
    assert (y.shape, z.shape) == (found["y"].shape, found["z"].shape)


@pytest.mark.parametrize("length", ["[K]", ""])
@pytest.mark.parametrize("axes", [None, (2, 3)])
def test_resize_to_sizes_of_unknown_length(length: str, axes: tuple[int, ...] | None) -> None:
    """onnx says "number of elements of input 'sizes' (0)"."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 19]>
        g (float[B,3,H,W] x, int64{length} n) => (float[B,3,H,W] y) {{ y = Relu(x) }}"""
    )
    if not length:
        model.graph.input[1].type.tensor_type.ClearField("shape")
    block = load(model).main
    x, n = block.inputs
    with emitting(block):
        y = op.Resize(x, None, None, n, axes=axes)
    assert y.shape is not None and len(y.shape) == 4
    with emitting(block), pytest.raises(DoesNotType):
        op.Resize(x, None, None, np.array([2]), axes=axes)
