"""What a rule answers is looked at before it is used."""

import numpy as np
import pytest

from onnxgrad import gradient
from onnxgrad.errors import InputError
from onnxgrad.grad import vjp, vjp_all
from onnxgrad.ir.ops import op
from tests.grad.numeric import check_model, normal
from tests.grad.test_backward_walk import parse
from tests.grad.test_registry import custom


def test_a_wrong_number_of_partials_names_the_rule() -> None:
    vjp_all("my::Twice", lambda g, y, xs: [g, g])
    with pytest.raises(InputError, match="rule of my::Twice returned 2 partials for 1 operand "):
        gradient(custom(), adjoint="input")


def test_a_cotangent_of_the_wrong_shape_names_rule_and_binding() -> None:
    vjp("Tanh", lambda g, y, x: op.Concat(g, g, axis=0), replace=True)
    model = parse("m (float[2] x) => (float[2] y) { y = Tanh (x) }")
    with pytest.raises(
        InputError, match=r"rule of Tanh returned f32\[4\] for operand 0 of type f32\[2\] at 'y:"
    ):
        gradient(model, adjoint="input")


def test_a_rule_that_emits_what_does_not_type_is_named() -> None:
    vjp("Tanh", lambda g, y, x: op.Concat(g, op.Cast(g, to=7), axis=0), replace=True)
    model = parse("m (float[2] x) => (float[2] y) { y = Tanh (x) }")
    with pytest.raises(Exception, match=r"rule of Tanh failed at 'y:.*does not type"):
        gradient(model, adjoint="input")


def test_a_rule_may_answer_none() -> None:
    vjp("Tanh", lambda g, y, x: None, replace=True)
    model = parse("m (float[2] x) => (float[2] y) { y = Tanh (x) }")
    with pytest.warns(UserWarning, match="all gradients are zero"):
        gradient(model, adjoint="input")


def test_an_output_nobody_used_contributes_zeros() -> None:
    model = parse(
        "m (float[5] x) => (float[2] y) { z, y = Split <axis = 0> (x, s) }", s=np.array([3, 2])
    )
    check_model(model, {"x": normal(5)}, ["x"])
