"""Gather in front of a product and behind it: rows, columns, tables, and one matrix for each batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxgrad.verify import run
from tests.helpers import unindented
from tests.rewriting import Done, apply, assert_same_results, model_of, weights

PASSES = "reorder-gather-matmul,fold-constant,remove-unused"
EARLY = {"gather_of_product_rows", "gather_of_product_columns", "gather_of_gemm_rows"}
LATE = {"product_of_gathered_rows", "product_of_gathered_columns", "product_of_gathered_matrices"}


def i64(values: Any) -> Any:
    return np.array(values, np.int64)


def done_of(
    text: str, constants: dict[str, Any] | None = None, passes: str = PASSES, **options: Any
) -> Done:
    done = apply(model_of(text, constants, **options), passes)
    assert_same_results(done)
    return done


def fired(done: Done) -> set[str]:
    return {f.rule for f in done.trace.rewrites} & (EARLY | LATE)


def test_the_last_token_alone_is_multiplied() -> None:
    text = """g (float[B,S,8] x) => (float[B,100] y) <int64 i = {-1}> {
      p = MatMul(x, w) y = Gather<axis=1>(p, i) }"""
    done = done_of(text, weights(w=(8, 100)))
    assert done.text == unindented("""
        g(x: f32[B,S,8], i: i64[] const = -1, w: f32[8,100] const) {
          gather: f32[B,8] = Gather(x, i, axis=1)
          y: f32[B,100] = MatMul(gather, w)
          return y
        }
    """)
    done.prove()


@pytest.mark.parametrize(
    ("x", "axis", "i", "y"),
    [
        ("9,8", 0, 3, "100"),
        ("9,8", 0, [3], "1,100"),
        ("9,8", -2, [[0, -1], [4, 4]], "2,2,100"),
        ("2,9,8", 1, [3, 0], "2,2,100"),
        ("2,9,8", -2, [3, 0], "2,2,100"),
        ("9,2,8", 0, [], "0,2,100"),
        ("B,9,8", 1, [3, 0], "B,2,100"),
        ("9,T,8", 0, -1, "T,100"),
    ],
)
@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("opset", [13, 20])
def test_rows(x: str, axis: int, i: Any, y: str, constant: bool, opset: int) -> None:
    more = "" if constant else ", float[8,100] w"
    text = f"g (float[{x}] x{more}) => (float[{y}] y) {{ p = MatMul(x, w) y = Gather<axis={axis}>(p, i) }}"
    constants = {"i": i64(i), **(weights(w=(8, 100)) if constant else {})}
    done = done_of(text, constants, opset=opset)
    assert fired(done) == {"gather_of_product_rows"} and done.ops == ["Gather", "MatMul"]


@pytest.mark.parametrize(
    ("x", "axis", "i", "w", "y", "reason"),
    [
        ("S,100", 0, [0, 0], (100, 8), "2,8", "not clearly cheaper"),  # S may be 1
        ("9,100", 0, list(range(9)), (100, 8), "9,8", "not clearly cheaper"),
        ("S,800", 0, 0, (800, 2), "2", "not clearly cheaper"),  # longer rows to copy
        ("2,9,8", 1, [0], (2, 8, 100), "2,1,100", "is not a matrix"),
    ],
)
def test_rows_that_stay(x: str, axis: int, i: Any, w: Any, y: str, reason: str) -> None:
    text = (
        f"g (float[{x}] x) => (float[{y}] y) {{ p = MatMul(x, w) y = Gather<axis={axis}>(p, i) }}"
    )
    done = done_of(text, {"i": i64(i), **weights(w=w)})
    assert not fired(done) and reason in done.declined


def test_rows_that_the_user_knows() -> None:
    text = "g (float[S,100] x) => (float[2,8] y) { p = MatMul(x, w) y = Gather(p, i) }"
    constants = {"i": i64([0, -1]), **weights(w=(100, 8))}
    assert fired(done_of(text, constants, "reorder-gather-matmul{rows=64}"))


@pytest.mark.parametrize("turned", [0, 1])
@pytest.mark.parametrize("c", ["", "c1", "c100", "c1_100"])
def test_rows_of_gemm(turned: int, c: str) -> None:
    sizes = {"w": (100, 8) if turned else (8, 100), "c1": (1,), "c100": (100,), "c1_100": (1, 100)}
    text = f"""g (float[9,8] x) => (float[2,100] y) {{
      p = Gemm<transB={turned}, alpha=0.5, beta=2.0>(x, w{", " + c if c else ""}) y = Gather(p, i) }}"""
    done = done_of(text, {"i": i64([3, -1]), **weights(sizes)})
    assert fired(done) == {"gather_of_gemm_rows"} and done.ops == ["Gather", "Gemm"]


@pytest.mark.parametrize(
    ("x", "attrs", "c", "i"),
    [
        ("9,8", "", (9, 100), [1]),  # a bias of its own for each row
        ("9,8", "", (9, 1), [1]),
        ("8,9", "<transA=1>", (100,), [1]),
        ("9,8", "", (100,), 1),  # Gemm has no vectors
    ],
)
def test_rows_of_gemm_that_stay(x: str, attrs: str, c: Any, i: Any) -> None:
    text = f"g (float[{x}] x) => (float[] y) {{ p = Gemm{attrs}(x, w, c) y = Gather(p, i) }}"
    assert not fired(done_of(text, {"i": i64(i), **weights(w=(8, 100), c=c)}))


def test_what_others_read_stays() -> None:
    text = (
        "g (float[9,8] x) => (float[1,100] y, float[9,100] p) { p = MatMul(x, w) y = Gather(p, i) }"
    )
    assert not fired(done_of(text, {"i": i64([3]), **weights(w=(8, 100))}))


# ---- tables ----------------------------------------------------------------------------------------------------------

TABLE = "g (int64[B,S] i) => (float[B,S,{n}] y) {{ e = Gather(x, i) y = MatMul(e, w) }}"


def indices(rows: int) -> dict[str, Any]:
    return {"i": np.random.default_rng(0).integers(-rows, rows, (2, 3))}


def test_a_table_and_a_weight_become_a_table() -> None:
    done = apply(model_of(TABLE.format(n=4), weights(x=(50, 16), w=(16, 4))), PASSES)
    assert done.ops == ["Gather"]
    assert_same_results(done, feeds=indices(50))
    done.prove()


def test_a_table_that_would_be_larger_stays() -> None:
    done = apply(model_of(TABLE.format(n=64), weights(x=(5000, 16), w=(16, 64))), PASSES)
    assert not fired(done) and "the file would grow" in done.declined


def test_a_table_with_another_reader_stays() -> None:
    text = "g (int64[B,S] i) => (float[B,S,4] y, float[50,16] z) { e = Gather(x, i) y = MatMul(e, w) z = Relu(x) }"
    done = apply(model_of(text, weights(x=(50, 16), w=(16, 4))), PASSES)
    assert not fired(done) and "the file would grow" in done.declined


def test_more_tokens_than_rows() -> None:
    text = "g (float[4,64] x, float[64,64] w, int64[200] i) => (float[200,64] y) { e = Gather(x, i) y = MatMul(e, w) }"
    done = apply(model_of(text), PASSES)
    assert fired(done) == {"product_of_gathered_rows"}
    assert_same_results(done)
    few = text.replace("200", "3")
    assert not fired(apply(model_of(few), PASSES))


# ---- columns ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("x", ["N,16", "B,N,16", "16"])
@pytest.mark.parametrize("i", [[3, 1], 5, [-1]])
def test_columns_of_a_constant(x: str, i: Any) -> None:
    text = f"g (float[{x}] x) => (float[] y) {{ p = MatMul(x, w) y = Gather<axis=-1>(p, i) }}"
    done = done_of(text, {"i": i64(i), **weights(w=(16, 20))})
    assert fired(done) == {"gather_of_product_columns"} and done.ops == ["MatMul"]


def test_columns_of_a_weight_with_another_reader_stay() -> None:
    text = "g (float[N,16] x) => (float[N,2] y, float[16,20] z) { p = MatMul(x, w) y = Gather<axis=-1>(p, i) z = Relu(w) }"
    assert not fired(done_of(text, {"i": i64([3, 1]), **weights(w=(16, 20))}))


def test_columns_at_run_time_by_cost() -> None:
    """Elements that are picked one by one are dear."""
    text = "g (float[{m},64] x, int64[8] i) => (float[{m},8] y) {{ v = Gather<axis=1>(w, i) y = MatMul(x, v) }}"
    late = apply(model_of(text.format(m=1), weights(w=(64, 64))), PASSES)
    assert fired(late) == {"product_of_gathered_columns"}
    feeds = {"x": np.ones((1, 64), np.float32), "i": i64([0, 5, -1, 63, -64, 5, 5, 2])}
    assert_same_results(late, feeds=feeds)
    assert not fired(apply(model_of(text.format(m=4096), weights(w=(64, 64))), PASSES))
    assert not fired(apply(model_of(text.format(m="M"), weights(w=(64, 64))), PASSES))


# ---- one matrix for each batch ---------------------------------------------------------------------------------------

EXPERTS = (
    "g (float[8,{m},64] x, {t}[8] i) => (float[8,{m},32] y) {{ v = Gather(w, i) y = MatMul(x, v) }}"
)


@pytest.mark.parametrize("dtype", ["int64", "int32"])
def test_one_matrix_of_four_for_each_batch(dtype: str) -> None:
    done = apply(model_of(EXPERTS.format(m=1, t=dtype), weights(w=(4, 64, 32))), PASSES)
    assert fired(done) == {"product_of_gathered_matrices"}
    assert done.ops[0] == "MatMul" and done.ops[-1] == "GatherND"
    rng = np.random.default_rng(0)
    x = rng.standard_normal((8, 1, 64)).astype(np.float32)
    feeds = {"x": x, "i": rng.integers(-4, 4, 8).astype(dtype)}
    assert_same_results(done, feeds=feeds)
    assert run(done.after, feeds)["y"].shape == (8, 1, 32)
    done.prove()


def test_a_table_of_matrices_as_linear_layers_have_them() -> None:
    """(out, in), and transposed once gathered."""
    turned = "t = Transpose<perm = [0, 2, 1]>(v) y = MatMul(x, t)"
    text = EXPERTS.format(m=1, t="int64").replace("y = MatMul(x, v)", turned)
    done = apply(model_of(text, weights(w=(4, 32, 64))), PASSES)
    assert fired(done) == {"product_of_gathered_matrices"}
    assert done.ops[0] == "MatMul" and done.ops[-1] == "GatherND"
    done.prove()
    given = text.replace("int64[8] i", "int64[8] i, float[4,32,64] w")
    done = apply(model_of(given), PASSES)
    assert not fired(done) and "the table is not a constant" in done.declined


@pytest.mark.parametrize(("m", "e"), [(16, 4), (1, 64)])
def test_many_rows_or_matrices_are_multiplied_singly(m: int, e: int) -> None:
    done = apply(model_of(EXPERTS.format(m=m, t="int64"), weights(w=(e, 64, 32))), PASSES)
    assert not fired(done) and "not clearly cheaper" in done.declined


@pytest.mark.parametrize(
    "text",
    [
        "g (float[1,64] x, int64[8] i) => (float[8,1,32] y) { v = Gather(w, i) y = MatMul(x, v) }",
        "g (float[8,1,64] x, int64 i) => (float[8,1,32] y) { v = Gather(w, i) y = MatMul(x, v) }",
        "g (float[1,1,64] x, int64[8] i) => (float[8,1,32] y) { v = Gather(w, i) y = MatMul(x, v) }",
        "g (float[B,1,64] x, int64[B] i) => (float[B,1,32] y) { v = Gather(w, i) y = MatMul(x, v) }",
    ],
)
def test_not_one_matrix_for_each_batch(text: str) -> None:
    assert not fired(apply(model_of(text, weights(w=(4, 64, 32))), PASSES))


@pytest.mark.parametrize(("opset", "fires"), [(7, False), (11, False), (12, True), (13, True)])
def test_a_product_for_each_batch_needs_its_gather(opset: int, fires: bool) -> None:
    model = model_of(EXPERTS.format(m=1, t="int64"), weights(w=(4, 64, 32)), opset=opset)
    done = apply(model, PASSES)
    assert bool(fired(done)) is fires
    assert fires or "needs opset 12" in done.declined
    done.prove()


# ---- everywhere ------------------------------------------------------------------------------------------------------


def test_inside_if_and_loop() -> None:
    text = """g (bool k, float[9,8] x) => (float[1,8] o) <int64 n = {2}, bool yes = {1}, int64[1] i = {3}> {
      o = If (k) <
        then_branch = t () => (float[1,8] r) { p = MatMul(x, w) r = Gather(p, i) },
        else_branch = e () => (float[1,8] s) {
          z = Gather(x, i)
          s = Loop (n, yes, z) <body = l (int64 j, bool c, float[1,8] h) => (bool d, float[1,8] v) {
            d = Identity(c) q = MatMul(x, w) u = Gather(q, i) v = Add(u, h) }> }> }"""
    assert sum(f.rule in EARLY for f in done_of(text, weights(w=(8, 8))).trace.rewrites) == 2


def test_both_directions_come_to_rest() -> None:
    text = """g (float[9,8] x) => (float[1,4] y) { p = MatMul(x, w) e = Gather(p, i) y = MatMul(e, v) }"""
    done = apply(
        model_of(text, {"i": i64([3]), **weights(w=(8, 16), v=(16, 4))}),
        "reorder-gather-matmul,adjust-matmul-order",
        rounds=4,
    )
    assert_same_results(done)
    assert done.count("Gather") == 1 and len(done.trace.rewrites) < 5
