"""onnxgrad/ir/emission/fill_and_reshape.py: what has the shape and the dtype of another value."""

from __future__ import annotations

import onnx
import pytest

from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.emission.fill_and_reshape import filled_like, with_type_of
from onnxgrad.ir.load import load
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.types import Shape, TensorType
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


FLOAT, HALF = onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16


@pytest.mark.parametrize(
    ("own", "value", "merged"),
    [
        (None, (2, "N"), (2, "N")),
        ((2, "N"), None, (2, "N")),
        ((None, 3), (2, "N"), (2, 3)),
        (("M", None), (2, None), (2, None)),
        (("M", 3), (None, 4), ("M", 3)),
        ((2, 3), (2, 3), (2, 3)),
        ((2,), (2, 3), (2, 3)),
    ],
)
@pytest.mark.parametrize("dtype", [0, FLOAT, HALF])
def test_what_the_forward_value_knows(
    own: Shape | None, value: Shape | None, merged: Shape | None, dtype: int
) -> None:
    """Sizes that the adjoint knows stay, and its dtype, if it has one."""
    block = load(parse("g (float[2] x, float[2] z) => (float[2] y) { y = Add (x, z) }")).main
    adjoint, forward = block.inputs
    adjoint.type, forward.type = TensorType(dtype, own), TensorType(FLOAT, value)
    assert with_type_of(adjoint, forward) is adjoint
    kept = dtype if dtype or value is None else FLOAT
    assert adjoint.type == TensorType(kept, merged)
