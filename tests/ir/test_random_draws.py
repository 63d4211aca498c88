"""Does a binding draw random numbers, at every opset that had another way to say so?"""

from __future__ import annotations

import pytest

from onnxgrad.ir.binding import draws
from onnxgrad.ir.load import load
from tests.helpers import parse


@pytest.mark.parametrize(
    ("opset", "binding", "drawn"),
    [
        (1, "Dropout(x)", True),
        (1, "Dropout<is_test = 1>(x)", False),
        (6, "Dropout(x)", True),
        (6, "Dropout<is_test = 1>(x)", False),
        (7, "Dropout(x)", False),
        (10, "Dropout<ratio = 0.5>(x)", False),
        (12, "Dropout(x, r)", False),
        (13, "Dropout(x, r, t)", True),
        (22, "Dropout(x, r, t)", True),
        (22, "RandomNormalLike(x)", True),
        (22, "Bernoulli(x)", True),
        (22, "Relu(x)", False),
    ],
)
def test_draws(opset: int, binding: str, drawn: bool) -> None:
    text = f"g (float[2] x, float r, bool t) => (float[2] y) {{ y = {binding} }}"
    (b,) = load(parse(text, opset=opset, ir_version=7)).main.bindings
    assert draws(b) is drawn


def test_anothers_operator_of_that_name_is_not_known_to_draw() -> None:
    text = """<ir_version: 10, opset_import: ["" : 20, "my" : 1]> g (float[2] x) => (float[2] y) { y = my.Bernoulli(x) }"""
    (b,) = load(parse(text)).main.bindings
    assert not draws(b)
