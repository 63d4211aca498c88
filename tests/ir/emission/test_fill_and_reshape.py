"""onnxgrad/ir/emission/fill_and_reshape.py: what has the shape and the dtype of another value."""

from __future__ import annotations

import onnx
import pytest

from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.emission.fill_and_reshape import filled_like
from onnxgrad.ir.load import load
from onnxgrad.ir.save import to_proto
from tests.helpers import parse


@pytest.mark.parametrize(
    ("opset", "dtype", "operators"),
    [
        (19, "bfloat16", ["ConstantOfShape", "Cast"]),  # which makes bfloat16 from opset 20 on
        (20, "bfloat16", ["ConstantOfShape"]),
        (19, "float16", ["ConstantOfShape"]),
    ],
)
def test_fills(opset: int, dtype: str, operators: list[str]) -> None:
    block = load(
        parse(f"g ({dtype}[2,3] x) => ({dtype}[2,3] y) {{ y = Identity (x) }}", opset=opset)
    ).main
    with emitting(block) as at:
        twos = filled_like(block.inputs[0], 2.0)
    assert [b.op for b in at.emitted] == operators
    assert twos.type == block.inputs[0].type
    block.add_output(twos)
    onnx.checker.check_model(to_proto(block.program), full_check=True)
