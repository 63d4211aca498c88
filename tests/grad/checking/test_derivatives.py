"""Products with derivatives against differences: right ones, wrong ones, and what proves nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from onnxgrad import check_gradient, check_product, op, vjp
from onnxgrad.errors import InputError
from onnxgrad.grad.checking import derivatives
from onnxgrad.plugins import casadi
from tests.helpers import parse

TEXT = """g (float[N,3] x, float[N,2] t) => (float[N,2] y, float loss)
  <float[3,2] w = {1,-2, 0.5,0.3, -0.4,0.7}> { h = MatMul (x, w)  y = Tanh (h)
  d = Sub (y, t)  loss = ReduceSumSquare <keepdims = 0> (d) }"""
WAYS: list[tuple[list[str], str, dict[str, Any]]] = [
    (["x", "w"], "y", {"of": "jvp"}),
    (["x", "w"], "y[:,1]", {"of": "jvp"}),
    (["x", "w", "t"], "loss", {"of": "hvp"}),
    (["x", "w"], "y", {"of": "jacobian"}),
    (["x", "w"], "y", {"of": "jacobian", "mode": "forward"}),
    (["x", "t"], "loss", {"of": "adj"}),
    (["x", "t"], "loss", {"of": "fwd"}),
]


@pytest.mark.parametrize(("wrt", "target", "options"), WAYS)
def test_what_is_right_agrees(wrt: list[str], target: str, options: dict[str, Any]) -> None:
    report = check_product(parse(TEXT), wrt, target, **options)
    assert report.ok and [v.name for v in report.values] == wrt
    assert all(v.judged and v.gradient for v in report.values)
    assert str(report).startswith(f"{options['of']} agrees with finite differences")
    given = {"x": np.ones((2, 3), np.float32), "t": np.zeros((2, 2), np.float32)}
    assert check_product(parse(TEXT), wrt, target, inputs=given, **options).ok


@pytest.mark.parametrize(("wrt", "target", "options"), WAYS)
def test_a_wrong_rule_is_found(wrt: list[str], target: str, options: dict[str, Any]) -> None:
    vjp("Tanh", lambda g, y, x: g * (1.01 - y * y), replace=True)
    assert not check_product(parse(TEXT), wrt, target, **options).ok


# y holds t behind a stop, and h before it
STOPPED = """g (float[2,3] x) => (float[2] y, float s)
  <float[3,2] w = {1,-2, 0.5,0.3, -0.4,0.7}> { a = Constant <value_ints = [1]> ()
  h = MatMul (x, w)  t = Tanh (h)  q = Mul (t, h)  y = ReduceSum <keepdims = 0> (q, a)
  r = Mul (y, y)  s = ReduceSum <keepdims = 0> (r) }"""


@pytest.mark.parametrize(
    ("of", "target", "options"),
    [("jvp", "y", {}),
     *(pytest.param(of, target, options, marks=pytest.mark.slow) for of, target, options in [
         ("jacobian", "y", {"mode": "forward"}), ("jacobian", "y", {"mode": "reverse"}),
         ("hvp", "s", {}), ("hessian", "s", {}),
     ])],
)  # fmt: skip
def test_values_at_which_it_stops_are_held_fixed(
    of: Any, target: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slope differs from the one without the stop, and a product that ignores it is found."""
    model, wrt = parse(STOPPED), ["x", "w", "t"]
    report = check_product(model, wrt, target, of=of, stop="t", **options)
    assert report.ok and all(v.judged for v in report.values)
    free = check_product(model, ["x", "w"], target, of=of, **options)
    assert free.ok and abs(free.values[0].difference - report.values[0].difference) > 0.1
    for name in ("tangents", "jacobians", "hessian_products", "hessians"):
        form = getattr(derivatives, name)
        monkeypatch.setattr(
            derivatives, name,
            lambda *a, form=form, **k: replace(form(*a[:3], **k), stops=("t",)),
        )  # fmt: skip
    assert not check_product(model, ["x", "w"], target, of=of, stop="t", **options).ok


