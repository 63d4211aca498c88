"""If and Scan, and what no body may do: against central differences, captures and states of every kind."""

from __future__ import annotations

import numpy as np
import pytest

from onnxgrad import gradient
from onnxgrad.errors import InputError
from onnxgrad.verify.reference.evaluate import reference
from tests.grad.numeric import check_model, normal
from tests.helpers import parse


def test_if_takes_the_gradient_of_the_branch_taken() -> None:
    model = parse(
        """g (float[2,3] x, float[3] w, bool c) => (float[2,3] y) {
            y = If (c) <
                then_branch = t () => (float[2,3] a) { p = Mul (x, w)  a = Tanh (p) },
                else_branch = e () => (float[2,3] b) { q = Sin (x)  b = Add (q, x) }>
        }"""
    )
    for taken in (True, False):
        check_model(model, {"x": normal(2, 3), "w": normal(3), "c": np.array(taken)})


def test_if_returns_a_captured_value() -> None:
    model = parse(
        """g (float[2] x, bool c) => (float[2] y) {
            z = Mul (x, x)
            v = If (c) <
                then_branch = t () => (float[2] a) { a = Identity (z) },
                else_branch = e () => (float[2] b) { b = Neg (x) }>
            y = Mul (v, z)
        }"""
    )
    for taken in (True, False):
        check_model(model, {"x": normal(2), "c": np.array(taken)})


SCAN = """g (float[2] h, float[5,3] x, float[3,2] w) => (float[2] y, float[{shape}] o) {{
    y, o = Scan (h, x) <num_scan_inputs = 1{more}, body = b (float[2] s, float[3] e) => (float[2] t, float[2] z) {{
        p = MatMul (e, w)
        q = Add (p, s)
        t = Tanh (q)
        z = Mul (t, s)
    }}>
}}"""


@pytest.mark.parametrize(
    ("more", "shape"),
    [
        ("", "5,2"),
        (", scan_input_directions = [1]", "5,2"),
        (", scan_output_directions = [1]", "5,2"),
        (", scan_output_axes = [1]", "2,5"),
        (
            ", scan_output_axes = [-1], scan_input_directions = [1], scan_output_directions = [1]",
            "2,5",
        ),
    ],
)
def test_scan(more: str, shape: str) -> None:
    model = parse(SCAN.format(more=more, shape=shape))
    check_model(model, {"h": normal(2), "x": normal(5, 3), "w": normal(3, 2)})


def test_scan_along_another_axis() -> None:
    model = parse(
        """g (float[2] h, float[2,4] x, float[2] w) => (float[2] y) {
            y = Scan (h, x) <num_scan_inputs = 1, scan_input_axes = [1], body = b (float[2] s, float[2] e) => (float[2] t) {
                p = Mul (e, w)
                t = Mul (p, s)
            }>
        }"""
    )
    check_model(model, {"h": normal(2), "x": normal(2, 4), "w": normal(2, seed=3)})


STEPS = """h, y = Scan <num_scan_inputs = 1, scan_input_axes = [{axis}], scan_output_axes = [{axis}], scan_input_directions = [{way}],
    body = q (float[3] a, float[3] e) => (float[3] b, float[3] o) {{ p = Mul (a, e) b = Tanh (p) o = Add (b, a) }}> (z, v)"""


def test_scan_over_a_value_of_unknown_rank() -> None:
    """The inputs of the body tell the ranks of slices."""
    model = parse(f"""g (float[2,3] x, int64[k] s) => (float[2,3] y) {{
        v = Reshape (x, s) i = Constant <value_ints = [0]> () z = ReduceSum <keepdims = 0> (v, i)
        {STEPS.format(axis=0, way=1)} }}""")
    check_model(model, {"x": normal(2, 3), "s": np.array([2, 3])}, ["x"])


@pytest.mark.parametrize(("axis", "way"), [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize(
    "outer",
    [
        "w = SplitToSequence <axis = 0, keepdims = 0> (x) n = Constant <value_int = 1> () k = SequenceAt (w, n)",
        "w = Reshape (x, s) r = Constant <value_ints = [-1]> () k1 = Reshape (w, r) r3 = Constant <value_ints = [0]> () r6 = Constant <value_ints = [3]> () k = Slice (k1, r3, r6)",
    ],
)
def test_scan_that_captures_a_sequence_or_a_value_of_unknown_rank(
    outer: str, axis: int, way: int
) -> None:
    """Its backward steps are a Loop: a Scan has neither as a state."""
    first, *inner = outer.partition(") ")
    shape, turn = ("[2,3]", "v = Sin (x)") if axis == 0 else ("[3,2]", "v = Transpose (x)")
    steps = STEPS.format(axis=axis, way=way).replace(
        "p = Mul (a, e)", f"{inner[1]} q = Mul (a, k) p = Mul (q, e)"
    )
    model = parse(f"""g (float[2,3] x, int64[k] s) => (float{shape} y) {{
        {first}) z = Constant <value_floats = [0.3, -0.2, 0.9]> () {turn} {steps} }}""")
    check_model(model, {"x": normal(2, 3), "s": np.array([3, 2])}, ["x"])


def test_a_loop_from_a_call_of_unknown_type() -> None:
    """An If of a function has the dtype of the branch whose type is known."""
    model = parse("""<ir_version: 10, opset_import: ["" : 20, "my" : 1]>
        g (float[3] x, bool c) => (float[3] y) {
            y = If (c) <then_branch = t () => (float[3] a) {
                v = my.Choice (x) n = Constant <value_int = 2> ()
                a = Loop (n, , v) <body = b (int64 i, bool d, float[3] h) => (bool e, float[3] o) { e = Identity (d) p = Tanh (h) o = Mul (p, x) }> },
              else_branch = f () => (float[3] z) { z = Sin (x) }> }
        <opset_import: ["" : 20, "my" : 1], domain: "my"> Choice (x) => (y) {
            s = ReduceSum <keepdims = 0> (x) k = Constant <value_float = 9.0> () c = Less (s, k)
            y = If (c) <then_branch = t () => (a) { a = my.Twice (x) }, else_branch = e () => (b) { b = Mul (x, x) }> }
        <opset_import: ["" : 20], domain: "my"> Twice (x) => (y) { y = Add (x, x) }""")
    x, c = normal(3).astype(float), np.array(True)
    made = gradient(model, "x", "y", adjoint="input")
    found = reference(made, {"x": x, "c": c, "y_grad": np.ones(3)})["x_grad"]
    ends = [
        reference(model, {"x": x + 1e-6 * d, "c": c})["y"].sum()
        for s in (1, -1)
        for d in s * np.eye(3)
    ]
    np.testing.assert_allclose(found, (np.array(ends[:3]) - ends[3:]) / 2e-6, rtol=1e-6, atol=1e-9)


def test_a_body_that_draws_is_refused() -> None:
    model = parse(
        """g (float[2] x, bool c) => (float[2] y) {
            y = If (c) <
                then_branch = t () => (float[2] a) { r = RandomNormalLike (x)  a = Mul (x, r) },
                else_branch = e () => (float[2] b) { b = Neg (x) }>
        }"""
    )
    with pytest.raises(InputError, match="draws random numbers"):
        gradient(model, target="y", adjoint="input")
