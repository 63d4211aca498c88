"""Sizes behind calls of local functions, and behind Loops that keep them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import onnxgrad
from onnxgrad.ir.load import load
from onnxgrad.verify.running.session import run
from tests.helpers import parse
from tests.rewriting import apply

FUNCTIONS = """
<domain: "d", opset_import: ["" : 20]> rows (x, t) => (y) { y = Reshape(x, t) }
<domain: "d", opset_import: ["" : 20]> join <axis, to>(x) => (y) {
  z = Concat<axis: int = @axis>(x, x)  y = Cast<to: int = @to>(z) }
<domain: "d", opset_import: ["" : 20]> default <axis: int = 1>(x) => (y) { y = Concat<axis: int = @axis>(x, x) }
<domain: "d", opset_import: ["" : 20, "d" : 1]> outer (x) => (y, n) {
  k = Constant<value_ints = [-1, 8]>()  z = d.rows(x, k)  n = Shape(z)  y = Exp(z) }
<domain: "d", opset_import: ["" : 20]> branches (x, c) => (y) {
  y = If (c) <then_branch = t () => (p) { p = Neg(x) }, else_branch = e () => (q) { q = Exp(x) }> }
<domain: "d", opset_import: ["" : 20]> sized (x, n) => (y) { y = Expand(x, n) }"""


def model(body: str, inputs: str = "float[B,S,8] x") -> Any:
    return parse(
        f"""<ir_version: 10, opset_import: ["" : 20, "d" : 1]>
        g ({inputs}) => (float y) <int64[2] two = {{-1, 4}}, int64[2] eight = {{-1, 8}}> {{ {body} }} {FUNCTIONS}"""
    )


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("y = d.rows(x, two)", "f32[2*B*S,4]"),
        ("z = d.rows(x, two) y = d.rows(z, eight)", "f32[B*S,8]"),  # the same body for other operands
        ("y = d.join<axis = 2, to = 7>(x)", "i64[B,S,16]"),
        ("y = d.join<axis = 1, to = 1>(x)", "f32[B,2*S,8]"),
        ("y = d.default(x)", "f32[B,2*S,8]"),
        ("y = d.default<axis = 0>(x)", "f32[2*B,S,8]"),
        ("y, n = d.outer(x)", "f32[B*S,8]"),
        ("z, n = d.outer(x) one = Constant<value_ints = [1]>() y = Expand(one, n)", "i64[B*S,8]"),
        ("n = Shape(x) y = d.sized(x, n)", "f32[B,S,8]"),
        ("one = Constant<value_int = 1>() c = Cast<to = 9>(one) z = d.rows(x, two) y = d.branches(z, c)", "f32[2*B*S,4]"),
    ],
)  # fmt: skip
def test_results_of_calls(body: str, found: str) -> None:
    proto = model(body)
    proto.graph.output[0].type.Clear()
    program = load(proto)
    program.check_block(program.main)
    assert str(program.main.outputs[0].type) == found
    names = {v.name for block in program.blocks() for v in block.vars()}
    nodes = {b.node.name for block in program.blocks() for b in block.walk()}
    assert program.names <= names | nodes  # nothing is left of the copies
    proto.graph.output[0].type.tensor_type.elem_type = 7 if "i64" in found else 1
    sized = {"f32[2*B*S,4]": lambda b, s: (2 * b * s, 4), "f32[B*S,8]": lambda b, s: (b * s, 8)}
    for b, s in ((2, 3), (1, 1), (3, 0)) if found in sized else ():
        y = run(proto, {"x": np.ones((b, s, 8), np.float32)}, optimize=False)["y"]
        assert y.shape == sized[found](b, s)


def test_a_rewrite_behind_a_call() -> None:
    """The Reshape back to what the call returned goes."""
    done = apply(
        model("z = d.rows(x, eight) n = Shape(z) e = Exp(z) r = Reshape(e, n) y = Neg(r)"),
        "remove-noops,remove-unused",
    )
    assert done.ops == ["rows", "Exp", "Neg"]
    done.prove()


def test_the_types_inside_a_function_stay_open() -> None:
    program = load(model("y = d.default(x)"))
    assert {v.type for v in program.functions["d", "default", ""].vars()} == {None}


@pytest.mark.parametrize(
    ("state", "body", "found"),
    [
        ("float[B,4] s", "t = Sin(s)", "f32[B,4]"),
        ("float[B,4] s", "t = Concat<axis = 0>(s, s)", "f32[...]"),
        ("float s", "t = Sin(s)", "f32[...]"),  # what is not declared is not guessed
        ("float[B,5] s", "t = Sin(s)", "f32[...]"),
    ],
)
def test_the_state_of_a_loop(state: str, body: str, found: str) -> None:
    proto = parse(
        f"""g (float[B,4] x, int64 n) => (float y) {{ y = Loop (n, , x) <body = b (int64 i, bool c, {state}) =>
        (bool d, float t) {{ d = Identity(c) {body} }}> }}"""
    )
    for shape in (proto.graph.output[0], proto.graph.node[0].attribute[0].g.output[1]):
        shape.type.tensor_type.ClearField("shape")
    if state == "float s":
        proto.graph.node[0].attribute[0].g.input[2].type.tensor_type.ClearField("shape")
    assert str(load(proto).main.outputs[0].type) == found


def test_deep_calls_end() -> None:
    """Each function calls the one before it twice: 2^18 copies."""
    body = "".join(
        f'\n<domain: "d", opset_import: ["" : 20, "d" : 1]> f{i + 1} (x) => (y) '
        f"{{ a = d.f{i}(x) b = d.f{i}(a) y = Add(a, b) }}"
        for i in range(18)
    )
    text = f"""<ir_version: 10, opset_import: ["" : 20, "d" : 1]>
      g (float[N] x) => (float y) {{ y = d.f18(x) }}
      <domain: "d", opset_import: ["" : 20]> f0 (x) => (y) {{ y = Concat<axis = 0>(x, x) }}{body}"""
    assert onnxgrad.load(parse(text)).main.outputs[0].rank in (None, 1)


def test_the_declared_shape_of_a_state_is_not_believed() -> None:
    proto = parse(
        """g (float[4] x, int64 n) => (float[4] y) { y = Loop (n, , x) <body = b (int64 i, bool c, float[4] s) =>
        (bool d, float[4] t) { d = Identity(c) t = Concat<axis = 0>(s, s) }> }"""
    )
    assert str(load(proto).main.outputs[0].type) == "f32[?]"
