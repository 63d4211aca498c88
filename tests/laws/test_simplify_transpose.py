"""A Transpose that another undoes behind an operator that works on each element by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxgrad.ir.domains import ACTIVATIONS
from tests.rewriting import apply, assert_same_bits, model_of, rewritten, special

PERMS = [((1, 0, 2), (1, 0, 2)), ((1, 2, 0), (2, 0, 1))]
BETWEEN = ["Relu(y)", "Neg(y)", "LeakyRelu<alpha=0.3>(y)", "Sqrt(y)", "Floor(y)"]
BETWEEN += ["Mul(y, c)", "Add(c, y)", "Sub(y, c)", "Div(y, c)"]


@pytest.mark.parametrize("opset", [11, 13, 20])
@pytest.mark.parametrize("between", BETWEEN)
@pytest.mark.parametrize(("first", "second"), PERMS)
def test_both_go(first: Any, second: Any, between: str, opset: int) -> None:
    text = f"""g (float[2,3,N] x) => (float[2,3,N] o) {{
        y = Transpose<perm={list(first)}>(x) z = {between} o = Transpose<perm={list(second)}>(z)
      }}"""
    done = rewritten(text, "simplify-transpose", {"c": np.float32(0.7)}, opset=opset)
    assert done.ops == [between.split("<")[0].split("(")[0]]
    assert_same_bits(done, x=special(2, 3, 5))


@pytest.mark.parametrize("opset", [7, 13, 22])
@pytest.mark.parametrize("shape", [(3,), (1, 3), (5, 1, 3), (5, 2, 3), (2, 1)])
@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div"])
def test_a_constant_beside_it_is_transposed_at_once(
    op: str, shape: tuple[int, ...], opset: int
) -> None:
    text = f"""g (float[2,3,5] x) => (float[2,3,5] o, float[2,3,5] p) {{
        y = Transpose<perm=[2,0,1]>(x) z = {op}(y, c) o = Transpose<perm=[1,2,0]>(z)
        t = Transpose<perm=[2,0,1]>(x) u = {op}(d, t) p = Transpose<perm=[1,2,0]>(u)
      }}"""
    constants = {"c": special(*shape), "d": special(*shape, seed=1)}
    done = rewritten(text, "simplify-transpose", constants, opset=opset, ir_version=8)
    assert done.ops == [op, op]
    assert_same_bits(done, x=special(2, 3, 5))


@pytest.mark.parametrize("dtype", ["float16", "float", "double", "int32", "int64"])
def test_two_transposed_operands(dtype: str) -> None:
    text = f"""g ({dtype}[2,N] x, {dtype}[1,N] z) => ({dtype}[2,N] o, {dtype}[N,2] e) {{
        s = Transpose(x) t = Transpose(z) y = Mul(s, t) o = Transpose(y) e = Neg(s)
      }}"""
    done = rewritten(text, "simplify-transpose")
    assert sorted(done.ops) == ["Mul", "Neg", "Transpose"], (
        "one is read elsewhere and stays for that"
    )
    kind = {"float": "float32", "double": "float64"}.get(dtype, dtype)
    assert_same_bits(
        done, x=np.arange(6).reshape(2, 3).astype(kind), z=np.arange(3).reshape(1, 3).astype(kind)
    )


def test_explain_names_each_activation_that_keeps_its_transposes() -> None:
    for op in ACTIVATIONS:
        text = f"""g (float[2,3,5] x) => (float[2,3,5] o) {{
            y = Transpose<perm=[0,2,1]>(x) z = {op}(y) o = Transpose<perm=[0,2,1]>(z)
          }}"""
        done = apply(text, "simplify-transpose", opset=24)
        reasons = done.reasons("transpose_through_elementwise")
        assert bool(reasons) == (done.count("Transpose") == 2), op
        assert not reasons or reasons[0].startswith(f"{op} may round an element differently")
        assert apply(text, "convert-layout", opset=24).count("Transpose") == 0


def test_a_weight_to_be_trained_is_not_transposed() -> None:
    text = "g (float[2,3] x) => (float[2,3] o) { y = Transpose(x) z = Add(y, c) o = Transpose(z) }"
    constants = {"c": special(3, 1)}
    assert rewritten(text, "simplify-transpose{floats=false}", constants).count("Transpose") == 2
    assert apply(model_of(text, constants), preset="training-safe").count("Transpose") == 2


def test_transposes_by_other_permutations_stay() -> None:
    text = """g (float[2,2,2] x, float[2,2,2] z) => (float[2,2,2] o) {
        s = Transpose<perm=[1,2,0]>(x) t = Transpose<perm=[0,2,1]>(z) y = Add(s, t) o = Transpose<perm=[2,0,1]>(y) }"""
    assert rewritten(text, "simplify-transpose").count("Transpose") == 3


def test_between_input_and_output_an_identity_is_enough() -> None:
    done = rewritten(
        "g (float[2,N] x) => (float[2,N] o) { y = Transpose(x) o = Transpose(y) }",
        "simplify-transpose",
    )
    assert done.ops == ["Identity"]
    assert_same_bits(done, x=special(2, 3))


def test_a_cast_and_no_perm_written() -> None:
    text = (
        "g (float[2,N] x) => (int32[2,N] o) { y = Transpose(x) z = Cast<to=6>(y) o = Transpose(z) }"
    )
    done = rewritten(text, "simplify-transpose")
    assert done.ops == ["Cast"]
    assert_same_bits(done, x=np.arange(6, dtype=np.float32).reshape(2, 3))


@pytest.mark.parametrize(
    "body",
    [
        "y = Transpose<perm=[1,0]>(x) z = Mul(y, x) o = Transpose<perm=[1,0]>(z)",
        "y = Transpose<perm=[1,0]>(x) z = Add(y, w) o = Transpose<perm=[1,0]>(z) p = Mul(w, x) q = Add(o, p)",
        "y = Transpose<perm=[1,0]>(x) z = Add(y, u) o = Transpose<perm=[1,0]>(z)",
        "y = Transpose<perm=[1,0]>(x) z = Max(y, v) o = Transpose<perm=[1,0]>(z)",
        "y = Transpose<perm=[1,0]>(x) z = Softmax(y) o = Transpose<perm=[1,0]>(z)",
        "y = Transpose<perm=[1,0]>(x) z = Relu(y) o = Transpose<perm=[0,1]>(z)",
    ],
)
def test_stays(body: str) -> None:
    constants = {"v": np.ones(3, np.float32), "w": np.ones((3, 3), np.float32)}
    done = rewritten(
        f"g (float[3,3] x, float[3] u) => (float[3,3] o) {{ {body} }}",
        "simplify-transpose",
        constants,
    )
    assert done.count("Transpose") >= 1


def test_other_readers() -> None:
    text = """g (float[2,N] x) => (float[2,N] o, float[N,2] p) {
        y = Transpose(x) z = Relu(y) o = Transpose(z) p = Neg(z)
      }"""
    assert rewritten(text, "simplify-transpose").count("Transpose") == 2
    text = """g (float[2,N] x) => (float[2,N] o, float[N,2] p) {
        y = Transpose(x) z = Relu(y) o = Transpose(z) p = Neg(y)
      }"""
    done = rewritten(text, "simplify-transpose")
    assert done.count("Transpose") == 1
    assert_same_bits(done, x=special(2, 3))
