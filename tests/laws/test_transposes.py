"""A Transpose that another undoes behind an operator that works on each element by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.rewriting import assert_same_bits, rewritten, special

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


def test_a_cast_and_no_perm_written() -> None:
    text = "g (float[2,N] x) => (int32[2,N] o) { y = Transpose(x) z = Cast<to=6>(y) o = Transpose(z) }"
    done = rewritten(text, "simplify-transpose")
    assert done.ops == ["Cast"]
    assert_same_bits(done, x=np.arange(6, dtype=np.float32).reshape(2, 3))


@pytest.mark.parametrize(
    "body",
    [
        "y = Transpose<perm=[1,0]>(x) z = Mul(y, v) o = Transpose<perm=[1,0]>(z)",  # v has an axis
        "y = Transpose<perm=[1,0]>(x) z = Sub(c, y) o = Transpose<perm=[1,0]>(z)",
        "y = Transpose<perm=[1,0]>(x) z = Softmax(y) o = Transpose<perm=[1,0]>(z)",
        "y = Transpose<perm=[1,0]>(x) z = Relu(y) o = Transpose<perm=[0,1]>(z)",
    ],
)
def test_stays(body: str) -> None:
    constants = {"v": np.ones(3, np.float32), "c": np.float32(2)}
    done = rewritten(f"g (float[3,3] x) => (float[3,3] o) {{ {body} }}", "simplify-transpose", constants)
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
