"""Einsum: products, sums, diagonals, ellipses, broadcasting, implied results, several operands."""

from __future__ import annotations

import numpy as np
import pytest

from onnxgrad.errors import InputError
from onnxgrad.grad import gradient
from tests.grad.numeric import check_model, check_op, normal, op_model

CASES = {
    "ij,jk->ik": [(2, 3), (3, 4)],
    "bij,bjk->bik": [(2, 2, 3), (2, 3, 4)],
    "ij,jk": [(2, 3), (3, 4)],
    "i,i": [(4,), (4,)],
    "i,j->ij": [(2,), (3,)],
    "ij->ji": [(2, 3)],
    "ij->i": [(2, 3)],
    "ij->": [(2, 3)],
    "ii->i": [(3, 3)],
    "ii->": [(3, 3)],
    "ii": [(3, 3)],
    "iij,j->i": [(2, 2, 3), (3,)],
    "...ii->...i": [(2, 3, 3)],
    "...ij,...jk->...ik": [(2, 3, 4), (2, 4, 2)],
    "i...,i...->...": [(2, 3), (2, 3)],
    "a...a->...": [(2, 3, 2)],
    "ij,jk,kl->il": [(2, 3), (3, 2), (2, 4)],
    "ij,kl->i": [(2, 3), (2, 4)],
    "bhqd,bhkd->bhqk": [(1, 2, 3, 4), (1, 2, 2, 4)],
}


@pytest.mark.parametrize("equation", CASES)
def test_equation(equation: str) -> None:
    names = "xyz"
    feeds = {names[i]: normal(*shape, seed=i) for i, shape in enumerate(CASES[equation])}
    check_op(f'o = Einsum <equation = "{equation}"> ({", ".join(feeds)})', feeds, seeds=(0,))


def test_second_derivative() -> None:
    feeds = {"x": normal(2, 3), "y": normal(3, 2)}
    first = gradient(
        op_model('o = Einsum <equation = "ij,ji->i"> (x, y)', feeds, symbolic=True), adjoint="input"
    )
    given = {**feeds, "o_grad": np.ones(2, np.float32)}
    check_model(first, given, [*feeds], target=["x_grad", "y_grad"], seeds=(0,))


def test_an_ellipsis_over_an_unknown_number_of_axes_is_refused() -> None:
    model = op_model(
        'o = Einsum <equation = "...i,...i->..."> (x, y)', {"x": normal(2, 3), "y": normal(2, 3)}
    )
    model.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(InputError, match="needs the rank of its operands"):
        gradient(model, adjoint="input")
