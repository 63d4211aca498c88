"""Chains of products: the cheaper order by shapes, constants for nothing, unknown rows, batch axes, Gemm."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from tests.helpers import unindented
from tests.rewriting import Done, apply, assert_same_results, model_of, weights

ORDER = "adjust-matmul-order,remove-unused"
LEFT, RIGHT = "p = MatMul(x, a) y = MatMul(p, b)", "p = MatMul(a, b) y = MatMul(x, p)"


def ordered(
    text: str, constants: dict[str, Any] | None = None, passes: str = ORDER, **options: Any
) -> Done:
    done = apply(model_of(text, constants, **options), passes)
    assert_same_results(done)
    return done


def given(x: str, a: str, b: str, y: str, body: str, dtype: str = "float") -> str:
    return f"g ({dtype}[{x}] x, {dtype}[{a}] a, {dtype}[{b}] b) => ({dtype}[{y}] y) {{ {body} }}"


def test_a_product_of_low_rank_is_taken_apart() -> None:
    done = ordered(given("N,64", "64,4", "4,64", "N,64", RIGHT))
    assert done.text == unindented("""
        g(x: f32[N,64], a: f32[64,4], b: f32[4,64]) {
          matmul: f32[N,4] = MatMul(x, a)
          y: f32[N,64] = MatMul(matmul, b)
          return y
        }
    """)
    done.prove()


def test_constants_that_widen_become_one_weight() -> None:
    text = f"g (float[N,3,16] x) => (float[N,3,8] y) {{ {LEFT} }}"
    done = ordered(
        text,
        weights(a=(16, 64), b=(64, 8)),
        "adjust-matmul-order,fold-constant,remove-unused",
    )
    assert done.ops == ["MatMul"] and done.fired("product_of_product_left") == 1
    assert done.trace.rounded
    done.prove()


def test_constants_of_low_rank_stay_two() -> None:
    """And are taken apart where a file multiplies them."""
    sizes = weights(a=(64, 4), b=(4, 64))
    apart = ordered(f"g (float[N,64] x) => (float[N,64] y) {{ {LEFT} }}", sizes)
    assert (
        not apart.trace.rewrites and "not clearly cheaper for any number of rows" in apart.declined
    )
    joined = ordered(f"g (float[N,64] x) => (float[N,64] y) {{ {RIGHT} }}", sizes)
    assert joined.fired("product_of_product_right") == 1


@pytest.mark.parametrize(
    ("x", "a", "b", "y", "body", "fires"),
    [
        # (m k r + m r n) against (k r n + m k n)
        ("2,64", "64,8", "8,64", "2,64", RIGHT, True),
        ("64,8", "8,64", "64,8", "64,8", LEFT, True),
        ("64,8", "8,64", "64,8", "64,8", RIGHT, False),
        ("2,8", "8,64", "64,8", "2,8", LEFT, False),  # a @ b alone takes more
        ("8,8", "8,8", "8,8", "8,8", LEFT, False),  # equal
        ("8,8", "8,8", "8,8", "8,8", RIGHT, False),
        ("N,8", "8,64", "64,8", "N,8", LEFT, False),  # for many rows only
        ("N,8", "8,64", "64,8", "N,8", RIGHT, False),  # for few rows only
        ("N,64", "64,8", "8,64", "N,64", RIGHT, True),
    ],
)
def test_by_shapes(x: str, a: str, b: str, y: str, body: str, fires: bool) -> None:
    done = ordered(given(x, a, b, y, body))
    assert bool(done.trace.rewrites) is fires


def test_rows_that_the_user_knows() -> None:
    text = given("N,8", "8,64", "64,8", "N,8", LEFT)
    assert ordered(text, passes="adjust-matmul-order{rows=1000}").trace.rewrites
    assert not ordered(text, passes="adjust-matmul-order{rows=1}").trace.rewrites


@pytest.mark.parametrize(
    ("x", "a", "b", "y", "fires"),
    [
        ("B,2,64,8", "B,2,8,64", "B,2,64,8", "B,2,64,8", True),  # equal batch axes, unknown
        ("5,64,8", "8,64", "64,8", "5,64,8", True),  # one right operand: rows are rows
        ("64,8", "5,8,64", "5,64,8", "5,64,8", True),
        ("64,8", "5,8,64", "64,8", "5,64,8", True),
        ("3,1,64,8", "5,8,64", "64,8", "3,5,64,8", True),
        ("3,1,1,8", "5,8,64", "64,8", "3,5,1,8", False),
    ],
)
def test_batch_axes(x: str, a: str, b: str, y: str, fires: bool) -> None:
    done = ordered(given(x, a, b, y, LEFT))
    assert bool(done.trace.rewrites) is fires


@pytest.mark.parametrize(
    ("x", "a", "b", "y", "reason"),
    [
        ("B,64,8", "C,8,64", "64,8", "D,64,8", "batch axes differ"),
        ("N,64", "64,R", "R,64", "N,64", "inner size"),
        ("N,64", "64,8", "8", "N", "rank 1"),
        ("", "64,8", "8,64", "", "rank is unknown"),
    ],
)
@pytest.mark.parametrize("body", [LEFT, RIGHT])
def test_what_shapes_do_not_tell(x: str, a: str, b: str, y: str, reason: str, body: str) -> None:
    done = apply(model_of(given(x, a, b, y, body)), ORDER)
    assert not done.trace.rewrites and reason in done.declined


def test_half_precision_is_left_alone() -> None:
    done = apply(model_of(given("2,64", "64,8", "8,64", "2,64", RIGHT, "float16")), ORDER)
    assert not done.trace.rewrites and "half precision" in done.declined


@pytest.mark.parametrize("opset", [13, 17, 23])
@pytest.mark.parametrize("dtype", ["float", "double"])
def test_dtypes_and_opsets(dtype: str, opset: int) -> None:
    text = given("2,64", "64,8", "8,64", "2,64", RIGHT, dtype)
    assert ordered(text, opset=opset).fired("product_of_product_right") == 1


def test_what_others_read_stays() -> None:
    outputs = "=> (float[64,8] y, float[64,64] p)"
    text = given("64,8", "8,64", "64,8", "64,8", LEFT).replace("=> (float[64,8] y)", outputs)
    assert not ordered(text).trace.rewrites
    twice = "g (float[64,8] x, float[8,64] a, float[64,8] b) => (float[64,8] y, float[64,64] z) { p = MatMul(x, a) y = MatMul(p, b) z = Relu(p) }"
    assert not ordered(twice).trace.rewrites


def test_one_value_three_times() -> None:
    assert not ordered(
        "g (float[8,8] x) => (float[8,8] y) { p = MatMul(x, x) y = MatMul(p, x) }"
    ).trace.rewrites


def test_a_longer_chain_goes_step_by_step() -> None:
    text = """g (float[N,64] x) => (float[N,64] y) {
      p = MatMul(a, b) q = MatMul(p, c) r = MatMul(q, d) y = MatMul(x, r) }"""
    sizes = weights(a=(64, 2), b=(2, 64), c=(64, 2), d=(2, 64))
    done = ordered(text, sizes, "adjust-matmul-order,fold-constant,remove-unused")
    assert done.ops == ["MatMul", "MatMul"] and done.block.bindings
    assert [v.shape for v in done.block.initializers.values()] == [(2, 64), (64, 2)]


def test_a_chain_of_constants_is_no_matter_of_order() -> None:
    text = (
        "g (float[64,64] x) => (float[64,64] y) { p = MatMul(a, b) q = MatMul(p, c) y = Add(q, x) }"
    )
    done = ordered(text, weights(a=(64, 2), b=(2, 64), c=(64, 64)))
    assert not done.trace.rewrites and "all operands are constant" in done.declined


def test_inside_if_and_loop() -> None:
    text = """g (bool k, float[64,8] x, float[8,64] a, float[64,8] b) => (float[64,8] o)
      <int64 n = {2}, bool yes = {1}> {
      o = If (k) <
        then_branch = t () => (float[64,8] r) { p = MatMul(x, a) r = MatMul(p, b) },
        else_branch = e () => (float[64,8] s) {
          s = Loop (n, yes, x) <body = l (int64 i, bool c, float[64,8] h) => (bool d, float[64,8] v) {
            d = Identity(c) q = MatMul(h, a) v = MatMul(q, b) }> }> }"""
    assert ordered(text).fired("product_of_product_left") == 2


def test_an_inner_product_of_an_outer_block_stays() -> None:
    """It may be computed once, where the branch or the loop would compute it again."""
    text = """g (bool k, float[64,8] x, float[8,64] a, float[64,8] b) => (float[64,8] o) {
      p = MatMul(x, a)
      o = If (k) <
        then_branch = t () => (float[64,8] r) { r = MatMul(p, b) },
        else_branch = e () => (float[64,8] s) { s = Identity(x) }> }"""
    assert not ordered(text).trace.rewrites


@pytest.mark.parametrize("turns", list(product((0, 1), repeat=3)))
@pytest.mark.parametrize("bias", ["", ", c"])
def test_gemm(turns: tuple[int, int, int], bias: str) -> None:
    def sizes(shape: str, turn: int) -> str:
        return ",".join(shape.split(",")[::-1]) if turn else shape

    tx, ta, tb = turns
    head = "float[{}] x, float[{}] a, float[{}] b, float[8] c"
    wide = head.format(sizes("64,8", tx), sizes("8,64", ta), sizes("64,8", tb))
    left = f"""g ({wide}) => (float[64,8] y) {{
      p = Gemm<transA={tx}, transB={ta}, alpha=0.5>(x, a)
      y = Gemm<transB={tb}, alpha=3.0, beta=2.0>(p, b{bias}) }}"""
    assert ordered(left).fired("gemm_of_gemm_left") == 1
    low = head.format(sizes("N,64", tx), sizes("64,8", ta), sizes("8,8", tb))
    right = f"""g ({low}) => (float[N,8] y) {{
      p = Gemm<transA={ta}, transB={tb}, alpha=0.5>(a, b)
      y = Gemm<transA={tx}, alpha=3.0, beta=2.0>(x, p{bias}) }}"""
    assert ordered(right).fired("gemm_of_gemm_right") == 0  # 64*8 + 8*8 against 64*8
    low = head.format(sizes("N,64", tx), sizes("64,2", ta), sizes("2,8", tb))
    right = right.replace(right[right.index("(") + 1 : right.index(")")], low)
    assert ordered(right).fired("gemm_of_gemm_right") == 1


@pytest.mark.parametrize(
    "body",
    [
        "p = Gemm(x, a, c) y = Gemm(p, b)",  # c @ b would be a third product
        "p = Gemm(x, a) y = Gemm<transA=1>(p, b)",
    ],
)
def test_gemm_stays(body: str) -> None:
    text = f"g (float[64,8] x, float[8,64] a, float[64,8] b, float[64] c) => (float[64,8] y) {{ {body} }}"
    done = ordered(text)
    assert not done.trace.rewrites


def test_empty_products() -> None:
    done = ordered(given("0,64", "64,4", "4,64", "0,64", RIGHT))
    assert done.after.graph.node
    np.testing.assert_equal(done.count("MatMul"), 2)
