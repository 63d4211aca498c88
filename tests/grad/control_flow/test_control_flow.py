"""If and Scan, and what no body may do: against central differences, captures and states of every kind."""

from __future__ import annotations

import numpy as np
import pytest

from onnxgrad import gradient
from onnxgrad.errors import InputError
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
