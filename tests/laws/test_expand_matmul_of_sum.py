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
    assert done.fired("product_of_sum") == 1


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


# the matrix as PyTorch writes it: W is (out, in), and so is B @ A
TORCH = {
    "x@(W+B@A)": "v = Add(w, d) y = MatMul(x, v)",
    "x@T(W+B@A)": "v = Add(w, d) t = Transpose<perm = [1, 0]>(v) y = MatMul(x, t)",
    "Gemm(x,W+BA,c)": "v = Add(w, d) y = Gemm(x, v, c)",
    "Gemm(x,W+BA,c,transB)": "v = Add(d, w) y = Gemm<transB = 1>(x, v, c)",
    "Gemm(x,T(W+BA),transB)": "v = Add(d, w) t = Transpose<perm = [1, 0]>(v) y = Gemm<transB = 1, alpha = 0.5>(x, t)",
    "x@T(W+k*B@A)": "k = Mul(d, s) v = Add(w, k) t = Transpose<perm = [1, 0]>(v) y = MatMul(x, t)",
    "Gemm(x,W+k*BA,c,transB)": "k = Mul(s, d) v = Add(w, k) y = Gemm<transB = 1, alpha = 0.5, beta = 2.0>(x, v, c)",
    "x@(W+k*B@A)": "k = Mul(d, s) v = Add(w, k) y = MatMul(x, v)",
    "x@T(B@A)": "t = Transpose<perm = [1, 0]>(d) y = MatMul(x, t)",
    "Gemm(x,BA,c)": "y = Gemm<beta = 2.0>(x, d, c)",
    "Gemm(x,BA,c,transB)": "y = Gemm<transB = 1, alpha = 0.5>(x, d, c)",
}


@pytest.mark.covering(2)
@pytest.mark.parametrize("form", list(TORCH))
@pytest.mark.parametrize("opset", [11, 13, 20, 23])
@pytest.mark.parametrize("dtype", ["float", "double"])
@pytest.mark.parametrize("square", [True, False])
def test_every_form_that_exporters_write(form: str, opset: int, dtype: str, square: bool) -> None:
    turned = ("T(" in form) != ("transB" in form)
    k, n = (64, 64) if square else (64, 48)  # of x and of y
    rows, columns = (n, k) if turned else (k, n)
    text = f"""g ({dtype}[2,{k}] x, {dtype}[{rows},4] p, {dtype}[4,{columns}] q, {dtype}[{rows},{columns}] w,
        {dtype}[{n}] c) => ({dtype}[2,{n}] y) <{dtype} s = {{2}}> {{ d = MatMul(p, q) {TORCH[form]} }}"""
    done = done_of(
        text, None, "expand-matmul-of-sum,adjust-matmul-order,remove-unused", opset=opset
    )
    rules = [r.rule for r in done.trace.rewrites if r.pass_name != "remove-unused"]
    assert len(rules) == 1, done.declined
    products = [b for b in done.block.bindings if b.op in ("MatMul", "Gemm")]
    assert len(products) == (3 if "W" in form else 2)
    assert not any({v.name for v in b.inputs[:2] if v is not None} == {"p", "q"} for b in products)


def test_a_gemm_as_pytorch_exports_it() -> None:
    text = """g (float[2,64] x, float[64,4] p, float[4,64] q) => (float[2,64] y) <float s = {2}> {
        d = MatMul(p, q) k = Mul(d, s) v = Add(w, k) y = Gemm<transB = 1>(x, v, c) }"""
    done = done_of(text, {**w_only(), **weights(c=(64,))})
    assert done.text == unindented("""
        g(x: f32[2,64], p: f32[64,4], q: f32[4,64], s: f32[] const = 2, w: f32[64,64] const, c: f32[64] const) {
          gemm: f32[2,64] = Gemm(x, w, c, alpha=1, beta=1, transB=1)
          gemm_2: f32[2,4] = Gemm(x, q, transB=1)
          gemm_3: f32[2,64] = Gemm(gemm_2, p, alpha=1, transB=1)
          mul: f32[2,64] = Mul(gemm_3, s)
          y: f32[2,64] = Add(gemm, mul)
          return y
        }
    """)
    done.prove()


