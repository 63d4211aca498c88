"""The default pipeline, everything merged, on graphs made to trip it: interfaces, captures, defaults, empty sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import onnxgrad
from onnxgrad import P, capture, rewrite
from onnxgrad.errors import InputError
from onnxgrad.ir.load import load
from onnxgrad.ir.save import save
from onnxgrad.passes.pipeline import Pipeline
from onnxgrad.passes.rule_passes import raise_for_onnxruntime
from onnxgrad.verify import run
from tests.helpers import parse
from tests.rewriting import Done, apply, assert_same_results, model_of, weights

W = {"w1": (4, 4), "w2": (4, 4), "w3": (4, 4)}


def optimized(model: Any, **options: Any) -> Done:
    return apply(model, rounds=2, merge="always", **options)


def same(text: str, constants: dict[str, Any] | None = None, **options: Any) -> Done:
    done = optimized(model_of(text, constants, **options))
    assert_same_results(done)
    return done


def test_merged_products_that_nested_blocks_read() -> None:
    done = same(
        """g (bool k, float[3,4] x) => (float[3,4] o) {
          p = MatMul(x, w1) q = MatMul(x, w2)
          o = If (k) <
            then_branch = t () => (float[3,4] r) { r = Add(p, q) },
            else_branch = e () => (float[3,4] s) { n = Neg(p) s = Identity(n) }>
        }""",
        weights(**W),
    )
    assert done.count("MatMul") == 1


def test_a_branch_that_returns_a_merged_product() -> None:
    same(
        """g (bool k, float[3,4] x) => (float[3,4] o, float[3,4] p) {
          p = MatMul(x, w1) q = MatMul(x, w2)
          o = If (k) <
            then_branch = t () => (float[3,4] r) { r = Identity(q) },
            else_branch = e () => (float[3,4] s) { s = Identity(p) }>
        }""",
        weights(**W),
    )


def test_products_of_a_loop_carried_value() -> None:
    done = same(
        """g (float[3,4] x) => (float[3,4] o) <int64 n = {3}, bool yes = {1}> {
          o = Loop (n, yes, x) <body = b (int64 i, bool c, float[3,4] h) => (bool d, float[3,4] r) {
            d = Identity(c) p = MatMul(h, w1) q = MatMul(h, w2) s = Tanh(p) t = Tanh(q) r = Mul(s, t) }>
        }""",
        weights(**W),
    )
    assert (done.count("MatMul"), done.count("Tanh")) == (1, 1)


def test_weights_that_a_caller_may_override() -> None:
    text = """g (float[3,4] x, float[4,2] u = {1, 2, 3, 4, 5, 6, 7, 8}, float[4,2] v = {8, 7, 6, 5, 4, 3, 2, 1})
      => (float[3,2] a, float[3,2] b) { a = MatMul(x, u) b = MatMul(x, v) }"""
    done = same(text)
    assert (
        done.count("MatMul") == 1
        and len(done.after.graph.initializer) == len(done.after.graph.input) - 1 + 1
    )
    feeds = {
        "x": np.ones((3, 4), np.float32),
        "u": np.full((4, 2), 3, np.float32),
        "v": np.eye(4, 2, dtype=np.float32),
    }
    assert_same_results(done, feeds=feeds)


def test_a_bias_that_a_caller_may_override_is_not_folded() -> None:
    text = """g (float[3,4] x, float[2] c = {1, 2}) => (float[3,2] a, float[3,2] b) {
      p = MatMul(x, w1) a = Add(p, c) q = MatMul(x, w2) b = Add(q, c) }"""
    done = same(text, weights(w1=(4, 2), w2=(4, 2)))
    assert_same_results(
        done, feeds={"x": np.ones((3, 4), np.float32), "c": np.full(2, 9, np.float32)}
    )


def test_below_ir_4_a_new_constant_is_no_initializer() -> None:
    """There every initializer must be a graph input too, and the interface is sacred."""
    text = "g (float[3,4] x, float[4,4] w1, float[4,4] w2) => (float[3,4] a, float[3,4] b) { a = MatMul(x, w1) b = MatMul(x, w2) }"
    done = same(text, weights(w1=(4, 4), w2=(4, 4)), opset=8, ir_version=3)
    onnx.checker.check_model(done.after)
    assert done.count("MatMul") == 1 and [i.name for i in done.after.graph.input] == [
        "x",
        "w1",
        "w2",
    ]


def test_the_domain_spelled_out() -> None:
    model = model_of(
        "g (float[3,4] x) => (float[3,4] a, float[3,4] b) { p = Identity(x) a = MatMul(p, w1) b = MatMul(x, w2) }",
        weights(**W),
    )
    for node in model.graph.node:
        node.domain = "ai.onnx"
    model.opset_import[0].domain = "ai.onnx"
    done = optimized(model)
    assert_same_results(done)
    assert done.count("MatMul") == 1 and [o.domain for o in done.after.opset_import] == ["ai.onnx"]


def test_an_output_twice_and_an_input_as_output() -> None:
    done = optimized(
        model_of(
            "g (float[3,4] x) => (float[3,4] a, float[3,4] b, float[3,4] x) { a = MatMul(x, w1) b = MatMul(x, w2) }",
            weights(**W),
        )
    )
    assert [o.name for o in done.after.graph.output] == ["a", "b", "x"]
    twice = optimized(
        model_of(
            "g (float[3,4] x) => (float[3,4] a, float[3,4] b, float[3,4] a) { a = MatMul(x, w1) b = MatMul(x, w2) }",
            weights(**W),
        )
    )
    assert [o.name for o in twice.after.graph.output] == ["a", "b", "a"] and twice.count(
        "MatMul"
    ) == 1


def test_a_pinned_product_keeps_its_name() -> None:
    model = model_of(
        "g (float[3,4] x) => (float[3,4] o) { a = MatMul(x, w1) b = MatMul(x, w2) o = Add(a, b) }",
        weights(**W),
    )
    model.graph.quantization_annotation.add(tensor_name="b")
    done = optimized(model)
    assert_same_results(done)
    assert done.count("MatMul") == 1 and "b" in {
        name for n in done.after.graph.node for name in n.output
    }


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_empty_and_single_rows(rows: int) -> None:
    text = f"""g (float[{rows},4] x) => (float[{rows},4] a, float[{rows},4] b, float[4,{rows}] t) {{
      p = MatMul(x, w1) a = Relu(p) q = MatMul(x, w2) b = Relu(q) r = MatMul(x, w3) t = Transpose(r) }}"""
    same(text, weights(**W))


def test_columns_of_no_width() -> None:
    text = (
        "g (float[3,4] x) => (float[3,0] a, float[3,2] b) { a = MatMul(x, w1) b = MatMul(x, w2) }"
    )
    same(text, weights(w1=(4, 0), w2=(4, 2)))


def test_duplicate_and_empty_node_names() -> None:
    model = model_of(
        "g (float[3,4] x) => (float[3,4] a, float[3,4] b) { p = Identity(x) a = MatMul(p, w1) b = MatMul(x, w2) }",
        weights(**W),
    )
    for node in model.graph.node[:2]:
        node.name = "same"
    done = optimized(
        model
    )  # onnxruntime refuses the original, and what comes out once the names are no longer both there
    assert done.count("MatMul") == 1
    assert run(done.after, {"x": np.ones((3, 4), np.float32)})


def test_names_of_new_values_meet_no_old_ones() -> None:
    text = """g (float[3,4] matmul, float[3,4] split) => (float[3,4] w1_merged, float[3,4] const, float[3,4] split_2) {
      w1_merged = MatMul(matmul, w1) const = MatMul(matmul, w2) split_2 = MatMul(split, w3) }"""
    assert same(text, weights(**W)).count("MatMul") == 2


def test_two_branches_of_an_if_may_use_the_same_names() -> None:
    branch = "{ p = MatMul(x, w1) q = MatMul(x, w2) r = Add(p, q) }"
    text = f"""g (bool k, float[3,4] x) => (float[3,4] o) {{
      o = If (k) <then_branch = t () => (float[3,4] r) {branch}, else_branch = e () => (float[3,4] r) {branch.replace("Add", "Sub")}> }}"""
    assert same(text, weights(**W)).count("MatMul") == 2


def test_sequences_optionals_and_strings_pass_through() -> None:
    text = """g (float[3,4] x, string[2] s) => (float[3,4] o, bool[2] e) {
      a = Identity(x) b = Identity(a) l = SequenceConstruct(a, b) i = Constant<value_int=1>() c = SequenceAt(l, i)
      m = Optional(c) h = OptionalGetElement(m) o = Neg(h) t = Identity(s) e = Equal(t, s) }"""
    same(text)


def test_weights_in_external_files(tmp_path: Path) -> None:
    model = model_of(
        "g (float[3,4] x) => (float[3,4] a, float[3,4] b) { p = Identity(x) a = MatMul(p, w1) b = MatMul(x, w2) }",
        weights(**W),
    )
    source, target = tmp_path / "in.onnx", tmp_path / "out.onnx"
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    onnx.save(copy, source, save_as_external_data=True, location="in.data", size_threshold=0)
    program = load(str(source))
    Pipeline.of(merge="always").run(program)
    save(program, target)
    feeds = {"x": np.ones((3, 4), np.float32)}
    want, got = run(model, feeds), run(target, feeds)
    assert all(np.allclose(np.asarray(want[n]), np.asarray(got[n])) for n in want)
    assert (
        sum(n.op_type == "MatMul" for n in onnx.load(target, load_external_data=False).graph.node)
        == 1
    )


@pytest.mark.parametrize("opset", [9, 11, 13, 18, 20])
def test_a_small_network_at_every_opset(opset: int) -> None:
    text = """g (float[N,4] x) => (float[N,4] a, float[4,N] b) {
      i = Identity(x) t1 = Transpose<perm=[1,0]>(w1) p = MatMul(i, t1) q = Add(p, c1) r = Relu(q)
      t2 = Transpose<perm=[1,0]>(w2) s = MatMul(x, t2) u = Add(s, c2) v = Relu(u)
      a = Mul(r, v) m = MatMul(a, w3) b = Transpose<perm=[1,0]>(m) }"""
    done = same(text, weights(**W, c1=(4,), c2=(4,)), opset=opset, ir_version=8)
    counts = [done.count(name) for name in ("Gemm", "MatMul", "Relu", "Identity")]
    assert counts == [1, 1, 1, 0]


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT16, TensorProto.DOUBLE])
def test_other_float_dtypes(dtype: int) -> None:
    name = {TensorProto.FLOAT16: "float16", TensorProto.DOUBLE: "double"}[dtype]
    kind = onnx.helper.tensor_dtype_to_np_dtype(dtype)
    text = f"""g ({name}[3,4] x) => ({name}[3,4] a, {name}[3,4] b) {{
      t = Transpose<perm=[1,0]>(w1) p = MatMul(x, t) a = Add(p, c1) b = MatMul(x, w2) }}"""
    constants = {n: v.astype(kind) for n, v in weights(w1=(4, 4), w2=(4, 4), c1=(4,)).items()}
    done = same(text, constants)
    assert done.count("MatMul") + done.count("Gemm") == 1


def test_rules_of_the_user_see_the_products_before_they_are_gemms() -> None:
    x, w, c = capture("x w c")
    seen: list[str] = []

    @rewrite(P.Relu(P.Add(P.MatMul(x, w), c)))
    def look(x: Any, w: Any, c: Any) -> Any:
        """Nothing changes."""
        seen.append(w.name)

    text = "g (float[N,4] x) => (float[N,4] y) { m = MatMul(x, w1) a = Add(m, c1) y = Relu(a) }"
    model = model_of(text, weights(**W, c1=(4,)))
    done = onnxgrad.optimize(model, passes=["default", look], verify=False)
    assert seen and [n.op_type for n in done.graph.node] == ["Gemm", "Relu"]


def test_mixed_dtypes_never_meet() -> None:
    text = """g (float[3,4] x) => (float[3,4] a, double[3,4] b, float[3,4] c) {
      y = Cast<to=11>(x) a = MatMul(x, w1) b = MatMul(y, w2) c = MatMul(x, w3) }"""
    constants = weights(**W)
    constants["w2"] = constants["w2"].astype(np.float64)
    assert same(text, constants).count("MatMul") == 2


def test_tied_weights_through_a_transposed_output_layer_stay_one_tensor() -> None:
    text = """g (int64[3] i) => (float[3,600] l) {
      e = Gather(w, i) t = Transpose<perm=[1,0]>(w) l = MatMul(e, t) }"""
    model = model_of(text, weights(w=(600, 500)))
    done = apply(model, rounds=3)
    assert len(done.after.SerializeToString()) < len(model.SerializeToString()) + 1000


def test_a_function_called_like_an_operator_is_no_operator() -> None:
    text = """<ir_version: 10, opset_import: ["" : 20, "my" : 1]>
    g (float[2,2] x) => (float[2,2] o) { t = my.Transpose(x) u = my.Transpose(t) o = my.Identity(u) }
    <domain: "my", opset_import: ["" : 20]> Transpose (a) => (b) { b = Exp(a) }
    <domain: "my", opset_import: ["" : 20]> Identity (a) => (b) { b = Neg(a) }"""
    assert_same_results(optimized(parse(text)))


def test_a_runtime_adds_its_pass_behind_the_one_for_all() -> None:
    names = [p.name for p in Pipeline.of(for_="onnxruntime").passes]
    assert names.index("raise-for-onnxruntime") == names.index("raise-composites") + 1
    plain = [p.name for p in Pipeline.of().passes]
    assert [n for n in names if n != "raise-for-onnxruntime"] == plain
    last = Pipeline.of(passes="remove-unused,remove-noops", for_="onnxruntime", provider="cuda")
    assert last.passes[-1] == raise_for_onnxruntime(provider="cuda") and len(last.passes) == 3
    there = "raise-for-onnxruntime,remove-unused"
    assert len(Pipeline.of(passes=there, for_="onnxruntime").passes) == 2
    with pytest.raises(InputError, match="unknown runtime 'tvm': choose one of onnxruntime"):
        Pipeline.of(for_="tvm")


def test_nothing_is_written_for_a_runtime_on_another_provider() -> None:
    assert raise_for_onnxruntime().laws and not raise_for_onnxruntime(provider="cuda").laws
