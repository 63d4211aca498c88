"""Products that share an operand become one, with biases and a common activation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxgrad.passes.combine_parallel import combine_parallel_matmul, combine_parallel_matmul_right
from tests.helpers import parse, unindented
from tests.rewriting import Done, apply, assert_same_results, model_of, weights

MERGE = "remove-noops,merge-equal,combine-parallel-matmul{merge=always},remove-unused"


def merged(text: str, constants: dict[str, Any] | None = None, **options: Any) -> Done:
    """The graph after combining, its results compared."""
    done = apply(model_of(text, constants, **options), MERGE)
    assert_same_results(done)
    return done


def test_what_is_left_of_a_graph() -> None:
    text = """g (float[N,5,4] x, float[4,6] wq, float[4,6] wk, float[4,2] wv, float[6] cq, float[2] cv)
      => (float[N,5,6] q, float[N,5,6] k, float[N,5,2] v) {
        xq = MatMul(x, wq)
        q = Add(xq, cq)
        k = MatMul(x, wk)
        xv = MatMul(x, wv)
        v = Add(cv, xv)
      }"""
    assert merged(text).text == unindented("""
        g(x: f32[N,5,4], wq: f32[4,6], wk: f32[4,6], wv: f32[4,2], cq: f32[6], cv: f32[2], const: i64[3] const = [6, 6, 2], no_bias: f32[6] const = [-0, -0, -0, -0, -0, -0]) {
          concat: f32[4,14] = Concat(wq, wk, wv, axis=1)
          matmul: f32[N,5,14] = MatMul(x, concat)
          concat_2: f32[14] = Concat(cq, no_bias, cv, axis=0)
          add: f32[N,5,14] = Add(matmul, concat_2)
          q: f32[N,5,6], k: f32[N,5,6], v: f32[N,5,2] = Split(add, const, axis=2)
          return q, k, v
        }
    """)


# ---- it fires ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("opset", [9, 11, 13, 18, 20])
def test_unequal_widths_at_every_opset(opset: int) -> None:
    done = merged(
        "g (float[2,3,4] x) => (float[2,3,5] a, float[2,3,1] b, float[2,3,7] c) {"
        " a = MatMul(x, w1) b = MatMul(x, w2) c = MatMul(x, w3) }",
        weights(w1=(4, 5), w2=(4, 1), w3=(4, 7)),
        opset=opset,
        ir_version=8,
    )
    assert (done.count("MatMul"), done.count("Split")) == (1, 1) and len(
        done.block.initializers
    ) <= 2


@pytest.mark.parametrize("n", [2, 12, 13, 40])
def test_any_number_of_branches(n: int) -> None:
    outs = ", ".join(f"float[3,2] y{i}" for i in range(n))
    body = " ".join(f"y{i} = MatMul(x, w{i})" for i in range(n))
    done = merged(
        f"g (float[3,4] x) => ({outs}) {{ {body} }}", weights(**{f"w{i}": (4, 2) for i in range(n)})
    )
    assert done.count("MatMul") == 1 and len(done.after.graph.node) == 2


def test_right_operands_that_are_no_constants() -> None:
    done = merged(
        "g (float[3,4] x, float[4,2] u, float[4,3] v) => (float[3,2] a, float[3,3] b, float[3,2] c) {"
        " a = MatMul(x, u) b = MatMul(x, v) c = MatMul(x, w) }",
        weights(w=(4, 2)),
    )
    assert (done.count("MatMul"), done.count("Concat")) == (1, 1)


def test_widths_unknown_until_run_time() -> None:
    text = """g (float[3,4] x, float[4,N] u, float[4,M] v) => (float[3,N] a, float[3,M] b) {
      a = MatMul(x, u) b = MatMul(x, v) }"""
    done = merged(text)
    assert (done.count("MatMul"), done.count("Shape")) == (1, 2)
    assert merged(text, opset=13, ir_version=8).count("MatMul") == 1, (
        "Shape has no start and end before opset 15"
    )
    old = merged(text, opset=12, ir_version=7)
    assert (
        old.count("MatMul") == 2 and "before opset 13" in old.reasons("combine_parallel_matmul")[0]
    )


def test_batched_and_broadcast_batch_axes() -> None:
    batched = (
        "g (float[B,3,4] x, float[B,4,2] u, float[B,4,5] v) => (float[B,3,2] a, float[B,3,5] b)"
    )
    assert merged(f"{batched} {{ a = MatMul(x, u) b = MatMul(x, v) }}").count("MatMul") == 1
    broadcast = "g (float[3,4] x, float[2,1,4,2] u, float[2,1,4,5] v) => (float[2,1,3,2] a, float[2,1,3,5] b)"
    assert merged(f"{broadcast} {{ a = MatMul(x, u) b = MatMul(x, v) }}").count("MatMul") == 1
    one = "g (float[6,3,4] x, float[1,4,2] u, float[1,4,5] v) => (float[6,3,2] a, float[6,3,5] b)"
    assert merged(f"{one} {{ a = MatMul(x, u) b = MatMul(x, v) }}").count("MatMul") == 1


def test_a_rank_1_left_operand() -> None:
    done = merged(
        "g (float[4] x) => (float[2] a, float[3] b) { a = MatMul(x, w1) b = MatMul(x, w2) }",
        weights(w1=(4, 2), w2=(4, 3)),
    )
    assert done.count("MatMul") == 1


def test_a_left_operand_of_unknown_rank() -> None:
    text = "g (float[] x) => (float[] a, float[] b) { a = MatMul(x, w1) b = MatMul(x, w2) }"
    model = model_of(text, weights(w1=(4, 2), w2=(4, 3)))
    done = apply(model, MERGE)
    assert done.count("MatMul") == 1
    for shape in ((4,), (3, 4), (2, 3, 4)):
        assert_same_results(done, feeds={"x": np.ones(shape, np.float32)})
    old = apply(model_of(text, weights(w1=(4, 2), w2=(4, 3)), opset=9, ir_version=8), MERGE)
    assert old.count("MatMul") == 2, "Split counts from the front there"


@pytest.mark.parametrize("dtype", ["float16", "float", "double", "int32", "int64"])
def test_every_dtype_that_matmul_has(dtype: str) -> None:
    done = merged(
        f"g ({dtype}[3,4] x, {dtype}[4,2] u, {dtype}[4,5] v, {dtype}[2] c) => ({dtype}[3,2] a, {dtype}[3,5] b) {{"
        " p = MatMul(x, u) a = Add(p, c) b = MatMul(x, v) }"
    )
    assert done.count("MatMul") == 1 and done.fired("add_of_split") == 1


def test_the_shared_operand_may_be_an_input_and_a_matched_value_an_output() -> None:
    done = merged(
        "g (float[3,4] x) => (float[3,2] a, float[3,2] b, float[3,2] r, float[3,4] x) {"
        " a = MatMul(x, w1) b = MatMul(x, w2) r = Relu(a) }",
        weights(w1=(4, 2), w2=(4, 2)),
    )
    assert done.count("MatMul") == 1 and [o.name for o in done.after.graph.output] == [
        "a",
        "b",
        "r",
        "x",
    ]


def test_weights_that_others_read_stay_for_them() -> None:
    text = "g (float[3,4] x) => (float[3,4] a, float[3,4] b, float[4,4] c) { a = MatMul(x, w1) b = MatMul(x, w2) c = Relu(w1) }"
    done = merged(text, weights(w1=(4, 4), w2=(4, 4)))
    assert (
        done.count("MatMul") == 1
        and "w1" in done.block.initializers
        and "w2" not in done.block.initializers
    )


def test_dependent_branches_stay_apart() -> None:
    """The published bug: `a = x @ w; b = x @ relu(a)` must not merge."""
    done = merged(
        "g (float[4,4] x) => (float[4,4] b) { a = MatMul(x, w) r = Relu(a) b = MatMul(x, r) }",
        weights(w=(4, 4)),
    )
    assert done.count("MatMul") == 2


def test_two_groups_that_would_close_a_cycle_together() -> None:
    done = merged(
        """g (float[4,4] x, float[4,4] z) => (float[4,4] a1, float[4,4] a2, float[4,4] b1, float[4,4] b2) {
          a1 = MatMul(x, w) wb = Relu(a1) b1 = MatMul(z, wb)
          b2 = MatMul(z, v) wa = Relu(b2) a2 = MatMul(x, wa)
        }""",
        weights(w=(4, 4), v=(4, 4)),
    )
    assert done.count("MatMul") == 3


def test_operands_defined_after_the_first_product_are_hoisted() -> None:
    done = apply(
        parse(
            """g (float[2,4] x, float[4,4] u, float[4,4] v) => (float[2,4] n, float[2,4] b) {
              a = MatMul(x, u) n = Neg(a)
              v_t = Transpose<perm=[1,0]>(v) v_s = Abs(v_t) v_tt = Transpose<perm=[1,0]>(v_s)
              b = MatMul(x, v_tt)
            }"""
        ),
        MERGE,
    )
    assert_same_results(done)
    assert done.count("MatMul") == 1


def test_inside_a_nested_block_and_a_local_function() -> None:
    nested = merged(
        """g (bool k, float[3,4] x) => (float[3,2] o) {
          o = If (k) <
            then_branch = t () => (float[3,2] r) { p = MatMul(x, w1) q = MatMul(x, w2) r = Add(p, q) },
            else_branch = e () => (float[3,2] s) { s = MatMul(x, w1) }>
        }""",
        weights(w1=(4, 2), w2=(4, 2)),
    )
    assert nested.count("MatMul") == 2
    text = """<ir_version: 10, opset_import: ["" : 20, "my" : 1]>
    g (float[3,4] x) => (float[3,2] o) { o = my.f(x) }
    <domain: "my", opset_import: ["" : 20]> f (u) => (r) {
      w1 = Constant<value = float[4,2] {1, 2, 3, 4, 5, 6, 7, 8}>()
      w2 = Constant<value = float[4,2] {8, 7, 6, 5, 4, 3, 2, 1}>()
      p = MatMul(u, w1) q = MatMul(u, w2) r = Sub(p, q)
    }"""
    done = apply(parse(text), MERGE)
    assert_same_results(done)
    assert done.count("MatMul") == 1


# ---- it must not fire ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "body", "reason"),
    [
        (
            "float[2,3,4] x, float[1,4,5] u, float[2,4,5] v => float[2,3,5] a, float[2,3,5] b",
            "",
            None,
        ),
        (
            "float[3,4] x, float[4] u, float[4] v => float[3] a, float[3] b",
            "",
            "the right operand has rank 1",
        ),
        (
            "float[3,4] x, float[4] u, float[4,2] v => float[3] a, float[3,2] b",
            "",
            "the right operand has rank 1",
        ),
        (
            "float[3,4] x, float[] u, float[4,2] v => float[] a, float[3,2] b",
            "",
            "the right operand's rank is unknown",
        ),
        (
            "float[B,3,4] x, float[B,4,5] u, float[C,4,5] v => float[B,3,5] a, float[D,3,5] b",
            "",
            None,
        ),
        (
            "float[3,4] x, float[?,4,5] u, float[?,4,5] v => float[?,3,5] a, float[?,3,5] b",
            "",
            None,  # two sizes without a name are two sizes
        ),
    ],
)
def test_shapes_that_do_not_concatenate(header: str, body: str, reason: str | None) -> None:
    inputs, _, outputs = header.partition(" => ")
    text = f"g ({inputs}) => ({outputs}) {{ a = MatMul(x, u) b = MatMul(x, v) }}".replace("?", "")
    text = text.replace("[,", "[?,") if "[," in text else text
    model = _with_unknown_dims(text)
    done = apply(model, MERGE)
    assert done.count("MatMul") == 2
    assert reason is None or any(reason in r for r in done.reasons("combine_parallel_matmul"))


def _with_unknown_dims(text: str) -> Any:
    model = parse(text.replace("[?,", "[unknown,"))
    for value in (*model.graph.input, *model.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param == "unknown":
                dim.dim_param = "?"
    return model


def test_the_users_check_may_refuse_a_group() -> None:
    sizes: list[int] = []

    def check(group: list[Any]) -> bool:
        sizes.append(len(group))
        return False

    text = "g (float[3,4] x, float[4,2] u, float[4,2] v) => (float[3,2] a, float[3,2] b) { a = MatMul(x, u) b = MatMul(x, v) }"
    done = apply(parse(text), combine_parallel_matmul(merge="always", check=check))
    assert sizes == [2] and done.count("MatMul") == 2
    assert done.reasons("combine_parallel_matmul") == ["refused by the check"]


def test_merge_rules() -> None:
    def products(merge: str, rows: int, columns: int = 4, provider: str = "cpu") -> int:
        model = model_of(
            f"g (float[{rows},{columns}] x) => (float[{rows},2] a, float[{rows},2] b) {{ a = MatMul(x, w1) b = MatMul(x, w2) }}",
            weights(w1=(columns, 2), w2=(columns, 2)),
        )
        return apply(model, combine_parallel_matmul(merge=merge, provider=provider)).count("MatMul")

    assert products("never", 1, 512) == 2 and products("always", 64) == 1
    assert products("auto", 64) == 2 and products("auto", 1) == 2 and products("auto", 1, 512) == 1
    assert products("auto", 64, provider="cuda") == 1


@pytest.mark.parametrize(
    ("k", "columns", "biased", "left"),
    [
        (16, (32, 8), "both", 1),
        (16, (33, 8), "both", 2),  # the widest decides
        (16, (32, 8), "one", 2),
        (16, (32, 8), "fed", 2),
        (256, (8, 4), "none", 1),
        (255, (8, 4), "none", 2),
        (256, (9, 4), "none", 2),
    ],
)
def test_narrow_products_of_any_number_of_rows(
    k: int, columns: tuple[int, int], biased: str, left: int
) -> None:
    p, q = columns
    fed = f", float[{p}] c, float[{q}] d" if biased == "fed" else ""
    first = "" if biased == "none" else "a = Add(s, c)"
    second = "" if biased in ("none", "one") else "b = Add(t, d)"
    outputs = f"float[N,S,{p}] {'a' if first else 's'}, float[N,S,{q}] {'b' if second else 't'}"
    model = model_of(
        f"g (float[N,S,{k}] x{fed}) => ({outputs}) {{ s = MatMul(x, u) t = MatMul(x, v) {first} {second} }}",
        weights(u=(k, p), v=(k, q), **({} if fed else {"c": (p,), "d": (q,)})),
    )
    done = apply(model, combine_parallel_matmul())
    assert done.count("MatMul") == left
    done.prove()


def test_a_shared_weight_is_not_stored_twice_by_default() -> None:
    text = "g (float[1,512] x) => (float[1,512] a, float[1,512] b, float[512,512] c) { a = MatMul(x, w1) b = MatMul(x, w2) c = Relu(w1) }"
    done = apply(
        model_of(text, weights(w1=(512, 512), w2=(512, 512))),
        "combine-parallel-matmul",
        merge="auto",
    )
    assert done.count("MatMul") == 2 and "twice" in done.reasons("combine_parallel_matmul")[0]


def test_weights_that_every_run_would_join_anew_stay_apart_by_default() -> None:
    text = "g (float[1,512] x, float[512,64] u, float[512,64] v) => (float[1,64] a, float[1,64] b) { a = MatMul(x, u) b = MatMul(x, v) }"
    done = apply(model_of(text), "combine-parallel-matmul", merge="auto")
    assert done.count("MatMul") == 2 and "not constant" in done.declined
    assert apply(model_of(text), combine_parallel_matmul(provider="cuda")).count("MatMul") == 1


@pytest.mark.parametrize(
    ("x", "u", "v", "groups"),
    [  # TVM's CombineParallelBatchMatmul, and what it has no room for
        ("2,3,4", "2,4,5", "2,4,1", 1),
        ("2,3,4", "1,4,5", "1,4,1", 1),
        ("3,4", "2,4,5", "2,4,1", 1),
        ("7,2,3,4", "1,2,4,5", "1,2,4,1", 1),
        ("B,H,3,4", "B,H,4,5", "B,H,4,1", 1),
        ("2,3,4", "1,4,5", "2,4,1", 2),  # a Concat broadcasts nothing
        ("2,3,4", "4,5", "2,4,1", 2),
        ("2,3,4", "B,4,5", "2,4,1", 2),
        ("2,3,4", "B,4,5", "C,4,1", 2),
    ],
)
@pytest.mark.parametrize("constant", [False, True])
def test_parallel_batched_products(x: str, u: str, v: str, groups: int, constant: bool) -> None:
    if constant and not set(u + v) <= set("0123456789,"):
        return
    inputs = f"float[{x}] x" + ("" if constant else f", float[{u}] u, float[{v}] v")
    sizes = {n: [int(d) for d in s.split(",")] for n, s in (("u", u), ("v", v)) if constant}
    text = f"g ({inputs}) => (float[] a, float[] b) {{ a = MatMul(x, u) b = MatMul(x, v) }}"
    done = merged(text, weights(sizes))
    assert done.count("MatMul") == groups


# ---- biases and activations ----------------------------------------------------------------------------------------

THREE = "g (float[2,3,4] x{inputs}) => (float[2,3,5] a, float[2,3,2] b, float[2,3,1] c)"
W3 = weights(w1=(4, 5), w2=(4, 2), w3=(4, 1))


def three(
    a: str, b: str, c: str, inputs: str = "", constants: dict[str, Any] | None = None
) -> Done:
    body = f"p = MatMul(x, w1) q = MatMul(x, w2) r = MatMul(x, w3) {a} {b} {c}"
    return merged(f"{THREE.format(inputs=inputs)} {{ {body} }}", {**W3, **(constants or {})})


BIAS = weights(c1=(5,), c2=(1, 2), c3=(1, 1, 1))


@pytest.mark.parametrize(
    ("branches", "adds"),
    [
        (("a = Add(p, c1)", "b = Add(c2, q)", "c = Add(r, c3)"), 1),
        (("a = Add(p, c1)", "b = Identity(q)", "c = Identity(r)"), 1),
        (("a = Identity(p)", "b = Identity(q)", "c = Identity(r)"), 0),
    ],
)
def test_a_bias_on_all_some_or_none(branches: tuple[str, str, str], adds: int) -> None:
    done = three(*branches, constants=BIAS)
    assert (done.count("MatMul"), done.count("Add"), done.count("Split")) == (1, adds, 1)


def test_negative_zero_is_what_a_missing_bias_adds() -> None:
    """x + (-0.0) is x for every x; x + 0.0 would turn -0.0 into 0.0."""
    zero = np.zeros((4, 1), np.float32)
    done = apply(
        model_of(
            "g (float[1,4] x) => (float[1,1] a, float[1,2] b) { p = MatMul(x, w0) a = Neg(p) q = MatMul(x, w2) b = Add(q, c) }",
            {"w0": zero, "w2": W3["w2"], "c": BIAS["c2"].reshape(2)},
        ),
        MERGE,
    )
    assert done.fired("add_of_split") == 1
    added = [
        v.const
        for v in done.block.initializers.values()
        if v.const is not None and v.const.shape == (3,)
    ]
    assert np.signbit(added[0][0]) and added[0][0] == 0


def test_a_bias_that_is_computed() -> None:
    done = three("a = Add(p, k)", "b = Identity(q)", "c = Identity(r)", inputs=", float[1,5] k")
    assert (done.count("MatMul"), done.count("Add"), done.fired("add_of_split")) == (1, 1, 1)


def test_a_constant_scalar_is_a_bias_and_an_unknown_one_stays() -> None:
    scalar = {"c1": np.float32(0.5)}
    assert (
        three("a = Add(p, c1)", "b = Relu(q)", "c = Relu(r)", constants=scalar).fired(
            "add_of_split"
        )
        == 1
    )
    assert (
        three("a = Add(p, k)", "b = Relu(q)", "c = Relu(r)", inputs=", float k").fired(
            "add_of_split"
        )
        == 0
    )


def test_biases_and_scales_of_sizes_known_at_run_time() -> None:
    """SPEC, added after a second reading, S4: constant or not, and of any width."""
    done = merged(
        """g (float[3,4] x, float[4,N] u, float[4,M] v, float[N] s, float[M] t, float[1,N] c, float[M] d)
        => (float[3,N] a, float[3,M] b) {
          p = MatMul(x, u) q = MatMul(x, v) p2 = Mul(p, s) q2 = Mul(t, q) p3 = Add(p2, c) q3 = Add(q2, d)
          a = Tanh(p3) b = Tanh(q3) }"""
    )
    assert (done.count("MatMul"), done.count("Mul"), done.count("Add"), done.count("Tanh")) == (
        1,
        1,
        1,
        1,
    )
    one = "g (float[3,4] x, float[4,N] u, float[4,M] v, float[N] s) => (float[3,N] a, float[3,M] b)"
    some = merged(f"{one} {{ p = MatMul(x, u) b = MatMul(x, v) a = Add(p, s) }}")
    assert (
        some.fired("add_of_split") == 0
        and "different or unknown sizes" in some.reasons("add_of_split")[0]
    )


@pytest.mark.parametrize("shape", [(3, 5), (2, 1, 5), (2, 3, 1), (1, 2, 3, 5)])
def test_an_addend_that_is_no_row_stays(shape: tuple[int, ...]) -> None:
    text = THREE.format(inputs="")
    if len(shape) == 4:
        text = text.replace("float[2,3,5] a", "float[1,2,3,5] a")
    body = "p = MatMul(x, w1) q = MatMul(x, w2) r = MatMul(x, w3) a = Add(p, c) b = Relu(q) c2 = Relu(r)"
    done = merged(f"{text.replace('] c)', '] c2)')} {{ {body} }}", {**W3, **weights(c=shape)})
    assert done.count("MatMul") == 1 and done.fired("add_of_split") == 0


def test_a_bias_that_another_branch_computes_stays() -> None:
    done = merged(
        "g (float[1,4] x) => (float[1,5] a, float[1,5] b) { p = MatMul(x, w1) q = MatMul(x, w2) b = Tanh(q) a = Add(p, b) }",
        weights(w1=(4, 5), w2=(4, 5)),
    )
    assert done.count("MatMul") == 1 and done.fired("add_of_split") == 0


def test_the_sum_of_two_branches_is_no_bias() -> None:
    done = merged(
        "g (float[1,4] x) => (float[1,5] a) { p = MatMul(x, w1) q = MatMul(x, w2) a = Add(p, q) }",
        weights(w1=(4, 5), w2=(4, 5)),
    )
    assert done.count("MatMul") == 1 and done.fired("add_of_split") == 0 and done.count("Add") == 1


def test_a_bias_behind_the_door_of_a_nested_block_stays_there() -> None:
    """The bias is a constant of the branch: nothing outside of it can read it."""
    done = merged(
        """g (bool k, float[3,4] x) => (float[3,2] o, float[3,2] b) {
          p = MatMul(x, w1)
          q = MatMul(x, w2)
          b = Relu(q)
          o = If (k) <
            then_branch = t () => (float[3,2] r) <float[2] c = {1, 2}> { r = Add(p, c) },
            else_branch = e () => (float[3,2] s) { s = Neg(b) }>
        }""",
        weights(w1=(4, 2), w2=(4, 2)),
    )
    assert done.count("MatMul") == 1 and done.fired("add_of_split") == 0


@pytest.mark.parametrize(
    "f",
    ["Relu", "Tanh", "Sigmoid", "LeakyRelu<alpha=0.2>", "Elu", 'Gelu<approximate="tanh">', "Neg"],
)
def test_a_common_activation_moves_above_the_split(f: str) -> None:
    done = three(f"s = Add(p, c1) a = {f}(s)", f"b = {f}(q)", f"c = {f}(r)", constants=BIAS)
    assert done.fired("activation_of_split") == 1 and done.count(f.split("<")[0]) == 1


def test_clip_moves_with_its_bounds_when_they_are_the_same() -> None:
    bounds = {"lo": np.float32(-0.5), "hi": np.float32(0.5), "hi2": np.float32(0.25)}
    same = three(
        "a = Clip(p, lo, hi)", "b = Clip(q, lo, hi)", "c = Clip(r, lo, hi)", constants=bounds
    )
    assert same.count("Clip") == 1
    half = three(
        'a = Clip(p, "", hi)', 'b = Clip(q, "", hi)', 'c = Clip(r, "", hi)', constants=bounds
    )
    assert half.count("Clip") == 1
    for other in ("Clip(r, lo, hi2)", "Clip(r, lo)"):
        assert (
            three(
                "a = Clip(p, lo, hi)", "b = Clip(q, lo, hi)", f"c = {other}", constants=bounds
            ).count("Clip")
            == 3
        )
    at_run_time = three("a = Clip(p, k)", "b = Clip(q, k)", "c = Clip(r, k)", inputs=", float k")
    assert at_run_time.count("Clip") == 3


@pytest.mark.parametrize(
    ("a", "b", "c"),
    [
        ("a = Softmax(p)", "b = Softmax(q)", "c = Softmax(r)"),
        ("a = LogSoftmax(p)", "b = LogSoftmax(q)", "c = LogSoftmax(r)"),
        ("a = Relu(p)", "b = Tanh(q)", "c = Relu(r)"),
        (
            "a = LeakyRelu<alpha=0.1>(p)",
            "b = LeakyRelu<alpha=0.2>(q)",
            "c = LeakyRelu<alpha=0.1>(r)",
        ),
        ("a = Relu(p)", "b = Relu(q)", "c = Identity(r)"),
    ],
)
def test_what_looks_across_the_columns_or_differs_stays_below(a: str, b: str, c: str) -> None:
    done = three(a, b, c)
    assert done.count("MatMul") == 1 and done.fired("activation_of_split") == 0


def test_an_activation_of_a_branch_that_others_read_too_stays() -> None:
    text = "g (float[3,4] x) => (float[3,2] a, float[3,2] b, float[3,2] p) { p = MatMul(x, w1) q = MatMul(x, w2) a = Relu(p) b = Relu(q) }"
    assert merged(text, weights(w1=(4, 2), w2=(4, 2))).fired("activation_of_split") == 0


# ---- the mirror ----------------------------------------------------------------------------------------------------


def right(text: str, constants: dict[str, Any]) -> Done:
    done = apply(model_of(text, constants), combine_parallel_matmul_right(), "remove-unused")
    assert_same_results(done)
    return done


def test_products_that_share_the_right_operand() -> None:
    body = "{ a = MatMul(x, w) b = MatMul(z, w) }"
    assert (
        right(
            f"g (float[3,4] x, float[5,4] z) => (float[3,2] a, float[5,2] b) {body}",
            weights(w=(4, 2)),
        ).count("MatMul")
        == 1
    )
    rows = right(
        f"g (float[N,4] x, float[M,4] z) => (float[N,2] a, float[M,2] b) {body}", weights(w=(4, 2))
    )
    assert (rows.count("MatMul"), rows.count("Shape")) == (1, 2)
    batch = right(
        f"g (float[B,3,4] x, float[B,5,4] z) => (float[B,3,2] a, float[B,5,2] b) {body}",
        weights(w=(4, 2)),
    )
    assert batch.count("MatMul") == 1
    wide = right(
        f"g (float[3,4] x, float[5,4] z) => (float[6,3,2] a, float[6,5,2] b) {body}",
        weights(w=(6, 4, 2)),
    )
    assert wide.count("MatMul") == 1


@pytest.mark.parametrize(
    ("inputs", "outputs", "shape"),
    [
        ("float[4] x, float[4] z", "float[2] a, float[2] b", (4, 2)),
        ("float[1,3,4] x, float[2,3,4] z", "float[1,3,2] a, float[2,3,2] b", (4, 2)),
        ("float[3,4] x, float[5,4] z", "float[3] a, float[5] b", (4,)),
    ],
)
def test_the_mirror_must_not_fire(inputs: str, outputs: str, shape: tuple[int, ...]) -> None:
    text = f"g ({inputs}) => ({outputs}) {{ a = MatMul(x, w) b = MatMul(z, w) }}"
    assert right(text, weights(w=shape)).count("MatMul") == 2


@pytest.mark.parametrize("seed", range(20))
def test_every_group_that_is_left_alone_has_a_near_miss(seed: int) -> None:
    """Products and convolutions that share an operand: each is merged, or `--explain` names it."""
    rng = np.random.default_rng(seed)
    lines, outputs, typed, constants = [], [], [], {}
    for i in range(8):
        op = rng.choice(["MatMul", "Gemm", "Conv"])
        x = {"MatMul": "x", "Gemm": "x", "Conv": "z"}[op]
        read = x if rng.random() < 0.8 or op == "Conv" or not outputs else f"r{i}"
        if read != x:  # on a result before, as far as that has its shape
            lines.append(
                f"s{i} = Tanh({outputs[-1]}) t{i} = ReduceSum <keepdims = 0> (s{i}) r{i} = Add(x, t{i})"
            )
        n = int(rng.choice([4, 4, 6]))
        shape = (n, 3, *rng.choice([(1, 1), (3, 3)])) if op == "Conv" else (4, n)
        constants[f"w{i}"] = rng.standard_normal(shape).astype(np.float32)
        attrs = " <alpha = 2.0>" if op == "Gemm" and rng.random() < 0.3 else ""
        lines.append(f"y{i} = {op}{attrs} ({read}, w{i})")
        outputs.append(f"y{i}")
        size = 7 - shape[-1]
        typed.append(f"float[{f'1,{n},{size},{size}' if op == 'Conv' else f'5,{n}'}] y{i}")
    given = ", ".join(typed)
    text = f"g (float[5,4] x, float[1,3,6,6] z) => ({given}) {{ {' '.join(lines)} }}"
    model = model_of(text, constants)
    before = {tuple(n.output): n for n in model.graph.node}
    for merge in ("auto", "always", "never"):
        passes = ",".join(
            f"combine-parallel-{op}{{merge={merge}}}" for op in ("matmul", "gemm", "conv")
        )
        done = apply(model, passes, merge=merge)
        named = " ".join(
            f"{where.replace(',', ' ')} " for _, where, _ in done.trace.declined
        ).split()
        merged = {name for f in done.trace.rewrites for name in f.matched}
        for op in ("MatMul", "Gemm", "Conv"):
            readers: dict[str, list[str]] = {}
            for n in before.values():
                if n.op_type == op:
                    readers.setdefault(n.input[0], []).append(n.output[0])
            for group in readers.values():
                assert len(group) < 2 or {*group} <= {*named, *merged}, (op, group, merge)
