"""Rows that nothing reads are not computed: what moves behind a Gather, a GatherND, a Gather from flattened rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.helpers import unindented
from tests.rewriting import Done, apply, assert_same_results, model_of, weights

PASSES = "select-rows,remove-unused"
X = "float[B,S,32] x"


def i64(values: Any) -> Any:
    return np.array(values, np.int64)


def done_of(text: str, constants: dict[str, Any] | None = None, **options: Any) -> Done:
    done = apply(model_of(text, constants, **{"opset": 23, **options}), PASSES)
    assert_same_results(done)
    return done


def full_rows(done: Done) -> list[str]:
    """The operators that still compute every row, Reshapes aside."""
    return [
        b.op for b in done.block.bindings
        if b.op not in ("Constant", "Reshape", "Flatten") and (b.out.shape or ())[:2] == ("B", "S")
    ]  # fmt: skip


LAYER = """p = MatMul(x, w) b = Add(p, c) g = Gelu(b) q = MatMul(g, u) r = Add(x, q)
    n = LayerNormalization <axis = -1> (r, s, t)"""
CONSTANTS = weights(w=(32, 64), c=(64,), u=(64, 32), s=(32,), t=(32,))
SELECTED = {
    "first": (X, "float[B,32] y", "y = Gather <axis = 1> (n, i)", i64(0)),
    "last, kept": (X, "float[B,1,32] y", "y = Gather <axis = -2> (n, i)", i64([-1])),
    "of batches": (X + ", int64[B,2] j", "float[B,32] y", "y = GatherND(n, j)", i64(0)),
    "of rows as one matrix": (
        X, "float[B,32] y", "f = Flatten <axis = 2> (n) j = ArgMax <axis = 1, keepdims = 0> (z) y = Gather(f, j)", i64(2)),
    "of a Reshape": (
        X, "float[B,32] y", "f = Reshape(n, i) j = ArgMax <axis = 1, keepdims = 0> (z) y = Gather(f, j)", i64([-1, 32])),
}  # fmt: skip


@pytest.mark.parametrize(("x", "y", "select", "i"), SELECTED.values(), ids=SELECTED)
def test_a_layer_of_one_row(x: str, y: str, select: str, i: Any) -> None:
    more = "z = ReduceMax <keepdims = 0> (x, last)" if "(z)" in select else ""
    text = f"g ({x}) => ({y}) <int64[1] last = {{-1}}> {{ {more} {LAYER} {select} }}"
    done = done_of(text, {**CONSTANTS, "i": i})
    assert done.fired("rows_of_result") == 6 and full_rows(done) == ["ReduceMax"] * bool(more)
    assert done.counts["MatMul"] == 2 and done.counts["LayerNormalization"] == 1
    done.prove()


def test_golden() -> None:
    text = f"g ({X}) => (float[B,32] y) <int64 i = {{0}}> {{ p = MatMul(x, w) r = Add(x, p) y = Gather <axis = 1> (r, i) }}"
    done = done_of(text, weights(w=(32, 32)))
    assert done.text == unindented("""
        g(x: f32[B,S,32], i: i64[] const = 0, w: f32[32,32] const) {
          gather: f32[B,32] = Gather(x, i, axis=1)
          matmul: f32[B,32] = MatMul(gather, w)
          y: f32[B,32] = Add(gather, matmul)
          return y
        }
    """)


ATTENTION = """g (float[B,S,32] q, float[B,T,32] k, float[B,T,32] v{0}) => (float[B{1},32] y) <int64{2} i = {{0}}> {{
    r = MatMul(q, w) a = Attention <q_num_heads = 4, kv_num_heads = 4{3}> (r, k, v{4}) y = Gather <axis = 1> (a, i) }}"""
MASKS = {
    "none": ("", ""),
    "(S, T)": (", float[S,T] m", ", m"),
    "(B, 1, S, T)": (", float[B,1,S,T] m", ", m"),
    "true and false": (", bool[B,1,S,T] m", ", m"),
}


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize(("more", "mask"), MASKS.values(), ids=MASKS)
def test_one_query_of_each_batch(kept: bool, more: str, mask: str) -> None:
    text = ATTENTION.format(more, ",1" if kept else "", "[1]" if kept else "", "", mask)
    done = done_of(text, weights(w=(32, 32)))
    assert done.fired("rows_of_result") == 2 and not full_rows(done)
    (found,) = [b for b in done.block.bindings if b.op == "Attention"]
    assert found.out.shape == ("B", 1, 32)
    done.prove()


STAY = {
    "another reader": (
        X, "float[B,32] y, float[B,S,64] p", "p = MatMul(x, w) e = Gather <axis = 1> (p, i) y = MatMul(e, u)",
        "have other readers"),
    "columns": (X, "float[B,S] y", "p = MatMul(x, w) y = Gather <axis = 2> (p, i)", ""),
    "as many rows": ("float[B,3,32] x", "float[B,1,64] y", "p = MatMul(x, w) y = Gather <axis = 1> (p, ones)", ""),
    "the only row": ("float[B,1,32] x", "float[B,64] y", "p = MatMul(x, w) y = Gather <axis = 1> (p, i)", ""),
    "rows of unknown number": (
        X + ", int64[N] j", "float[B,N,64] y", "p = MatMul(x, w) y = Gather <axis = 1> (p, j)", ""),
    "a matrix for each batch": (
        X + ", float[B,32,40] z", "float[B,40] y", "p = MatMul(x, z) y = Gather <axis = 1> (p, i)", "not one matrix"),
    "over several rows": (
        X, "float[B,32] y", "p = LayerNormalization <axis = 1> (x, k) y = Gather <axis = 1> (p, i)", "over several rows"),
    "an operand of each row": (
        X + ", float[1,S,32] z", "float[B,32] y", "p = Add(x, z) y = Gather <axis = 1> (p, i)", "have a row for each"),
    "two that broadcast": (
        "float[B,1,32] x, float[1,S,32] z", "float[B,32] y", "p = Add(x, z) y = Gather <axis = 1> (p, i)",
        "have a row for each"),
    "narrow rows": ("float[B,S,8] x", "float[B,8] y", "p = Relu(x) y = Gather <axis = 1> (p, i)", "as fast as"),
    "over rows": (X, "float[B,32] y", "p = Softmax <axis = 1> (x) y = Gather <axis = 1> (p, i)", ""),
    "repeated batches": (
        X + ", int64[N,2] j", "float[N,32] y", "p = Relu(x) y = GatherND(p, j)", ""),
    "causal": (
        X, "float[B,32] y",
        "p = Attention <q_num_heads = 4, kv_num_heads = 4, is_causal = 1> (x, x, x) y = Gather <axis = 1> (p, i)",
        "places matter"),
    "one row of attention, with two new axes": (
        "float[B,9,32] x", "float y",
        "p = Attention <q_num_heads = 4, kv_num_heads = 4> (x, x, x) y = Gather <axis = 1> (p, within)", "not one row"),
    "an empty batch": ("float[0,5,32] x", "float[0,64] y", "p = MatMul(x, w) y = Gather <axis = 1> (p, i)", "no elements"),
    "sums of nothing": (
        "float[2,9,0] x", "float[1,32] y", "p = MatMul(x, none) f = Reshape(p, flat) y = Gather(f, ones)", "is unknown or 0"),
    "two rows of attention": (
        "float[B,9,32] x", "float[B,2,32] y",
        "p = Attention <q_num_heads = 4, kv_num_heads = 4> (x, x, x) y = Gather <axis = 1> (p, two)", "not one row"),
}  # fmt: skip


@pytest.mark.parametrize(("x", "y", "body", "reason"), STAY.values(), ids=STAY)
def test_rows_that_stay(x: str, y: str, body: str, reason: str) -> None:
    constants = {
        "i": i64(0), "ones": i64([0]), "two": i64([0, 4]), "within": i64([[1]]), "flat": i64([-1, 32]),
        **weights(w=(32, 64), u=(64, 32), none=(0, 32)),
    }  # fmt: skip
    if "(x, k)" in body:
        constants["k"] = np.ones((6, 32), np.float32)
        x, y = "float[2,6,32] x", "float[2,32] y"
    done = done_of(f"g ({x}) => ({y}) {{ {body} }}", constants)
    assert not done.fired("rows_of_result") and reason in done.declined


@pytest.mark.parametrize("other", ["ReduceSum", "ReduceMax"])
def test_another_operator_of_the_same_operands_is_no_selection(other: str) -> None:
    """It has the shape of the rows, and was read in their place."""
    body = f"z = {other}(x, i) p = MatMul(x, w) y = Gather(p, i)"
    text = f"g (float[4,32] x) => (float[1,64] y, float[1,32] z) {{ {body} }}"
    done = done_of(text, {"i": i64([0]), **weights(w=(32, 64))})
    assert done.fired("rows_of_result") == 1 and done.counts["Gather"] == 1


def test_rows_of_a_branch_are_not_taken_outside_of_it() -> None:
    text = f"""g ({X}, bool c) => (float[B,32] y) <int64 i = {{0}}> {{
      r = Relu(x)
      y = If (c) <then_branch = t () => (float[B,32] a) {{ a = Gather <axis = 1> (r, i) }},
                  else_branch = e () => (float[B,32] d) {{ d = Gather <axis = 1> (x, i) }}> }}"""
    assert not done_of(text).fired("rows_of_result")


STEPS = (
    "{0} = MatMul({1}, w)", "{0} = Add({1}, {2})", "{0} = Mul({1}, c)", "{0} = Gelu({1})", "{0} = Sub(c, {1})",
    "{0} = LayerNormalization({1}, s, t)", "{0} = RMSNormalization({1}, s)", "{0} = Sum({1}, {2}, {1})",
    "{0} = Attention <q_num_heads = 4, kv_num_heads = 2> ({1}, k, k, m)", "{0} = Softmax({1})", "{0} = Transpose <perm = [1, 0, 2]> ({1})",
)  # fmt: skip
ENDS = (
    "y = Gather <axis = 1> ({0}, i)", "y = Gather <axis = 1> ({0}, at)", "y = Gather <axis = 0> ({0}, i)",
    "y = GatherND({0}, pairs)", "f = Reshape({0}, flat) y = Gather(f, at)",
)  # fmt: skip


def test_random_graphs() -> None:
    """Every mixture of what moves and what stays, through axes of equal sizes, gives the same results."""
    fired, many = 0, 25
    for seed in range(many):
        rng = np.random.default_rng(seed)
        made, body = ["x"], []
        for k in range(int(rng.integers(2, 8))):
            step = STEPS[rng.integers(len(STEPS))]
            body.append(step.format(f"v{k}", made[-1], made[rng.integers(len(made))]))
            made.append(f"v{k}")
        text = " ".join([*body, ENDS[rng.integers(len(ENDS))].format(made[-1])])
        constants = {
            **weights(w=(32, 32), c=(32,), s=(32,), t=(32,), k=(5, 7, 16), m=(5, 1, 5, 7)),
            "i": i64(rng.integers(-5, 5)), "at": i64([rng.integers(5)]), "flat": i64([-1, 32]),
            "pairs": i64(rng.integers(-5, 5, (3, 2))),
        }  # fmt: skip
        done = done_of(f"g (float[5,5,32] x) => (float y) {{ {text} }}", constants)
        fired += done.fired("rows_of_result")
    assert fired > many
