"""Transpose laws: of itself, of MatMul, of Gemm, and what must stay."""

from __future__ import annotations

from typing import Any

import pytest

from onnxgrad.passes.rule_passes import simplify_transpose
from tests.helpers import parse, unindented
from tests.rewriting import Done, apply, assert_same_results, model_of, weights

ALWAYS = simplify_transpose(always=True)


def simplified(
    text: str, constants: dict[str, Any] | None = None, *, always: bool = True, **options: Any
) -> Done:
    done = apply(
        model_of(text, constants, **options), simplify_transpose(always=always), "remove-unused"
    )
    assert_same_results(done)
    return done


def lines(done: Done) -> list[str]:
    return [str(b).split(" = ")[1] for b in done.block.bindings]


# the gradients of MatMul's four layouts, written out as what a gradient leaves behind: T(T(b)) and all
TABLE = {
    "a_tb": ("float[2,3] a, float[4,3] b, float[2,4] g", "float[2,3] da, float[4,3] db",
             "tb = T(b) ttb = T(tb) da = MatMul(g, ttb) ta = T(a) p = MatMul(ta, g) db = T(p)"),
    "ta_b": ("float[3,2] a, float[3,4] b, float[2,4] g", "float[3,2] da, float[3,4] db",
             "tb = T(b) p = MatMul(g, tb) da = T(p) ta = T(a) tta = T(ta) db = MatMul(tta, g)"),
    "ta_tb": ("float[3,2] a, float[4,3] b, float[2,4] g", "float[3,2] da, float[4,3] db",
              "tb = T(b) ttb = T(tb) p = MatMul(g, ttb) da = T(p) ta = T(a) tta = T(ta) q = MatMul(tta, g) db = T(q)"),
}  # fmt: skip
SIMPLIFIED = {
    "a_tb": """
        g(a: f32[2,3], b: f32[4,3], g: f32[2,4]) {
          da: f32[2,3] = MatMul(g, b)
          transpose: f32[4,2] = Transpose(g, perm=[1, 0])
          db: f32[4,3] = MatMul(transpose, a)
          return da, db
        }
    """,
    "ta_b": """
        g(a: f32[3,2], b: f32[3,4], g: f32[2,4]) {
          db: f32[3,4] = MatMul(a, g)
          transpose: f32[4,2] = Transpose(g, perm=[1, 0])
          da: f32[3,2] = MatMul(b, transpose)
          return da, db
        }
    """,
    "ta_tb": """
        g(a: f32[3,2], b: f32[4,3], g: f32[2,4]) {
          transpose: f32[3,4] = Transpose(b, perm=[1, 0])
          transpose_2: f32[4,2] = Transpose(g, perm=[1, 0])
          da: f32[3,2] = MatMul(transpose, transpose_2)
          transpose_3: f32[4,2] = Transpose(g, perm=[1, 0])
          transpose_4: f32[2,3] = Transpose(a, perm=[1, 0])
          db: f32[4,3] = MatMul(transpose_3, transpose_4)
          return da, db
        }
    """,
}


def table(name: str, batch: str = "") -> str:
    inputs, outputs, body = TABLE[name]
    rank = 2 + batch.count(",")
    perm = [*range(rank - 2), rank - 1, rank - 2]
    shaped = f"({inputs}) => ({outputs})".replace("float[", f"float[{batch}")
    return f"g {shaped} {{ {body} }}".replace("T(", f"Transpose<perm={perm}>(")


@pytest.mark.parametrize("name", TABLE)
def test_gradients_of_the_three_layouts(name: str) -> None:
    done = apply(parse(table(name)), ALWAYS, "remove-unused")
    assert done.text == unindented(SIMPLIFIED[name])
    assert_same_results(done)


@pytest.mark.parametrize("batch", ["5,", "B,", "B,6,"])
@pytest.mark.parametrize("name", TABLE)
def test_the_table_with_batch_axes(name: str, batch: str) -> None:
    plain, batched = simplified(table(name)), simplified(table(name, batch))
    assert [b.op for b in plain.block.bindings] == [b.op for b in batched.block.bindings]


def test_without_a_perm_a_matrix_is_reversed_and_a_cube_is_not_matrix_transposed() -> None:
    two = "g (float[2,3] a, float[3,4] b) => (float[4,2] o) { p = MatMul(a, b) o = Transpose(p) }"
    assert (
        simplified(two).count("MatMul") == 1
        and simplified(two).block.outputs[0].definition.op == "MatMul"
    )
    three = "g (float[5,2,3] a, float[5,3,4] b) => (float[4,2,5] o) { p = MatMul(a, b) o = Transpose(p) }"
    assert not simplified(three).trace.rewrites


