"""onnxgrad/ir/type_inference/again.py: control flow whose types the file leaves out."""

from __future__ import annotations

import onnx
import pytest

from onnxgrad.ir.load import load
from onnxgrad.ir.type_inference.again import retype


def types(nodes: str) -> dict[str, str]:
    text = (
        '<ir_version: 10, opset_import: ["" : 18]> m (bool c, int64 n, float16[5,2] x, float[2] h) => (float16[] out) '
        f"{{ {nodes} out = Cast <to = 10> (n) }}"
    )
    block = load(onnx.parser.parse_model(text)).main
    for b in block.walk():  # as in the body of a function
        for v in (*b.outputs, *(v for nested in b.blocks.values() for v in nested.inputs)):
            if v is not None:
                v.type = None
    retype(block)
    return {v.name: str(v.type) for b in block.walk() for v in b.outputs if v is not None}


def test_if_has_what_its_branches_agree_on() -> None:
    found = types(
        "y = If (c) <then_branch = t () => (p) { p = Identity (x) }, else_branch = e () => (q) "
        "{ q = Concat <axis = 0> (x, x) }>  z = Relu (y)"
    )
    assert found["y"] == "f16[?,2]" and found["z"] == found["y"]


def test_scan_types_its_body_and_its_results() -> None:
    found = types(
        "last, all = Scan <num_scan_inputs = 1, body = b (s, e) => (t, o) "
        "{ f = Cast <to = 1> (e) t = Add (s, f) o = CastLike (t, e) }> (h, x)"
    )
    assert found["f"] == "f32[2]" and found["last"] == "f32[2]" and found["all"] == "f16[?,2]"


def test_scan_over_a_value_of_unknown_shape_keeps_its_dtype() -> None:
    found = types(
        "k = Cast <to = 7> (h) r = Reshape (x, k) last, all = Scan <num_scan_inputs = 1, body = b (s, e) => (t, o) "
        "{ t = Identity (s) o = Neg (e) }> (h, r)"
    )
    assert found["r"] == "f16[?,?]" and found["o"] == "f16[?]"
    found = types(
        "y = If (c) <then_branch = t () => (p) { p = Identity (x) }, else_branch = e () => (q) { q = Cast <to = 10> (h) }> "
        "last, all = Scan <num_scan_inputs = 1, body = b (s, e) => (t, o) { t = Identity (s) o = Neg (e) }> (h, y)"
    )
    assert found["y"] == found["o"] == found["all"] == "f16[...]"


def test_loop_keeps_the_dtype_of_a_state() -> None:
    found = types(
        "last, all = Loop <body = b (i, go, s) => (go_on, t, o) "
        "{ go_on = Identity (go) t = Concat <axis = 0> (s, s) o = Cast <to = 10> (h) }> (n, c, h)"
    )
    assert found["last"].startswith("f32[") and found["all"] == "f16[?,2]"


@pytest.mark.parametrize(
    ("axis", "expected"), [(0, "f16[?,2]"), (1, "f16[2,?]"), (-1, "f16[2,?]"), (-2, "f16[?,2]")]
)
def test_scan_stacks_its_results_along_their_axis(axis: int, expected: str) -> None:
    """An axis below zero counts from the end of the result, which has one axis more than what the body gives."""
    found = types(
        f"last, all = Scan <num_scan_inputs = 1, scan_output_axes = [{axis}], body = b (s, e) => (t, o) "
        "{ t = Identity (s) o = Neg (e) }> (h, x)"
    )
    assert found["all"] == expected
