"""The printer, against golden files."""

from __future__ import annotations

from collections.abc import Callable

import onnx
from onnx import TensorProto, helper

from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.load import load
from onnxgrad.ir.ops import op
from tests.helpers import parse, unindented
from tests.ir.test_load import _rich

MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "attention": lambda: parse(
        """main (float[N,5,4] x, float[M,4] r) => (float[N,5,6] q, float[M,6] k)
        <float[4,6] wq, float[4,6] wk, float[2] small = {1, 0.333333343}, int64 one = {1}> {
          q = MatMul(x, wq)
          h = Gemm<alpha = 0.5, beta = 2.0>(r, wk)
          k = Softmax<axis = -1>(h)
          shape = Shape<start = 1>(x)
          square = Constant<value = float[2,2] {1.5, 2, 3, 4}>()
          big = Constant<value = float[9] {1, 2, 3, 4, 5, 6, 7, 8, 9}>()
          text = Constant<value_string = "say">()
          m, , deviation = LayerNormalization(q, small)
          f = com.vendor.Thing<kind = "a", ratios = [1.0, 2.5], none: strings = []>(q, , k)
        }"""
    ),
    "control": lambda: parse(
        """g (bool c, int64 n, float[2] x, float[2] d = {1, 2}) => (float[2] y, float[n,2] all) {
          y = If (c) <then_branch = t () => (float[2] p) { p = Neg(x) },
                      else_branch = e () => (float[2] p) <float[1] k = {3}> { p = Mul(x, k) }>
          l, all = Loop (n, c, x) <body = b (int64 i, bool go, float[2] v) => (bool on, float[2] w, float[2] out) {
            on = Identity(go)
            w = Add(v, y)
            out = Neg(w)
          }>
        }"""
    ),
    "types": lambda: parse(
        """g (seq(float[2,N]) s, optional(int64[]) o, map(int64, float[2]) m, bfloat16[] h, float8e4m3fn[1] e, float u)
        => (float[1] y) { y = Cast<to = 1>(e) }"""
    ),
}


def test_attributes_omitted_operands_and_constants(golden: Callable[[str, str], None]) -> None:
    model = MODELS["attention"]()
    model.graph.initializer.extend(
        helper.make_tensor(w, TensorProto.FLOAT, [4, 6], [0.0] * 24) for w in ("wq", "wk")
    )
    golden("ir_attention", str(load(model).main))


def test_nested_blocks_are_indented() -> None:
    assert str(load(MODELS["control"]()).main) == unindented("""
        g(c: bool[], n: i64[], x: f32[2], d: f32[2] default = [1, 2]) {
          y: f32[2] = If(c, then_branch={...}, else_branch={...})
            then_branch() {
              p: f32[2] = Neg(x)
              return p
            }
            else_branch(k: f32[1] const = [3]) {
              p: f32[2] = Mul(x, k)
              return p
            }
          l: f32[2], all: f32[unk__0,2] = Loop(n, c, x, body={...})
            body(i: i64[], go: bool[], v: f32[2]) {
              on: bool[] = Identity(go)
              w: f32[2] = Add(v, y)
              out: f32[2] = Neg(w)
              return on, w, out
            }
          return y, all
        }
    """)


def test_types_of_every_kind() -> None:
    assert str(load(MODELS["types"]()).main) == unindented("""
        g(s: seq(f32[2,N]), o: optional(i64[...]), m: map_type, h: bf16[...], e: f8e4m3fn[1], u: f32[]) {
          y: f32[1] = Cast(e, to=1)
          return y
        }
    """)


def test_functions_references_and_every_dtype(golden: Callable[[str, str], None]) -> None:
    program = load(_rich())
    functions = [block.text(":".join(key)) for key, block in program.functions.items()]
    golden("ir_rich", "\n".join([str(program.main), *functions]))


def test_every_binding_is_one_line() -> None:
    model = parse("g (float[2] x) => (float[2] y) { y = Neg(x) }")
    value = helper.make_tensor_type_proto(TensorProto.FLOAT, [2])
    sparse = helper.make_sparse_tensor(
        helper.make_tensor("", TensorProto.FLOAT, [1], [5.0]),
        helper.make_tensor("", TensorProto.INT64, [1], [1]),
        [3],
    )
    model.graph.node.append(helper.make_node("Optional", [], ["none"], type=value))
    model.graph.node.append(helper.make_node("Constant", [], ["sparse"], sparse_value=sparse))
    block = load(model).main
    with emitting(block):
        op.Neg(block.inputs[0])
    assert all("\n" not in str(b) for b in block.bindings)
    assert str(block).count("\n") == len(block.bindings) + 2


def test_a_tree_of_thousands_of_nodes_is_one_short_line() -> None:
    model = parse("""<ir_version: 8, opset_import: ["": 18, "ai.onnx.ml": 1]>
        g (float[N,1] x) => (float[N,1] y) { y = ai.onnx.ml.Scaler <offset = [0.0], scale = [1.0]> (x) }""")
    scale = model.graph.node[0].attribute[1]
    scale.floats.extend([2.0] * 1233)
    (binding,) = load(model).main.bindings
    assert str(binding).endswith("scale=[1, 2, 2, 2, 2, 2, 2, 2, ... 1,234 values])")
    tree = helper.make_node("TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml")
    for name in ("nodes_treeids", "nodes_nodeids", "nodes_featureids", "nodes_truenodeids"):
        tree.attribute.append(helper.make_attribute(name, [1_000_000_000] * 99))
    model.graph.node[0].CopyFrom(tree)
    block = load(model).main
    (binding,) = block.bindings
    assert str(binding) == "y: f32[N,1] = ai.onnx.ml::TreeEnsembleRegressor(x)"
    assert "nodes_nodeids=[1000000000, " in str(block), "the text of a block is all of it"
