"""onnxgrad/ir/program.py: what a Program tells of itself."""

from __future__ import annotations

from onnx import TensorProto

import onnxgrad
from tests.helpers import parse


def test_the_opset_and_the_blocks() -> None:
    text = """g (float[2] x, bool c) => (float[2] y) {
        y = If (c) <then_branch = t () => (float[2] a) { a = Tanh (x) },
                    else_branch = e () => (float[2] b) { b = Exp (x) }> }"""
    program = onnxgrad.load(parse(text))
    assert program.opset == 20 and [b.name for b in program.blocks()] == ["g", "t", "e"]
    assert program.array(TensorProto(data_type=1, dims=[1], float_data=[2.0])).tolist() == [2.0]