def test_broadcast_batch_axes() -> None:
    text = "g (float[6,1,2,3] a, float[5,3,4] b) => (float[6,5,4,2] o) { p = MatMul(a, b) o = Transpose<perm=[0,1,3,2]>(p) }"
    done = simplified(text)
    assert done.fired("transpose_of_matmul") == 1
    mixed = "g (float[2,3] a, float[5,3,4] b) => (float[5,4,2] o) { p = MatMul(a, b) o = Transpose<perm=[0,2,1]>(p) }"
    assert simplified(mixed).fired("transpose_of_matmul") == 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "g (float[] a, float[3,4] b) => (float[4,2] o) { p = MatMul(a, b) o = Transpose<perm=[1,0]>(p) }",
            "rank is unknown",
        ),
        (
            "g (float[3] a, float[5,3,4] b) => (float[4,5] o) { p = MatMul(a, b) o = Transpose<perm=[1,0]>(p) }",
            "rank-1",
        ),
        (
            "g (float[5,2,3] a, float[3] b) => (float[2,5] o) { p = MatMul(a, b) o = Transpose<perm=[1,0]>(p) }",
            "rank-1",
        ),
    ],
)
def test_unknown_ranks_and_vectors_are_left_alone(text: str, reason: str) -> None:
    done = apply(parse(text), ALWAYS)
    assert not done.trace.rewrites and reason in done.reasons("transpose_of_matmul")[0]
    assert done.after == done.before, "not a byte changed"


def test_a_permutation_of_batch_axes_is_left_alone() -> None:
    text = "g (float[5,2,3] a, float[5,3,4] b) => (float[2,5,4] o) { p = MatMul(a, b) o = Transpose<perm=[1,0,2]>(p) }"
    assert not simplified(text).trace.rewrites


def test_a_product_with_another_reader_is_never_computed_twice() -> None:
    for extra in ("n = Neg(p)", "n = Identity(p)"):
        text = f"g (float[2,3] a, float[3,4] b) => (float[4,2] o, float[2,4] n) {{ p = MatMul(a, b) o = Transpose(p) {extra} }}"
        assert simplified(text).count("MatMul") == 1
    output = "g (float[2,3] a, float[3,4] b) => (float[4,2] o, float[2,4] p) { p = MatMul(a, b) o = Transpose(p) }"
    done = simplified(output)
    assert not done.trace.rewrites
    loop = """g (int64 n, bool k, float[2,3] a, float[3,4] b) => (float[4,2] o) {
      p = MatMul(a, b) s = Transpose(p)
      o = Loop (n, k, s) <body = l (int64 i, bool c, float[4,2] v) => (bool d, float[4,2] r) {
        d = Identity(c) t = Transpose(p) r = Add(v, t) }> }"""
    assert apply(parse(loop), ALWAYS).count("MatMul") == 1


def test_a_product_outside_of_a_loop_does_not_move_into_it() -> None:
    text = """g (int64 n, bool k, float[2,3] a, float[3,4] b, float[4,2] s) => (float[4,2] o) {
      p = MatMul(a, b)
      o = Loop (n, k, s) <body = l (int64 i, bool c, float[4,2] v) => (bool d, float[4,2] r) {
        d = Identity(c) t = Transpose(p) r = Add(v, t) }> }"""
    done = apply(parse(text), ALWAYS)
    assert [b.op for b in done.block.bindings] == ["MatMul", "Loop"]


def test_by_default_only_what_costs_nothing() -> None:
    text = "g (float[2,3] a, float[3,4] b) => (float[4,2] o) { p = MatMul(a, b) o = Transpose(p) }"
    assert not simplified(text, always=False).trace.rewrites
    cancels = "g (float[3,2] a, float[3,4] b) => (float[4,2] o) { ta = Transpose(a) p = MatMul(ta, b) o = Transpose(p) }"
    assert lines(simplified(cancels, always=False)) == [
        "Transpose(b, perm=[1, 0])",
        "MatMul(transpose, a)",
    ]
    constant = "g (float[2,3] a) => (float[4,2] o) { p = MatMul(a, w) o = Transpose(p) }"
    assert (
        simplified(constant, weights(w=(3, 4)), always=False).fired("transpose_of_matmul_if_free")
        == 1
    )


def test_transpose_of_transpose() -> None:
    done = simplified(
        "g (float[2,3,4] a) => (float[4,2,3] o) { t = Transpose<perm=[1,2,0]>(a) o = Transpose<perm=[1,2,0]>(t) }"
    )
    assert lines(done) == ["Transpose(a, perm=[2, 0, 1])"]
    three = simplified(
        "g (float[2,3] a) => (float[2,3] r) { t = Transpose(a) o = Transpose(t) r = Relu(o) }"
    )
    assert lines(three) == ["Relu(a)"]
    shared = simplified(
        "g (float[2,3,4] a) => (float[4,2,3] o, float[3,4,2] t) { t = Transpose<perm=[1,2,0]>(a) o = Transpose<perm=[1,2,0]>(t) }"
    )
    assert shared.count("Transpose") == 2, "the inner one stays anyway"
    input_to_output = simplified(
        "g (float[2,3] a) => (float[2,3] o) { t = Transpose(a) o = Transpose(t) }"
    )
    assert [v.name for v in input_to_output.block.outputs] == ["o"]
    unknown = "g (float[] a) => (float[] o) { t = Transpose(a) o = Transpose(t) }"
    assert apply(parse(unknown), ALWAYS).count("Transpose") == 2


