"""Constant folding: what is folded, what never is, how much the file may grow, and what kills onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxgrad.passes.fold_constant import FoldConstant
from onnxgrad.verify.running.session import run
from tests.helpers import parse, unindented
from tests.rewriting import Done, apply, assert_same_results, model_of, weights

PASSES = "fold-constant,remove-unused"


def folded(text: str, constants: dict[str, Any] | None = None, **options: Any) -> Done:
    done = apply(model_of(text, constants, **options), PASSES)
    assert_same_results(done)
    return done


def size(model: Any) -> int:
    return len(model.SerializeToString())


def test_what_is_left_of_a_graph() -> None:
    text = """g (float[N,3] x) => (float[N,2] o) <float[2,3] w = {1, 2, 3, 4, 5, 6}, float[1] s = {0.5}, int64[1] one = {1}> {
        t = Transpose(w)
        u = Mul(t, s)
        e = Exp(s)
        v = Sub(u, e)
        y = MatMul(x, v)
        d = Shape(y)
        last = Gather(d, one)
        f = Cast<to=1>(last)
        o = Div(y, f)
      }"""
    assert folded(text).text == unindented("""
        g(x: f32[N,3], f_folded: f32[1] const = [2], v_folded: f32[3,2] const = [[-1.14872, 0.351279], [-0.648721, 0.851279], [-0.148721, 1.35128]]) {
          y: f32[N,2] = MatMul(x, v_folded)
          o: f32[N,2] = Div(y, f_folded)
          return o
        }
    """)


def test_numpy_and_onnxruntime_each_do_their_part() -> None:
    done = folded(
        "g (float[2] x) => (float[2] o) { a = Add(w, w) b = Exp(a) c = Neg(b) o = Mul(x, c) }",
        weights(w=(2,)),
    )
    assert done.ops == ["Mul"] and done.trace.rounded


def test_moving_elements_rounds_nothing() -> None:
    """The proof in float64 may then ask for the last digits."""
    done = folded(
        "g (float[2,3] x) => (float[2,3] o) { t = Transpose(w) o = Add(x, t) }", weights(w=(3, 2))
    )
    assert done.ops == ["Add"] and not done.trace.rounded
    scaled = folded(
        "g (float[2,3] x) => (float[2,3] o) { s = Exp(w) t = Transpose(s) o = Add(x, t) }",
        weights(w=(3, 2)),
    )
    assert scaled.ops == ["Add"] and scaled.trace.rounded, "though the last step only moves"


def test_constant_nodes_are_constants() -> None:
    text = """g (float[2] x) => (float[2] o) {
      a = Constant<value_floats=[1.0, 2.0]>() b = Constant<value_float=3.0>() c = Constant<value = float[2] {1, 2}>()
      d = Add(a, b) e = Mul(d, c) o = Add(x, e) }"""
    assert folded(text).ops == ["Add"]


def test_sizes_that_are_known_though_the_tensor_is_not() -> None:
    text = """g (float[N,6] x, float[4] z) => (float[] o) {
      s = Shape(x) k = Gather(s, one) p = Concat<axis=0>(minus, two, three)
      y = Reshape(x, p) t = Cast<to=1>(k) q = Mul(y, t) o = Identity(q) }"""
    constants = {
        "one": np.array([1]),
        "minus": np.array([-1]),
        "two": np.array([2]),
        "three": np.array([3]),
    }
    assert folded(text, constants).ops == ["Reshape", "Mul", "Identity"]


# ---- never ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "kept"),
    [
        ("r = RandomUniformLike(w) o = Add(x, r)", "RandomUniformLike"),
        ("r = RandomNormal<shape=[2]>() o = Add(x, r)", "RandomNormal"),
        ("r = Bernoulli(h) o = Add(x, r)", "Bernoulli"),
        ("t = Constant<value = bool {1}>() q = Constant<value_float=0.5>() r = Dropout(w, q, t) o = Add(x, r)", "Dropout"),
        ("z = Constant<value = uint8 {3}>() q = Constant<value_float=0.5>() k = QuantizeLinear(w, q, z)"
         " r = DequantizeLinear(k, q, z) o = Add(x, r)", "DequantizeLinear"),
        ("k = Constant<value = bool {1}>() r = If(k) <then_branch = t () => (float[2] u) { u = Neg(w) },"
         " else_branch = e () => (float[2] v) { v = Abs(w) }> o = Add(x, r)", "If"),
        ("n = Constant<value_int=3>() k = Constant<value = bool {1}>() r = Loop(n, k, w) <body = l (int64 i, bool c, float[2] v)"
         " => (bool d, float[2] s) { d = Identity(c) s = Add(v, v) }> o = Add(x, r)", "Loop"),
        ("r = Identity(w) o = Add(x, r)", "Identity"),
    ],
)  # fmt: skip
def test_never_folded(body: str, kept: str) -> None:
    model = model_of(
        f"g (float[2] x) => (float[2] o) {{ {body} }}",
        {**weights(w=(2,)), "h": np.full(2, 0.5, np.float32)},
    )
    assert kept in apply(model, PASSES).ops


def test_an_overridable_initializer_is_not_folded() -> None:
    text = "g (float[2] x, float[2] w = {1, 2}) => (float[2] o) { n = Neg(w) o = Add(x, n) }"
    done = folded(text)
    assert done.ops == ["Neg", "Add"]
    assert_same_results(done, feeds={"x": np.ones(2, np.float32), "w": np.full(2, 9, np.float32)})
    old = folded(text, ir_version=3, opset=8)
    assert (old.ops, old.count("Constant")) == (["Add"], 1), "below IR 4 it is a constant"


def test_an_output_stays_computed() -> None:
    assert folded(
        "g (float[2] x) => (float[2] n, float[2] o) { n = Neg(w) o = Add(x, n) }", weights(w=(2,))
    ).ops == [
        "Neg",
        "Add",
    ]


def test_another_domains_operator_of_that_name_is_not_folded() -> None:
    text = """<ir_version: 10, opset_import: ["" : 20, "my" : 1]>
    g (float[2] x) => (float[2] o) <float[2] w = {1, 2}> { n = my.Neg(w) o = Add(x, n) }
    <domain: "my", opset_import: ["" : 20]> Neg (u) => (v) { v = Exp(u) }"""
    assert folded(text).ops == ["Neg", "Add"]


# ---- growth --------------------------------------------------------------------------------------------------------


def test_the_file_does_not_grow_beyond_the_cap() -> None:
    """A few bytes that would become 400 MB (a published bug), and the same again in a chain."""
    text = "g (float[1] x) => (float[1] o) <int64[2] s = {10000, 10000}> { b = ConstantOfShape(s) c = ReduceSum(b) o = Add(x, c) }"
    done = apply(parse(text), PASSES)
    assert size(done.after) <= size(done.before) and "ConstantOfShape" in done.ops


def test_the_cap_is_for_all_foldings_of_a_run_together() -> None:
    body = (
        " ".join(f"b{i} = Expand(w, s{i})" for i in range(8))
        + " o = Sum(x, "
        + ", ".join(f"b{i}" for i in range(8))
        + ")"
    )
    constants = {**weights(w=(1,)), **{f"s{i}": np.array([1 + i, 100]) for i in range(8)}}
    text = f"g (float[] x) => (float[] o) {{ {body} }}"
    model = model_of(text, constants)
    done = apply(model, FoldConstant(max_growth=1500, max_share=9.0), rounds=4)
    assert 0 < done.fired("fold_constant") < 8 and size(done.after) < size(done.before) + 2000
    assert apply(model, FoldConstant(max_growth=0), rounds=2).fired("fold_constant") == 0
    assert apply(model, FoldConstant(max_share=99.0), rounds=2).fired("fold_constant") == 8


def test_explain_says_why_float16_weights_behind_casts_stay() -> None:
    """onnxruntime folds these Casts when it loads the file; folded, the file would be twice as large."""
    names = [f"w{i}" for i in range(4)]
    casts = " ".join(f"c{i} = Cast<to=1>({w})" for i, w in enumerate(names))
    model = model_of(
        f"g (float[100] x) => (float[100] o) {{ {casts} o = Sum(x, c0, c1, c2, c3) }}",
        {w: np.full(100, i + 0.5, np.float16) for i, w in enumerate(names)},
    )
    done = apply(model, FoldConstant(max_share=0.35))
    assert done.fired("fold_constant") == 2
    why = "the file would grow by more than max_share or max_growth of fold-constant"
    assert done.reasons("fold_constant") == [why] * 2
    assert not apply(model, FoldConstant(max_share=9.0)).declined


def test_a_weight_that_only_the_folding_needs_does_not_count() -> None:
    done = apply(
        model_of(
            "g (float[3,600] x) => (float[3,500] o) { t = Transpose(w) o = MatMul(x, t) }",
            weights(w=(500, 600)),
        ),
        PASSES,
    )
    assert done.ops == ["MatMul"] and size(done.after) <= size(done.before)


@pytest.mark.parametrize("kind", ["initializer", "constant"])
def test_tied_weights_stay_tied(kind: str) -> None:
    """An embedding used as the output layer too: Identity and Transpose of one initializer in several places."""
    w = weights(w=(600, 500))["w"]
    text = """g (int64[3] i, float[3,500] x) => (float[3,500] e, float[3,600] l, float[3,600] m) {
      a = Identity(w) e = Gather(a, i) b = Identity(w) t = Transpose(b) l = MatMul(x, t)
      c = Identity(w) u = Transpose(c) m = MatMul(x, u) }"""
    if kind == "constant":
        from onnx import helper, numpy_helper

        model = model_of(text)
        node = helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(w))
        model.graph.node.insert(0, node)
    else:
        model = model_of(text, {"w": w})
    done = apply(model, "remove-unused,remove-noops,fold-constant,merge-equal", rounds=3)
    assert_same_results(done)
    assert size(done.after) < size(done.before) + 500, "one copy of the weight"
    assert done.count("Identity") == 0 and done.count("Transpose") == 1


def test_half_precision_constants_and_integers_keep_their_dtype() -> None:
    text = """g (float16[2] x, int32[2] i) => (float16[2] o, int32[2] j) {
      a = Add(h, h) b = Exp(a) o = Add(x, b) k = Mul(n, n) j = Add(i, k) }"""
    done = folded(text, {"h": np.array([1, 2], np.float16), "n": np.array([70000, -3], np.int32)})
    assert done.ops == ["Add", "Add"]


# ---- what kills onnxruntime ----------------------------------------------------------------------------------------


def test_int64_min_divided_by_minus_one_is_left_alone_and_the_rest_is_folded() -> None:
    """onnxruntime dies of SIGFPE on it, also while it folds; it runs in a child, and its other answers are kept."""
    text = """g (int64[1] x, float[2] y) => (int64[1] o, float[2] p) {
      q = Div(a, b) r = Mod(c, d) s = Add(q, r) o = Add(x, s) e = Exp(w) p = Add(y, e) }"""
    constants = {
        "a": np.array([-(2**63)]),
        "b": np.array([-1]),
        "c": np.array([7]),
        "d": np.array([4]),
        **weights(w=(2,)),
    }
    done = apply(model_of(text, constants), PASSES)
    assert done.ops == ["Div", "Add", "Add", "Add"]  # Mod(7, 4) needs no child


def test_an_operand_out_of_bounds_is_left_to_the_run() -> None:
    text = "g (float[1] x) => (float[1] o) { e = Gather(w, i) o = Add(x, e) }"
    done = apply(model_of(text, {**weights(w=(2,)), "i": np.array([5])}), PASSES)
    assert done.ops == ["Gather", "Add"]


# ---- shape arithmetic that only looks like it ----------------------------------------------------------------------


def test_rows_of_a_constant_matrix() -> None:
    """Row 1 of [[1, 2], [3, 4]] is [3, 4], not 2."""
    text = """g (float[12] x) => (float[] o) {
      m = Constant<value = int64[2,2] {1, 2, 3, 4}>() i = Constant<value_int=1>() r = Gather<axis=0>(m, i) o = Reshape(x, r) }"""
    done = folded(text)
    assert [v.ints for v in done.block.initializers.values()] == [(3, 4)]


@pytest.mark.parametrize("mask", [[1.0, 0.0, 2.0], [0.0, 0.0, 0.0]])
def test_where_a_constant_is_not_zero(mask: list[float]) -> None:
    """As Longformer writes x[mask]: the number of results is that of the elements that are not zero."""
    text = """g (float[3] x) => (float[] y) {
      i = NonZero(m)  t = Transpose<perm = [1, 0]>(i)  y = GatherND(x, t) }"""
    done = folded(text, {"m": np.array(mask, np.float32)})
    assert done.ops == ["GatherND"]


def test_sizes_through_floats_and_booleans() -> None:
    text = """g (float[7] x, float[2] y, float[6] z) => (float[] o) {
      a = Shape(x) b = Shape(y) c = Cast<to=1>(a) d = Cast<to=1>(b) q = Div(c, d) r = Mul(q, d) s = Cast<to=7>(r)
      t = Sub(s, one) o = Reshape(z, t) }"""
    done = folded(text, {"one": np.array([1])})
    assert done.block.outputs[0].definition.op == "Reshape"
    text = """g (float[7] x, float[N] y) => (int64[1] o) {
      a = Shape(x) b = Cast<to=9>(a) c = Cast<to=7>(b) d = Shape(y) o = Add(c, d) }"""
    folded(text)


def test_a_backward_slice_that_starts_before_the_beginning() -> None:
    text = """g (float[2,3] x, float[2] y) => (float[] o) {
      s = Shape(x) t = Slice(s, a, b, c, d) o = Expand(y, t) }"""
    constants = {
        "a": np.array([-9]),
        "b": np.array([-(2**62) - 1]),
        "c": np.array([0]),
        "d": np.array([-1]),
    }
    folded(text, constants)


def test_a_function_body_with_its_own_constants_and_references() -> None:
    text = """<ir_version: 10, opset_import: ["" : 20, "my" : 1]>
    g (float[2] x) => (float[2] o) { o = my.f<to=1, s=0>(x) }
    <domain: "my", opset_import: ["" : 20]> f <to, s> (u) => (w) {
      a = Constant<value_floats=[1.0, 2.0]>() b = Neg(a) c = Constant<value_ints=[2, 3]>() d = Cast<to: int = @to>(c)
      e = Shape<start: int = @s>(u) f = Cast<to=1>(e) h = Add(b, f) k = Add(d, h) w = Add(u, k) }"""
    done = apply(parse(text), PASSES)
    assert_same_results(done)
    (function,) = done.program.functions.values()
    assert "Neg" not in [b.op for b in function.bindings] and "Cast" in [
        b.op for b in function.bindings
    ]


def test_the_constants_of_a_branch_fold_in_the_branch() -> None:
    text = """g (bool k, float[2] x) => (float[2] o) {
      o = If (k) <then_branch = t () => (float[2] u) { n = Exp(w) m = Neg(n) u = Add(x, m) },
                  else_branch = e () => (float[2] v) { v = Abs(x) }> }"""
    done = folded(text, weights(w=(2,)))
    assert done.count("Exp", "Neg") == 0


FLATTEN = """g (float[N,3,M] x) => (float[N,K] y) <int64[1] i = {0}, int64[1] one = {1}, int64[1] six = {6}, int64[1] open = {-1}>
  { s = Shape(x)  n = Gather<axis = 0>(s, i)  t = Concat<axis = 0>(SIZES)  y = Reshape(x, t) }"""


@pytest.mark.parametrize(
    ("sizes", "settled"),
    [
        ("n, six", [-1, 6]),
        ("six, n", [6, -1]),
        ("n, open", [0, -1]),
        ("one, n", [1, -1]),
        ("n, n", None),
        ("six, k", None),
    ],
)
def test_a_reshape_with_one_open_size_needs_no_shape_arithmetic(
    sizes: str, settled: list[int] | None
) -> None:
    text = FLATTEN.replace("SIZES", sizes)
    if "k" in sizes:  # a size that the caller gives may be 0 or -1
        text = text.replace("x) =>", "x, int64[1] k) =>")
    done = apply(parse(text), "fold-constant")
    found = next(b for b in done.program.main.bindings if b.op == "Reshape").inputs[1]
    assert found is not None and found.ints == (None if settled is None else tuple(settled))
    assert settled is None or done.counts["Shape"] == 0


def test_the_settled_reshape_computes_the_same() -> None:
    text = FLATTEN.replace("SIZES", "n, six").replace("float[N,3,M] x", "float[N,3,2] x")
    done = apply(parse(text), "fold-constant")
    assert done.ops == ["Reshape"]
    done.prove()
    for rows in (0, 1, 3):
        x = np.arange(rows * 6, dtype=np.float32).reshape(rows, 3, 2)
        np.testing.assert_array_equal(run(done.after, {"x": x})["y"], x.reshape(rows, 6))


@pytest.mark.parametrize(
    ("body", "ops"),
    [
        ("p, q = Split<axis=1>(w, k) a = Add(x, p) o = Mul(a, q)", ["Add", "Mul"]),
        ("p, q = TopK(w, two) f = Cast<to=1>(q) a = Add(x, p) o = Mul(a, f)", ["Add", "Mul"]),
        ("p, q = TopK(x, two) o = Mul(p, p)", ["TopK", "Mul"]),
        ("p, q = Split<axis=1>(w, k) o = Mul(x, q)", ["Mul"]),
    ],
)  # fmt: skip
def test_operators_with_several_results(body: str, ops: list[str]) -> None:
    values = {**weights(w=(3, 4)), "k": np.array([2, 2]), "two": np.array([2])}
    done = folded(f"g (float[3,2] x) => (float[3,2] o) {{ {body} }}", values)
    assert done.ops == ops
    assert done.trace.rounded is ("TopK(w" in body)


def test_a_result_that_is_an_output_keeps_its_operator() -> None:
    text = "g (float[3,2] x) => (float[3,2] p, float[3,2] o) { p, q = Split<axis=1>(w, k) o = Mul(x, q) }"
    assert folded(text, {**weights(w=(3, 4)), "k": np.array([2, 2])}).ops == ["Split", "Mul"]