def test_casadis_derivatives_do_not_stop() -> None:
    with pytest.raises(InputError, match="stop: CasADi's derivative 'fwd' is of the model without"):
        check_product(parse(TEXT), "x", "y", of="fwd", stop="h")


@pytest.mark.slow
@pytest.mark.parametrize("of", ["adj", "fwd"])
def test_directions_in_a_wrong_order_are_found(of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    right = casadi._packed
    monkeypatch.setattr(
        casadi, "_packed", lambda stack, v: right(op.Slice(stack, [-1], [-9], [0], [-1]), v)
    )
    model = parse(TEXT, opset=20)
    assert check_product(model, ["x"], "y", of=of).ok, "the one in the middle stays there"
    monkeypatch.setattr(casadi, "_packed", lambda stack, v: right(stack * np.float32(1.01), v))
    assert not check_product(model, ["x"], "y", of=of).ok
    swapped = {"perm": [1, 2, 0]}
    monkeypatch.setattr(
        casadi, "_packed",
        lambda stack, v: op.Reshape(op.Transpose(stack, **swapped), np.array([0, -1])),
    )  # fmt: skip
    assert not check_product(model, ["x"], "y", of=of).ok


def test_a_second_derivative_that_is_wrong_where_the_first_is_right() -> None:
    """The rule of Softsign holds a Sqrt, whose own rule is wrong and asked for by H alone."""

    def softsign(g: Any, y: Any, x: Any) -> Any:
        d = 1.0 + op.Abs(x)
        return g / op.Sqrt(d * d * d * d)

    vjp("Softsign", softsign, replace=True)
    text = "g (float[4] x) => (float y) { s = Softsign (x)  y = ReduceSum <keepdims = 0> (s) }"
    assert check_product(parse(text), of="hvp").ok
    vjp("Sqrt", lambda g, y, x: g / (2.1 * y), replace=True)
    assert check_gradient(parse(text)).ok
    report = check_product(parse(text), of="hvp")
    assert not report.ok and report.what == "hvp"


def test_what_is_linear_on_both_sides_of_a_kink_has_no_second_derivative() -> None:
    """0 is right for what no path leads to; a mean of two slopes is nobody's second derivative."""
    text = "g (float[8] x) => (float y) { r = Relu (x)  y = ReduceSum <keepdims = 0> (r) }"
    with pytest.warns(UserWarning, match="all gradients are zero"):
        report = check_product(parse(text), of="hvp")
    assert report.ok and report.values[0].unreachable
    squared = text.replace("r)  }", "").replace("ReduceSum <", "ReduceSumSquare <")
    assert check_product(parse(squared), of="hvp").ok
    at_kink = {"x": np.array([0, 0, 0, 0, 0, 0, 0, 0], np.float32)}
    report = check_product(parse(squared), of="hvp", inputs=at_kink)
    assert not report.ok and report.verdict == "not proved"


def test_nothing_against_nothing_is_not_proved() -> None:
    text = "g (float[3] x, float[3] z) => (float[3] y) { y = Mul (x, z) }"
    zero = {"x": np.zeros(3, np.float32), "z": np.zeros(3, np.float32)}
    report = check_product(parse(text), of="jvp", inputs=zero)
    assert report.verdict == "not proved"
    assert check_product(parse(text), of="jvp", inputs=zero, allow_empty=["x", "z"]).ok


def test_what_cannot_be_asked_is_refused() -> None:
    with pytest.raises(
        InputError, match="of must be one of jvp, hvp, jacobian, hessian, adj, fwd, not 'vjp'"
    ):
        check_product(parse(TEXT), of="vjp")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="allow_empty: q: no derivative by it was formed"):
        check_product(parse(TEXT), "x", "y", of="jvp", allow_empty=["q"])
    with pytest.raises(InputError, match="not a scalar"):
        check_product(parse(TEXT), "x", "y", of="hvp")
