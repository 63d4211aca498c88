"""onnxgrad/grad/rules/arithmetic.py"""

from __future__ import annotations

import numpy as np
import pytest

from onnxgrad import gradient
from onnxgrad.verify.running.session import run
from tests.grad.numeric import check_op, distinct, normal, op_model, positive, within

UNARY = {
    "Neg": normal, "Identity": normal, "Abs": distinct, "Exp": normal, "Sin": normal, "Cos": normal, "Sinh": normal,
    "Cosh": normal, "Tanh": normal, "Asinh": normal, "Atan": normal, "Erf": normal, "Reciprocal": positive,
    "Sqrt": positive, "Log": positive, "Tan": positive,
}  # fmt: skip


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_number(name: str) -> None:
    check_op(f"y = {name} (x)", {"x": UNARY[name](2, 3)})


@pytest.mark.parametrize("name", ["Asin", "Acos", "Atanh"])
def test_inverse_functions(name: str) -> None:
    check_op(f"y = {name} (x)", {"x": within(-0.9, 0.9, 2, 3)})


def test_acosh() -> None:
    check_op("y = Acosh (x)", {"x": within(1.5, 3, 2, 3)})


@pytest.mark.parametrize("constant", [True, False])
def test_power_of_zero_at_infinity(constant: bool) -> None:
    """x^0 is 1 there too, so its slope is 0; not 0 times infinity."""
    x, e = np.array([np.inf, -np.inf, 0, 2], np.float32), {"e": np.float32(0)}
    feeds = {"x": x} if constant else {"x": x, **e}
    model = op_model("y = Pow (x, e)", feeds, constants=e if constant else {})
    found = run(
        gradient(model, ["x"], adjoint="input"), {**feeds, "y_grad": np.ones(4, np.float32)}
    )
    np.testing.assert_array_equal(found["x_grad"], np.zeros(4))


@pytest.mark.parametrize(
    "shapes",
    [((2, 3), (2, 3)), ((2, 3), (3,)), ((1, 3), (2, 1)), ((), (2, 3)), ((4, 1, 3), (2, 1))],
)
@pytest.mark.parametrize("name", ["Add", "Sub", "Mul", "Div", "Pow"])
def test_arithmetic_broadcasts(name: str, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    check_op(f"y = {name} (a, b)", {"a": positive(*shapes[0]), "b": positive(*shapes[1], seed=1)})


@pytest.mark.parametrize("exponent", [0.0, 1.0, 2.0, 0.5, -1.0, 3.0])
def test_pow_with_a_constant_exponent(exponent: float) -> None:
    check_op("y = Pow (x, e)", {"x": positive(2, 3)}, constants={"e": np.float32(exponent)})


def test_pow_with_an_integer_exponent() -> None:
    check_op("y = Pow (x, e)", {"x": normal(2, 3), "e": np.array([1, 2, 3])})


def test_pow_at_zero_is_finite() -> None:
    feeds = {"x": np.zeros(3, np.float32), "e": np.array([0, 1, 2], np.float32)}
    found = run(
        gradient(op_model("y = Pow (x, e)", feeds), adjoint="input"),
        {**feeds, "y_grad": np.ones(3, np.float32)},
    )
    np.testing.assert_array_equal(found["x_grad"], [0, 1, 0])
    np.testing.assert_array_equal(found["e_grad"], [0, 0, 0])


def test_mod() -> None:
    check_op("y = Mod <fmod = 1> (a, b)", {"a": distinct(2, 3) * 7, "b": positive(3)})


@pytest.mark.parametrize("name", ["Max", "Min", "Sum", "Mean"])
def test_any_number_of_operands(name: str) -> None:
    check_op(f"y = {name} (a, b, c)", {"a": normal(2, 3), "b": normal(3), "c": normal(2, 1)})
    check_op(f"y = {name} (a)", {"a": normal(2, 3)})


def test_equal_maxima_share_evenly() -> None:
    feeds = {"a": np.array([1, 2], np.float32), "b": np.array([1, 0], np.float32)}
    found = run(
        gradient(op_model("y = Max (a, b)", feeds), adjoint="input"),
        {**feeds, "y_grad": np.ones(2, np.float32)},
    )
    np.testing.assert_array_equal(found["a_grad"], [0.5, 1])
    np.testing.assert_array_equal(found["b_grad"], [0.5, 0])


def test_where() -> None:
    mask = np.array([[True], [False]])
    check_op("y = Where (m, a, b)", {"m": mask, "a": normal(2, 3), "b": normal(3)})


@pytest.mark.parametrize("operands", ["x, l, h", "x, , h", "x, l", "x"])
def test_clip(operands: str) -> None:
    feeds = {"x": normal(4, 5), "l": np.float32(-0.5), "h": np.float32(0.6)}
    check_op(f"y = Clip ({operands})", {k: v for k, v in feeds.items() if k in operands})


def test_casts() -> None:
    check_op("y = Cast <to = 11> (x)", {"x": normal(4, 5)})
    check_op("y = CastLike (x, t)", {"x": normal(4, 5), "t": np.zeros(1, np.float64)}, ["x"])


@pytest.mark.parametrize("name", ["Floor", "Ceil", "Round", "Sign"])
def test_steps_have_zero_derivative(name: str) -> None:
    check_op(f"z = {name} (x) y = Mul (z, x)", {"x": distinct(2, 3) * 7})


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
def test_cumulative(exclusive: int, reverse: int) -> None:
    flags = f"<exclusive = {exclusive}, reverse = {reverse}>"
    check_op(f"y = CumSum {flags} (x, a)", {"x": normal(3, 4)}, constants={"a": np.array(1)})
    check_op(f"y = CumSum {flags} (x, a)", {"x": normal(3, 4), "a": np.array(-2)})


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("zeros", [0, 1, 2])
def test_cum_prod(exclusive: int, reverse: int, zeros: int) -> None:
    x = normal(2, 5)
    x[0, [1, 3][:zeros]] = 0
    flags = f"<exclusive = {exclusive}, reverse = {reverse}>"
    check_op(
        f"y = CumProd {flags} (x, a)",
        {"x": x},
        constants={"a": np.array(1)},
        opset=26,
        onnxruntime=False,
    )


def test_range() -> None:
    model = op_model(
        "y = Range (a, b, d)", {"a": np.float32(0), "b": np.float32(0), "d": np.float32(0)}
    )
    feeds = {"a": np.float32(1), "b": np.float32(3.9), "d": np.float32(0.5), "y_grad": normal(6)}
    found = run(gradient(model, ["a", "d"], adjoint="input"), feeds)
    np.testing.assert_allclose(found["a_grad"], feeds["y_grad"].sum(), rtol=1e-6)
    np.testing.assert_allclose(found["d_grad"], (feeds["y_grad"] * np.arange(6)).sum(), rtol=1e-6)
