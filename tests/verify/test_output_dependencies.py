"""What each output is computed from."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto

from onnxgrad.verify.output_dependencies import float_types, new_weights
from onnxgrad.verify.proof_model import proof_model
from tests.helpers import parse


@pytest.mark.parametrize(
    ("text", "types"),
    [
        ("g (float[2] x) => (float[2] y) { y = Neg(x) }", {"float32"}),
        ("g (int64[2] x) => (int64[2] y) { y = Neg(x) }", set()),
        (
            "g (float[2] x) => (float[2] y) { h = Cast <to = 10> (x) y = Cast <to = 1> (h) }",
            {"float32", "float16"},
        ),
        # beside the output's paths
        (
            "g (float[2] x, float16[2] z) => (float[2] y, float16[2] w) { y = Neg(x) w = Neg(z) }",
            {"float32"},
        ),
        (
            "g (float[2] x) => (double[2] y) <double[1] w = {2}> "
            "{ c = Cast <to = 11> (x) y = Mul(c, w) }",
            {"float32", "float64"},
        ),
        # a stored type is no type of computing
        (
            "g (float[2] x) => (float[2] y) <bfloat16[2] w = {1, 2}> "
            "{ c = Cast <to = 1> (w) y = Mul(x, c) }",
            {"float32"},
        ),
        (
            "g (float[2] x, bool c) => (float[2] y) { y = If (c) <then_branch = t () => (float[2] a)"
            " { h = Cast <to = 16> (x) a = Cast <to = 1> (h) }, else_branch = e () => (float[2] b)"
            " { b = Neg(x) }> }",
            {"float32", "bfloat16"},
        ),
    ],
)
def test_float_types_on_the_paths(text: str, types: set[str]) -> None:
    assert float_types(parse(text))["y"] == types


FUNCTION = """<ir_version: 10, opset_import: ["" : 20, "f" : 1]>
g (float[2] x) => (float[2] y, float[2] z) { y = f.half(x) z = Neg(x) }
<domain: "f", opset_import: ["" : 20]> half (a) => (b) { h = Cast <to = 10> (a) b = Cast <to = 1> (h) }"""


def test_of_a_call_they_are_the_functions() -> None:
    found = float_types(onnx.parser.parse_model(FUNCTION))
    assert found == {"y": {"float32", "float16"}, "z": {"float32"}}


def test_new_weights_count_for_the_outputs_that_they_reach() -> None:
    text = """g (float[2] x) => (float[2] y, float[2] z, float[2] n) <float[2] w = {%s}> {
        y = Mul(x, w) z = Neg(x) n = Add(x, x) }"""
    a, b = parse(text % "2, 3"), parse(text % "2, 3.5")
    assert new_weights(proof_model(a), proof_model(b)) == {
        "y": {TensorProto.FLOAT},
        "z": set(),
        "n": set(),
    }
    assert not any(new_weights(proof_model(a), proof_model(a)).values())


@pytest.mark.parametrize("nested", [False, True])
def test_new_weights_in_constants_of_nodes(nested: bool) -> None:
    one = "c = Constant <value = float[2] {%s}> () y = Mul(x, c)"
    if nested:
        one = """y = If (p) <then_branch = t () => (float[2] a) { c = Constant <value = float[2] {%s}> ()
            a = Mul(x, c) }, else_branch = e () => (float[2] b) { b = Neg(x) }>"""
    text = f"g (float[2] x, bool p) => (float[2] y, float[2] z) {{ {one} z = Neg(x) }}"
    a, b = parse(text % "2, 3"), parse(text % "2, 3.5")
    assert new_weights(proof_model(a), proof_model(b)) == {"y": {TensorProto.FLOAT}, "z": set()}
