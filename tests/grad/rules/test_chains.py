"""onnxgrad/grad/rules/chains: right by differences in float64, as short as said, and for every way of writing."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from onnxgrad import gradient
from onnxgrad.verify.reference.evaluate import Reference
from onnxgrad.verify.running.session import run
from tests.grad.numeric import check_model, normal, operators, positive
from tests.helpers import parse

NUMBERS = (
    "float half = {0.5}, float third = {0.044715}, float root = {0.7978845608}, "
    "float one = {1.0}, float two = {2.0}, float three = {3.0}"
)
CUBES = {
    "pow": "p = Pow (x, three)",
    "products": "xx = Mul (x, x) p = Mul (xx, x)",
    "square": "xx = Pow (x, two) p = Mul (x, xx)",
}
ENDS = {
    "half first": "u = Mul (x, half) y = Mul (u, h)",
    "half last": "u = Mul (h, x) y = Mul (u, half)",
    "half inside": "u = Mul (half, h) y = Mul (x, u)",
}


def gelu(cube: str = "pow", end: str = "half first", numbers: str = NUMBERS) -> str:
    return (
        f"g (float[2,3] x) => (float[2,3] y) <{numbers}> {{ {CUBES[cube]} q = Mul (p, third) "
        f"a = Add (x, q) w = Mul (a, root) t = Tanh (w) h = Add (t, one) {ENDS[end]} }}"
    )


SILU = "g (float[2,3] x) => (float[2,3] y) { s = Sigmoid (x) y = Mul (x, s) }"


def root_mean_square(inverse: str, square: str = "p = Mul (x, x)") -> str:
    return (
        "g (float[2,3,4] x) => (float[2,3,4] y) <float eps = {0.1}, float two = {2.0}, "
        "float one = {1.0}, float power = {-0.5}, int64[1] axes = {-1}> "
        f"{{ {square} m = ReduceMean (p, axes) e = Add (m, eps) {inverse} }}"
    )


ROOTS = {
    "reciprocal": "s = Sqrt (e) r = Reciprocal (s) y = Mul (x, r)",
    "one over": "s = Sqrt (e) r = Div (one, s) y = Mul (r, x)",
    "power": "r = Pow (e, power) y = Mul (x, r)",
    "divided": "s = Sqrt (e) y = Div (x, s)",
}


def emitted_by(text: str) -> Counter[str]:
    model = parse(text)
    found = gradient(model, "x", adjoint="input")
    return operators(found) - operators(model)


@pytest.mark.parametrize("cube", CUBES)
@pytest.mark.parametrize("end", ENDS)
def test_gelu_by_tanh(cube: str, end: str) -> None:
    text = gelu(cube, end)
    check_model(parse(text), {"x": normal(2, 3) * 2})
    assert emitted_by(text) == Counter(Mul=5, Add=2, Sub=1)


def test_silu() -> None:
    check_model(parse(SILU), {"x": normal(2, 3) * 2})
    assert emitted_by(SILU) == Counter(Mul=2, Add=1, Sub=1)


def test_softplus_up_to_a_threshold() -> None:
    text = (
        "g (float[2,3] x) => (float[2,3] y) <float two = {2.0}> "
        "{ c = Greater (x, two) s = Softplus (x) y = Where (c, x, s) }"
    )
    check_model(parse(text), {"x": normal(2, 3) * 3})
    assert emitted_by(text) == Counter(Sigmoid=1, Mul=1, Where=1)


@pytest.mark.parametrize("inverse", ROOTS)
@pytest.mark.parametrize("square", ["p = Mul (x, x)", "p = Pow (x, two)"])
def test_root_mean_square(inverse: str, square: str) -> None:
    text = root_mean_square(ROOTS[inverse], square)
    check_model(parse(text), {"x": normal(2, 3, 4)})
    last = "Div" if inverse == "divided" else "Mul"
    assert emitted_by(text) == Counter(Mul=2, Sub=1, ReduceMean=1) + Counter([last])


def test_layer_normalization_written_out() -> None:
    text = root_mean_square(ROOTS["divided"]).replace("x)", "d)").replace("x,", "d,")
    text = text.replace("4] d)", "4] x)").replace(
        "{ p", "{ c = ReduceMean (x, axes) d = Sub (x, c) p"
    )
    check_model(parse(text), {"x": normal(2, 3, 4)})
    assert emitted_by(text)["ReduceMean"] == 1


@pytest.mark.parametrize("axis", ["", "<axis = 0>", "<axis = 1>"])
def test_the_logarithm_of_a_softmax(axis: str) -> None:
    text = f"g (float[2,3,4] x) => (float[2,3,4] y) {{ p = Softmax {axis} (x) y = Log (p) }}"
    check_model(parse(text), {"x": normal(2, 3, 4)})
    assert not {"Div", "Reciprocal"} & emitted_by(text).keys()
    apart = np.zeros((2, 3, 4), np.float32)
    apart[0, 0, 0] = 200  # the others underflow in float32
    graph = gradient(parse(text), "x", adjoint="input")
    g = normal(2, 3, 4)
    found = run(graph, {"x": apart, "y_grad": g})["x_grad"]
    expected = Reference(graph).run({"x": apart, "y_grad": g})["x_grad"]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("opset", [13, 17])
def test_axes_as_an_attribute(opset: int) -> None:
    text = root_mean_square(ROOTS["reciprocal"]).replace(
        "ReduceMean (p, axes)", "ReduceMean <axes = [-1]> (p)"
    )
    check_model(parse(text, opset=opset), {"x": normal(2, 3, 4)})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (gelu(numbers=NUMBERS.replace("0.5", "0.4")), "another number"),
        (gelu().replace("Tanh (w)", "Sin (w)"), "another function"),
        (
            SILU.replace("Mul (x, s)", "Mul (x, x) z = Mul (y, s)").replace("y) {", "z) {"),
            "no gate",
        ),
        (root_mean_square(ROOTS["divided"]).replace("ReduceMean", "ReduceMax"), "no mean"),
    ],
)
def test_what_is_no_chain_is_still_right(text: str, why: str) -> None:
    check_model(parse(text), {"x": positive(*((2, 3, 4) if "2,3,4" in text else (2, 3)))})


def test_a_number_that_widens() -> None:
    text = gelu(numbers=NUMBERS.replace("float half", "float[1,1] half")).replace(
        "(float[2,3] x)", "(float[3] x)"
    )
    check_model(parse(text.replace("=> (float[2,3] y)", "=> (float[1,3] y)")), {"x": normal(3)})


@pytest.mark.parametrize("third", [0.044715, 0.04471502])
@pytest.mark.parametrize("slope", [float(np.float32((2 / np.pi) ** 0.5)), 0.7978849])
def test_the_numbers_of_the_file_are_differentiated(third: float, slope: float) -> None:
    """A file holds them as float32: the derivative by pi itself is off by 1e-8, which an ALBERT of
    float64 parted by.
    """
    numbers = NUMBERS.replace("0.7978845608", repr(slope)).replace("0.044715", repr(third))
    model = parse(gelu(numbers=numbers).replace("float", "double"))
    x = normal(2, 3).astype(np.float64) * 2
    t = np.tanh(slope * (x + third * x**3))
    expected = 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * slope * (1 + 3 * third * x * x)
    graph = gradient(model, "x", adjoint="input")
    found = Reference(graph).run({"x": x, "y_grad": np.ones((2, 3))})
    np.testing.assert_allclose(found["x_grad"], expected, rtol=1e-14, atol=1e-15)