@pytest.mark.parametrize("turn", ["", "t = Transpose<perm = [0, 2, 1]>(v)"])
@pytest.mark.parametrize("w", ["64,64", "5,64,64"])
def test_an_adapter_for_each_batch(turn: str, w: str) -> None:
    """Gathered from tables by an index."""
    text = f"""g (float[5,2,64] x, float[9,64,4] b, float[9,4,64] a, int64[5] i, float[{w}] w) => (float[5,2,64] y) {{
        p = Gather(b, i) q = Gather(a, i) d = MatMul(p, q) v = Add(w, d) {turn} y = MatMul(x, {"t" if turn else "v"}) }}"""
    done = done_of(text)
    assert done.fired("product_of_sum") == 1 and done.counts["MatMul"] == 3
    other = text.replace("float[5,2,64] x", "float[2,64] x")  # x has no batch
    assert not done_of(other).trace.rewrites


@pytest.mark.parametrize(
    ("body", "more", "reason"),
    [
        ("d = MatMul(p, q) v = Add(w, d) y = Gemm<transA = 1>(x, v, c)", "", "left operand is transposed"),
        ("d = MatMul(p, q) v = Add(w, d) y = Gemm(x, v, c)", ", float[64,64] d", "d is read elsewhere"),
        ("d = MatMul(p, q) v = Add(w, d) t = Transpose<perm = [1, 0]>(v) y = MatMul(x, t)", ", float[64,64] v", "v is read elsewhere"),
        ("d = MatMul(p, q) v = Add(w, d) t = Transpose<perm = [0, 1]>(v) y = MatMul(x, t)", "", "not the transpose of a matrix"),
        ("d = MatMul(p, q) v = Add(w, d) t = Transpose<perm = [0, 1]>(v) y = Gemm(x, t, c)", "", "not the transpose of a matrix"),
        ("d = MatMul(p, q) v = Add(w, d) t = Transpose<perm = [0, 1]>(v) y = Gemm<transB = 1>(x, t, c)", "", "not the transpose of a matrix"),
    ],
)  # fmt: skip
def test_every_near_miss_is_explained(body: str, more: str, reason: str) -> None:
    text = f"""g (float[64,64] x, float[64,4] p, float[4,64] q, float[64,64] w, float[64] c)
        => (float[64,64] y{more}) {{ {body} }}"""
    done = apply(model_of(text), "expand-matmul-of-sum{rows=1}")
    assert not done.trace.rewrites and reason in done.declined


@pytest.mark.parametrize("turned", [0, 1])
@pytest.mark.parametrize(
    ("perm", "fires"), [("", 1), ("<perm = [1, 0]>", 1), ("<perm = [0, 1]>", 0)]
)
def test_a_transpose_that_transposes_nothing(perm: str, fires: int, turned: int) -> None:
    """Of a square matrix no shape tells it from one that does."""
    text = f"""g (float[1,2] x, float[2,2] q) => (float[1,2] y) {{
        d = MatMul(p, q) v = Add(w, d) t = Transpose{perm}(v) y = Gemm<transB = {turned}>(x, t) }}"""
    done = done_of(text, weights(w=(2, 2), p=(2, 2)))
    assert done.fired("gemm_of_sum") == fires, done.declined


@pytest.mark.parametrize("turned", [0, 1])
@pytest.mark.parametrize("scale", ["o", "Mul(o, s)"])
def test_a_gemm_beside_its_adapter_becomes_one(turned: int, scale: str) -> None:
    """nn.Linear with a bias, and an adapter of constants."""
    text = f"""g (float[N,64] x) => (float[N,48] y) {{
        b = Gemm<transB = {turned}, beta = 2.0>(x, w, c) l = MatMul(x, p) o = MatMul(l, q)
        {f"h = {scale}" if "(" in scale else "h = Identity(o)"} y = Add(b, h) }}"""
    w = (48, 64) if turned else (64, 48)
    constants = weights(w=w, c=(48,), p=(64, 4), q=(4, 48), s=())
    passes = "remove-noops,expand-matmul-of-sum,fold-constant,remove-unused"
    done = done_of(text, constants, passes)
    assert done.ops == ["Gemm"] and done.fired("sum_of_gemm_and_products") == 1
    done.prove()
    other = done_of(text.replace("beta", "alpha = 0.5, beta"), constants, passes)
    assert not other.fired("sum_of_gemm_and_products") and "is scaled" in other.declined
