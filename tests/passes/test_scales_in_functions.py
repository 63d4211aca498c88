"""Function bodies: constants are Constant bindings there, types mostly unknown, attributes may be the caller's."""

from __future__ import annotations

import onnx
import onnx.parser
import pytest

from onnxgrad.passes.pipeline import PRESETS
from tests.rewriting import apply

HEADER = '<ir_version: 10, opset_import: ["": 20, "f": 1]>'
MODEL = """{header}
g (float[1,2,6,6] x) => (float[1,3,6,6] y) {{ y = f.body <e = 0.01> (x) }}
<opset_import: ["": 20], domain: "f">
body <e> (x) => (y) {{ {body} }}"""
CONSTANTS = """
  w = Constant <value = float[3,2,1,1] {1, 2, 3, 4, 5, 6}> ()
  s = Constant <value = float[3,1,1] {2, 3, 4}> ()
  v = Constant <value = float[3] {2, 3, 4}> ()"""

BODIES = {
    "batch norm with the caller's epsilon": """c = Conv(x, w)
      y = BatchNormalization <epsilon: float = @e> (c, v, v, v, v)""",
    "gemm with the caller's alpha": """shape = Constant <value_ints = [36, 2]> ()  r = Reshape(x, shape)
      m = Constant <value = float[2,3] {1, 2, 3, 4, 5, 6}> ()
      a = Gemm <alpha: float = @e> (r, m)  b = Gemm <alpha: float = @e> (r, m)  z = Add(a, b)
      back = Constant <value_ints = [1, 3, 6, 6]> ()  q = Mul(z, v)  y = Reshape(q, back)""",
    "a scale behind a conv": "c = Conv(x, w)  m = Mul(c, s)  y = Add(m, s)",
    "two convs": "a = Conv(x, w)  b = Conv(x, w, v)  y = Add(a, b)",
}


def model(body: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(MODEL.format(header=HEADER, body=CONSTANTS + body))


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
@pytest.mark.parametrize("preset", ["inference", "canonical"])
def test_function_bodies_keep_their_meaning(body: str, preset: str) -> None:
    done = apply(model(body), ",".join([*PRESETS[preset], "combine-parallel-dense"]))
    done.prove()


def test_a_dequantized_weight_keeps_its_quantized_kernel() -> None:
    text = """g (float[1,2,6,6] x) => (float[1,3,6,6] y)
      <int8[3,2,1,1] q = {1, 2, 3, 4, 5, 6}, float k = {0.5}, float[3,1,1] s = {2, 3, 4}>
      { w = DequantizeLinear(q, k)  c = Conv(x, w)  y = Mul(c, s) }"""
    header = '<ir_version: 10, opset_import: ["": 20]>'
    done = apply(onnx.parser.parse_model(header + text), "backward-fold-scale-axis")
    assert done.trace.rewrites == []
    assert "computed from other values" in done.declined