# ---- Gemm ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize(
    "bias",
    [None, "float c", "float[1] c", "float[4] c", "float[1,4] c", "float[2,1] c", "float[2,4] c"],
)
def test_transposes_fold_into_gemm_and_gemm_turns(
    trans_a: int, trans_b: int, bias: str | None
) -> None:
    """Gemm(T(a), T(b), c) and T of it, for every transposition and every shape of bias."""
    a, b = ("2,3" if trans_a else "3,2"), ("3,4" if trans_b else "4,3")
    inputs = f"float[{a}] a, float[{b}] b" + (f", {bias}" if bias else "")
    operands = "ta, tb, c" if bias else "ta, tb"
    text = f"""g ({inputs}) => (float[4,2] o) {{
      ta = Transpose<perm=[1,0]>(a) tb = Transpose(b)
      p = Gemm<transA={trans_a}, transB={trans_b}, alpha=0.5, beta=2.0>({operands}) o = Transpose(p) }}"""
    done = simplified(text)
    left = 1 if bias in ("float[1,4] c", "float[2,1] c", "float[2,4] c") else 0
    assert (done.count("Gemm"), done.count("Transpose")) == (1, left)
    (gemm,) = [x for x in done.block.bindings if x.op == "Gemm"]
    # T(op(T(a)) @ op(T(b))) = op'(b) @ op'(a): flipped once by the operand's transpose and once by the result's
    assert (gemm.inputs[0].name, gemm.inputs[1].name) == ("b", "a")
    assert (gemm.attr("transA"), gemm.attr("transB")) == (trans_b, trans_a)


def test_a_symbolic_bias_under_a_transposed_gemm_becomes_a_column() -> None:
    text = "g (float[M,3] a, float[3,N] b, float[N] c) => (float[N,M] o) { p = Gemm(a, b, c) o = Transpose(p) }"
    done = simplified(text)
    assert lines(done)[0].startswith("Unsqueeze(c") and done.count("Transpose") == 0


def test_a_bias_of_unknown_shape_keeps_the_transpose() -> None:
    text = "g (float[2,3] a, float[3,4] b, float[] c) => (float[4,2] o) { p = Gemm(a, b, c) o = Transpose(p) }"
    assert simplified_with(text, c=(4,)).count("Transpose") == 1


def simplified_with(text: str, **shapes: tuple[int, ...]) -> Done:
    done = apply(parse(text), ALWAYS)
    assert_same_results(done, feeds={**weights(a=(2, 3), b=(3, 4)), **weights(**shapes)})
    return done


def test_a_tower_of_transposes_on_a_gemm() -> None:
    text = "g (float[2,3] a, float[3,4] b) => (float[2,4] o) { t = Transpose(a) u = Transpose(t) v = Transpose(u) o = Gemm<transA=1>(v, b) }"
    assert lines(simplified(text)) == ["Gemm(a, b, alpha=1, beta=1, transA=0, transB=0)"]


def test_a_transpose_that_others_read_still_folds_into_gemm() -> None:
    text = "g (float[3,2] a, float[3,4] b) => (float[2,4] o, float[2,3] t) { t = Transpose(a) o = Gemm(t, b) }"
    done = simplified(text)
    assert done.count("Transpose") == 1 and done.fired("gemm_of_transpose_left") == 1


def test_a_gemm_that_others_read_and_old_gemms_stay() -> None:
    text = "g (float[2,3] a, float[3,4] b) => (float[4,2] o, float[2,4] p) { p = Gemm(a, b) o = Transpose(p) }"
    assert not simplified(text).trace.rewrites
    old = "g (float[3,2] a) => (float[2,4] o) { t = Transpose<perm=[1,0]>(a) o = Gemm<broadcast=1>(t, w, c) }"
    done = apply(model_of(old, weights(w=(3, 4), c=(4,)), opset=6, ir_version=7), ALWAYS)
    assert done.count("Transpose") == 1


def test_a_function_whose_attributes_its_caller_gives_is_left_alone() -> None:
    text = """<ir_version: 10, opset_import: ["" : 20, "my" : 1]>
    g (float[3,2] a, float[3,4] b) => (float[2,4] o) { o = my.f<k=0>(a, b) }
    <domain: "my", opset_import: ["" : 20]> f <k> (u, v) => (r) {
      t = Transpose<perm=[1,0]>(u) r = Gemm<transA: int = @k>(t, v) }"""
    done = apply(parse(text), ALWAYS)
    assert not done.trace.rewrites
    assert_same_results(done)
