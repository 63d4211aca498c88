"""onnxgrad/grad/checking/zeros.py: exact zeros at factors of products and nowhere else."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from onnxgrad import check_gradient, check_product, op, vjp
from onnxgrad.grad.checking.zeros import feeds_with_zeros

X = np.linspace(0.5, 2, 12, dtype=np.float32).reshape(3, 4)
PRODUCTS = {
    "ReduceProd": "q = ReduceProd (x, a) z = Exp (q)",
    "moved": "t = Transpose (x) q = ReduceProd (t, a) z = Exp (q)",
    "CumProd": "c = Constant <value_int = 1> () q = CumProd (x, c) z = Exp (q)",
    "chain": "p = Mul (x, k) q = Mul (p, x) z = Sin (q)",
    "square": "z = Mul (x, x)",
    "Pow": "z = Pow (x, two)",
    "exponent": "z = Pow (k, x)",
    "ScatterElements": 'z = ScatterElements <reduction = "mul"> (k, i, x)',
}
OTHERS = {
    "one Mul": "z = Mul (x, k)",
    "a kink behind": "q = ReduceProd (x, a) z = Relu (q)",
    "a pole behind": "q = ReduceProd (x, a) z = Log (q)",
    "a kink beside": "q = ReduceProd (x, a) r = Abs (x) z = Add (q, r)",
    "a power with a pole": "h = Constant <value_float = 0.5> () z = Pow (x, h)",
    "ScatterElements that adds": 'z = ScatterElements <reduction = "add"> (k, i, x)',
    "in a branch": """q = ReduceProd (x, a) z = If (b) <then_branch = t () => (float[N,M] u) { u = Abs (x) },
                      else_branch = e () => (float[N,M] v) { v = Neg (x) }>""",
}


def model(body: str, opset: int = 26) -> onnx.ModelProto:
    return onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : {opset}]>
      g (float[3,4] x, bool b) => (float y) <int64[1] a = {{1}}, float two = {{2}},
      int64[1,4] i = {{0, 0, 1, 1}}, float[3,4] k = {{1, 2, 3, 4, 2, 3, 1, 2, 1, 1, 2, 3}}>
      {{ {body} y = ReduceSum <keepdims = 0> (z) }}""")


@pytest.mark.parametrize("name", PRODUCTS)
def test_factors_of_products_are_zero_in_places(name: str) -> None:
    found = feeds_with_zeros(model(PRODUCTS[name]), {"x": X, "b": np.array(True)}, 0)
    one, more = (feeds["x"] == 0 for feeds in found)
    assert one.sum() == 1 and 1 < more.sum() < 12
    np.testing.assert_array_equal(found[1]["x"][~more], X[~more])


@pytest.mark.parametrize("name", OTHERS)
def test_nothing_else_is_zero(name: str) -> None:
    assert feeds_with_zeros(model(OTHERS[name]), {"x": X, "b": np.array(True)}, 0) == []


def by_division(g: Any, y: Any, x: Any, axes: Any, keepdims: int, binding: Any) -> Any:
    """Right, but for zeros."""
    return g * op.Where(op.Equal(x, 0.0), 0.0, y / op.Where(op.Equal(x, 0.0), 1.0, x))


def by_counting(g: Any, y: Any, x: Any, axes: Any, keepdims: int, binding: Any) -> Any:
    """Right, but for the second derivative at a zero."""
    zero = op.Equal(x, 0.0)
    others = op.Where(zero, 1.0, x)
    product = op.ReduceProd(others, list(axes), keepdims=1)
    zeros = op.ReduceSum(op.Cast(zero, to=1), list(axes), keepdims=1)
    alone = op.Where(op.Equal(zeros, 1.0), product, 0.0)
    none = op.Where(op.Equal(zeros, 0.0), product, 0.0)
    return g * op.Where(zero, alone, none / others)


def test_rules_that_are_wrong_at_zeros_alone_are_found() -> None:
    given = model(PRODUCTS["ReduceProd"])
    assert check_gradient(given, ["x"]).ok and check_product(given, ["x"], of="hvp").ok
    vjp("ReduceProd", by_counting, replace=True)
    assert check_gradient(given, ["x"]).ok and not check_product(given, ["x"], of="hvp").ok
    vjp("ReduceProd", by_division, replace=True)
    assert not check_gradient(given, ["x"]).ok
    assert check_gradient(given, ["x"], inputs={"x": X}).ok, "the user's inputs stay as they are"
