"""Low-rank adapters beside their weight and in it: by shapes, constants, scales and biases."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers import unindented
from tests.rewriting import Done, apply, assert_same_results, model_of, weights

EXPAND = "expand-matmul-of-sum,remove-unused"
LORA = weights(w=(64, 64), p=(64, 4), q=(4, 64))
SUM = "d = MatMul(p, q) v = Add(w, d) y = MatMul(x, v)"
APART = "a = MatMul(x, w) l = MatMul(x, p) h = MatMul(l, q) y = Add(a, h)"


def done_of(
    text: str, constants: dict[str, Any] | None = None, passes: str = EXPAND, **options: Any
) -> Done:
    done = apply(model_of(text, constants, **options), passes)
    assert_same_results(done)
    return done


def adapters(body: str, rows: str = "2", dtype: str = "float", more: str = "") -> str:
    """p and q as inputs, w constant unless it is among them."""
    return f"g ({dtype}[{rows},64] x, {dtype}[64,4] p, {dtype}[4,64] q{more}) => ({dtype}[{rows},64] y) {{ {body} }}"


def w_only() -> dict[str, Any]:
    return {"w": LORA["w"]}


def test_an_adapter_is_taken_beside_its_weight_for_few_rows() -> None:
    done = done_of(adapters(SUM), w_only())
    assert done.text == unindented("""
        g(x: f32[2,64], p: f32[64,4], q: f32[4,64], w: f32[64,64] const) {
          matmul: f32[2,64] = MatMul(x, w)
          matmul_2: f32[2,4] = MatMul(x, p)
          matmul_3: f32[2,64] = MatMul(matmul_2, q)
          y: f32[2,64] = Add(matmul, matmul_3)
          return y
        }
    """)
    done.prove()


def test_constants_are_merged_for_any_number_of_rows() -> None:
    text = f"g (float[N,3,64] x) => (float[N,3,64] y) {{ {APART} }}"
    done = done_of(text, LORA, "expand-matmul-of-sum,fold-constant,remove-unused")
    assert done.ops == ["MatMul"] and done.trace.rounded
    assert len(done.after.graph.initializer) == 1
    done.prove()


def test_constants_that_a_file_adds_up_stay_added() -> None:
    done = done_of(f"g (float[2,64] x) => (float[2,64] y) {{ {SUM} }}", LORA)
    assert not done.trace.rewrites and "not clearly dearer" in done.declined


@pytest.mark.parametrize("order", ["a, h", "h, a"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("scale", ["", "s, ", ", s"])
def test_every_form_of_an_adapter(order: str, bias: bool, scale: str) -> None:
    scaled = f"h = Mul({'s, o' if scale[0] == 's' else 'o, s'})" if scale else "h = Identity(o)"
    body = f"""m = MatMul(x, w) a = {"Add(m, c)" if bias else "Identity(m)"}
      l = MatMul(x, p) o = MatMul(l, q) {scaled} y = Add({order})"""
    sizes = {**LORA, **weights(c=(64,), s=())}
    done = done_of(
        f"g (float[N,64] x) => (float[N,64] y) {{ {body} }}",
        sizes,
        "remove-noops,expand-matmul-of-sum,fold-constant,remove-unused",
    )
    assert done.ops == ["MatMul", "Add"][: 1 + bias]


@pytest.mark.parametrize("scale", ["d", "Mul(d, s)", "Mul(s, d)"])
@pytest.mark.parametrize("order", ["w, t", "t, w"])
def test_every_form_of_a_sum(scale: str, order: str) -> None:
    made = f"t = {scale}" if "(" in scale else "t = Identity(d)"
    body = f"d = MatMul(p, q) {made} v = Add({order}) y = MatMul(x, v)"
    done = done_of(
        adapters(body), {**w_only(), **weights(s=(1,))}, "remove-noops,expand-matmul-of-sum"
    )
    assert done.fired("product_of_sum") + done.fired("product_of_scaled_sum") == 1


@pytest.mark.parametrize(
    ("body", "rows", "fires"),
    [
        (SUM, "2", True),
        (SUM, "4096", False),
        (SUM, "N", False),  # for few rows only
        (APART, "4096", True),
        (APART, "2", False),
        (APART, "N", False),  # for many rows only
    ],
)
def test_by_rows(body: str, rows: str, fires: bool) -> None:
    assert bool(done_of(adapters(body, rows), w_only()).trace.rewrites) is fires


def test_rows_that_the_user_knows() -> None:
    text = adapters(SUM, "N")
    assert done_of(text, w_only(), "expand-matmul-of-sum{rows=4}").trace.rewrites
    assert not done_of(text, w_only(), "expand-matmul-of-sum{rows=4000}").trace.rewrites


@pytest.mark.parametrize("opset", [13, 18, 23])
@pytest.mark.parametrize("dtype", ["float", "double"])
def test_dtypes_and_opsets(dtype: str, opset: int) -> None:
    text = adapters(SUM, dtype=dtype, more=f", {dtype}[64,64] w")
    assert done_of(text, opset=opset).fired("product_of_sum") == 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (adapters(SUM, dtype="float16", more=", float16[64,64] w"), "half precision"),
        (adapters(SUM, more=", float[1,64] w"), "not of one shape"),
        (adapters(SUM, more=", float[64] w"), "not of one shape"),
        (adapters(SUM, more=", float[K,64] w"), "size of the matrices is unknown"),
        (adapters(SUM, more=", float[64,64] w").replace("2,64", "5,2,64").replace("64,4", "5,64,4"), "not of one shape"),
    ],
)  # fmt: skip
def test_what_stays(text: str, reason: str) -> None:
    done = apply(model_of(text), EXPAND)
    assert not done.trace.rewrites and reason in done.declined


def test_what_others_read_stays() -> None:
    for extra in ("d", "v"):
        text = adapters(SUM, more=", float[64,64] w")
        text = text.replace("=> (float[2,64] y)", f"=> (float[2,64] y, float[64,64] {extra})")
        assert not done_of(text).trace.rewrites
    for extra in ("a", "l", "h"):
        width = 4 if extra == "l" else 64
        text = f"g (float[N,64] x) => (float[N,64] y, float[N,{width}] {extra}) {{ {APART} }}"
        assert not done_of(text, LORA).trace.rewrites


def test_products_of_different_left_operands_stay() -> None:
    text = "g (float[N,64] x, float[N,64] z) => (float[N,64] y) { a = MatMul(z, w) l = MatMul(x, p) h = MatMul(l, q) y = Add(a, h) }"
    assert not done_of(text, LORA).trace.rewrites


def test_both_passes_come_to_rest() -> None:
    """What one takes apart the other does not put together again."""
    text = adapters(SUM, "32")
    done = apply(model_of(text, w_only()), "expand-matmul-of-sum,adjust-matmul-order", rounds=4)
    assert len(done.trace.rewrites) == 1
    assert_same_results(done)


def test_inside_a_loop() -> None:
    text = """g (float[2,64] x, float[64,4] p, float[4,64] q) => (float[2,64] o)
      <int64 n = {2}, bool yes = {1}> {
      o = Loop (n, yes, x) <body = l (int64 i, bool c, float[2,64] h) => (bool e, float[2,64] y) {
        e = Identity(c) d = MatMul(p, q) v = Add(w, d) y = MatMul(h, v) }> }"""
    assert done_of(text, w_only()).fired("product_of_sum") == 1
