"""Transposes in front of a Concat become one behind it; with combining, parallel nn.Linear products become one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.helpers import parse, unindented
from tests.rewriting import Done, apply, assert_same_results, model_of, weights

PASSES = "transpose-after-concat,remove-unused"
S3A_S5 = "remove-unused,remove-noops,fold-constant,merge-equal,combine-parallel-matmul{merge=always},transpose-after-concat,remove-unused"


def moved(text: str, **options: Any) -> Done:
    done = apply(parse(text, **options), PASSES)
    assert_same_results(done)
    return done


def lines(done: Done) -> list[str]:
    return [str(b).split(" = ")[1] for b in done.block.bindings]


@pytest.mark.parametrize("n", [2, 12, 13, 40])
def test_any_number_of_operands(n: int) -> None:
    inputs = ", ".join(f"float[2,{i % 3 + 1},4] a{i}" for i in range(n))
    width = sum(i % 3 + 1 for i in range(n))
    body = " ".join(f"t{i} = Transpose<perm=[1,2,0]>(a{i})" for i in range(n))
    text = f"g ({inputs}) => (float[{width},4,2] o) {{ {body} o = Concat<axis=0>({', '.join(f't{i}' for i in range(n))}) }}"
    done = moved(text)
    assert [b.op for b in done.block.bindings] == ["Concat", "Transpose"]
    assert done.block.outputs[0].definition.inputs[0].definition.attr("axis") == 1


@pytest.mark.parametrize(("axis", "inner"), [(0, 2), (1, 0), (2, 1), (-1, 1), (-3, 2)])
def test_the_axis_moves_with_the_permutation(axis: int, inner: int) -> None:
    text = f"""g (float[2,2,2] a, float[2,2,2] b) => (float[] o) {{
      s = Transpose<perm=[2,0,1]>(a) t = Transpose<perm=[2,0,1]>(b) o = Concat<axis={axis}>(s, t) }}"""
    assert lines(moved(text)) == [
        f"Concat(a, b, axis={inner})",
        "Transpose(concat, perm=[2, 0, 1])",
    ]


def test_a_perm_that_is_absent_counts_as_reversal() -> None:
    text = "g (float[3,2] a, float[3,5] b) => (float[7,3] o) { s = Transpose(a) t = Transpose<perm=[1,0]>(b) o = Concat<axis=0>(s, t) }"
    assert lines(moved(text))[0] == "Concat(a, b, axis=1)"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("g (float[3,3,3] a, float[3,3,3] b) => (float[6,3,3] o) {"
         " s = Transpose<perm=[1,0,2]>(a) t = Transpose<perm=[2,1,0]>(b) o = Concat<axis=0>(s, t) }", "permutations differ"),
        ("g (float[] a, float[] b) => (float[] o) { s = Transpose(a) t = Transpose(b) o = Concat<axis=0>(s, t) }", "rank"),
        ("g (float[2,3] a, float[2,3] b) => (float[6,2] o, float[3,2] n) {"
         " s = Transpose(a) t = Transpose(b) o = Concat<axis=0>(s, t) n = Neg(s) }", "other readers"),
        ("g (float[2,3] a, float[2,3] b) => (float[6,2] o, float[3,2] s) {"
         " s = Transpose(a) t = Transpose(b) o = Concat<axis=0>(s, t) }", "other readers"),
        ("g (float[2,3] a) => (float[6,2] o) { s = Transpose(a) o = Concat<axis=0>(s, s) }", "other readers"),
    ],
)  # fmt: skip
def test_must_not_fire(text: str, reason: str) -> None:
    done = apply(parse(text), PASSES)
    assert (
        done.fired("concat_of_transposes") == 0
        and reason in done.reasons("concat_of_transposes")[0]
    )


def test_an_operand_that_is_no_transpose_keeps_all_and_is_named() -> None:
    """SPEC, added after a second reading, S5: a near miss is loud."""
    text = "g (float[2,3] a, float[3,2] b) => (float[6,2] o) { s = Transpose(a) o = Concat<axis=0>(s, b) }"
    done = apply(parse(text), PASSES)
    assert not done.trace.rewrites
    assert done.reasons("concat_of_transposes") == [
        "b is neither a Transpose nor a constant that is read only here"
    ]


def test_it_pays_when_one_of_three_has_another_reader() -> None:
    text = """g (float[2,3] a, float[2,3] b, float[2,3] c) => (float[9,2] o, float[3,2] s) {
      s = Transpose(a) t = Transpose(b) u = Transpose(c) o = Concat<axis=0>(s, t, u) }"""
    assert moved(text).count("Transpose") == 2


def test_transposes_outside_of_a_loop_stay_outside() -> None:
    text = """g (int64 n, bool k, float[2,3] a, float[2,3] b, float[6,2] s) => (float[6,2] o) {
      t = Transpose(a) u = Transpose(b)
      o = Loop (n, k, s) <body = l (int64 i, bool c, float[6,2] v) => (bool d, float[6,2] r) {
        d = Identity(c) w = Concat<axis=0>(t, u) r = Add(v, w) }> }"""
    assert not apply(parse(text), PASSES).trace.rewrites


def test_composition_with_combining_on_graph_inputs() -> None:
    """Three `x @ T(W_i)`: one Concat of the raw weights on axis 0, one Transpose, one MatMul, one Split."""
    text = """g (float[N,4] x, float[6,4] W1, float[6,4] W2, float[2,4] W3) => (float[N,6] a, float[N,6] b, float[N,2] c) {
      t1 = Transpose<perm=[1,0]>(W1) a = MatMul(x, t1)
      t2 = Transpose<perm=[1,0]>(W2) b = MatMul(x, t2)
      t3 = Transpose<perm=[1,0]>(W3) c = MatMul(x, t3)
    }"""
    done = apply(parse(text), S3A_S5)
    assert done.text == unindented("""
        g(x: f32[N,4], W1: f32[6,4], W2: f32[6,4], W3: f32[2,4], const: i64[3] const = [6, 6, 2]) {
          concat_2: f32[14,4] = Concat(W1, W2, W3, axis=0)
          transpose: f32[4,14] = Transpose(concat_2, perm=[1, 0])
          matmul: f32[N,14] = MatMul(x, transpose)
          a: f32[N,6], b: f32[N,6], c: f32[N,2] = Split(matmul, const, axis=1)
          return a, b, c
        }
    """)
    assert_same_results(done)
    assert [b.op for b in done.block.bindings] == ["Concat", "Transpose", "MatMul", "Split"]
    assert next(iter(done.block.bindings)).attr("axis") == 0


def test_composition_with_combining_on_initializers() -> None:
    """One fused weight, one MatMul, one Split; no Transpose."""
    text = """g (float[N,4] x) => (float[N,6] a, float[N,6] b, float[N,2] c) {
      t1 = Transpose<perm=[1,0]>(w1) a = MatMul(x, t1)
      t2 = Transpose<perm=[1,0]>(w2) b = MatMul(x, t2)
      t3 = Transpose<perm=[1,0]>(w3) c = MatMul(x, t3)
    }"""
    done = apply(model_of(text, weights(w1=(6, 4), w2=(6, 4), w3=(2, 4))), S3A_S5)
    assert_same_results(done)
    assert [b.op for b in done.block.bindings] == ["MatMul", "Split"]
    assert sorted(len(v.initializer.dims) for v in done.block.initializers.values()) == [1, 2]
    assert len(done.after.SerializeToString()) < len(done.before.SerializeToString()) + 200, (
        "the old weights are gone"
    )


@pytest.mark.parametrize("n", [2, 12, 13, 40])
def test_composition_for_any_number(n: int) -> None:
    inputs = ", ".join(f"float[2,4] W{i}" for i in range(n))
    outputs = ", ".join(f"float[3,2] y{i}" for i in range(n))
    body = " ".join(f"t{i} = Transpose<perm=[1,0]>(W{i}) y{i} = MatMul(x, t{i})" for i in range(n))
    done = apply(parse(f"g (float[3,4] x, {inputs}) => ({outputs}) {{ {body} }}"), S3A_S5)
    assert_same_results(done)
    assert [b.op for b in done.block.bindings] == ["Concat", "Transpose", "MatMul", "Split"]


def test_a_constant_among_them_is_transposed_at_once() -> None:
    """SPEC, added after a second reading, S5."""
    text = """g (float[2,3] a, float[2,3] b) => (float[8,2] o) {
        s = Transpose(a) t = Transpose(b) o = Concat<axis=0>(s, k, t) }"""
    model = model_of(text, {"k": np.arange(4, dtype=np.float32).reshape(2, 2)})
    done = apply(model, PASSES)
    assert_same_results(done)
    assert lines(done) == ["Concat(a, k_transposed, b, axis=1)", "Transpose(concat, perm=[1, 0])"]


def test_a_constant_that_is_read_elsewhere_stays() -> None:
    text = """g (float[2,3] a, float[2,3] b) => (float[8,2] o, float[2,2] n) {
        s = Transpose(a) t = Transpose(b) o = Concat<axis=0>(s, k, t) n = Neg(k) }"""
    assert not apply(model_of(text, {"k": np.ones((2, 2), np.float32)}), PASSES).trace.rewrites
