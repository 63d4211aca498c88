from __future__ import annotations

from pathlib import Path

import onnx
import onnxruntime
import pytest

from onnxgrad.ir.load import load
from onnxgrad.passes.outline import fusion_groups
from tests.backend_suite import clamp_ir, usable
from tests.helpers import MODELS_DIR, parse, unindented
from tests.passes.same_graph import canonical
from tests.rewriting import Done, apply

FIVE = "g (float[4] x, float[4] p) => (float[4] y) { a=Add(x,p) b=Add(a,p) c=Add(b,p) d=Add(c,p) e=Add(d,p) y=Exp(e) }"
SUM = """g (float[4,5] x, float[5] p) => (float[4,1] y) <int64[1] axes = {1}, float[1] q = {2.0}>
  { a = Add(x, p)  b = Add(a, p)  c = ReduceSum(b, axes)  y = Add(c, q) }"""


def groups(text: str, max_size: int = 256) -> list[list[str]]:
    return [[b.op for b in g] for g in fusion_groups(load(parse(text)).main, max_size)]


def whole(done: Done) -> str:
    return "\n".join([done.text, *map(str, done.program.functions.values())])


def test_five_adds_and_an_exp_are_one_function() -> None:
    done = apply(parse(FIVE), "outline")
    assert len(done.ops) == 1 and len(done.program.functions) == 1
    assert whole(done) == unindented("""
        g(x: f32[4], p: f32[4]) {
          y: f32[4] = onnxgrad::fused_add_add_add_add_add_exp(x, p)
          return y
        }
        fused_add_add_add_add_add_exp(x, p) {
          a = Add(x, p)
          b = Add(a, p)
          c = Add(b, p)
          d = Add(c, p)
          e = Add(d, p)
          y = Exp(e)
          return y
        }
    """)
    done.prove()


def test_a_reduction_ends_a_group() -> None:
    done = apply(parse(SUM), "outline")
    assert groups(SUM) == [["Add", "Add", "ReduceSum"], ["Add"]]
    assert len(done.ops) == 2 and len(done.program.functions) == 2
    assert whole(done) == unindented("""
        g(x: f32[4,5], p: f32[5], axes: i64[1] const = [1], q: f32[1] const = [2]) {
          c: f32[4,1] = onnxgrad::fused_add_add_reducesum(x, p, axes)
          y: f32[4,1] = onnxgrad::fused_add(c, q)
          return y
        }
        fused_add_add_reducesum(x, p, axes) {
          a = Add(x, p)
          b = Add(a, p)
          c = ReduceSum(b, axes)
          return c
        }
        fused_add(c, q) {
          y = Add(c, q)
          return y
        }
    """)
    done.prove()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        # elementwise work follows a product in its loop, through a diamond as well
        ("a = MatMul(x, x)  b = Relu(a)  y = Tanh(b)", [["MatMul", "Relu", "Tanh"]]),
        (
            "a = MatMul(x, x)  b = Relu(a)  c = Tanh(a)  y = Add(b, c)",
            [["MatMul", "Relu", "Tanh", "Add"]],
        ),
        # one product to a group
        ("a = MatMul(x, x)  b = MatMul(a, x)  y = Neg(b)", [["MatMul"], ["MatMul", "Neg"]]),
        ("a = MatMul(x, x)  b = MatMul(x, x)  y = Add(a, b)", [["MatMul", "Add"], ["MatMul"]]),
        # what is read outside of every path stays outside
        ("a = Neg(x)  b = Softmax(a)  c = Abs(a)  y = Add(b, c)", [["Neg"], ["Abs", "Add"]]),
        # injective bindings join in the second phase
        ("a = Transpose(x)  y = Neg(a)", [["Transpose", "Neg"]]),
        ("a = Neg(x)  b = Transpose(a)  y = Abs(b)", [["Neg", "Transpose", "Abs"]]),
        # when the product's group is complete already, which they would keep from its loop
        ("a = Transpose(x)  b = MatMul(x, x)  y = Add(a, b)", [["Transpose"], ["MatMul", "Add"]]),
        # before a product comes a group of its own
        ("a = Neg(x)  y = MatMul(a, x)", [["Neg"], ["MatMul"]]),
        # opaque operators are in no group
        ("a = Softmax(x)  y = Neg(a)", [["Neg"]]),
    ],
)
def test_groups(body: str, expected: list[list[str]]) -> None:
    text = f"g (float[4,4] x) => (float[4,4] y) {{ {body} }}"
    assert sorted(groups(text)) == sorted(expected)
    done = apply(parse(text), "outline")
    done.prove()


def test_a_graph_output_inside_ends_a_group() -> None:
    text = "g (float[4] x) => (float[4] a, float[4] y) { a = Neg(x)  y = Abs(a) }"
    assert groups(text) == [["Neg"], ["Abs"]]
    done = apply(parse(text), "outline")
    assert [o.name for o in done.after.graph.output] == ["a", "y"]
    done.prove()


def test_a_value_that_a_nested_graph_captures_ends_a_group() -> None:
    text = """g (float[4] x, bool c) => (float[4] y) { a = Neg(x)  b = Abs(a)
      t = If (c) <then_branch = t () => (float[4] u) { u = Sqrt(b) }, else_branch = e () => (float[4] v) { w = Neg(b) v = Exp(w) }>
      y = Add(b, t) }"""
    done = apply(parse(text), "outline")
    assert done.counts["fused_neg_exp"] == 1 and done.counts["fused_neg_abs"] == 1
    done.prove()


def test_limits() -> None:
    assert groups(FIVE, 2) == [["Add", "Add"], ["Add", "Add"], ["Add", "Exp"]]
    assert apply(parse(FIVE), "outline{min_size=7}").ops == ["Add"] * 5 + ["Exp"]


def test_bindings_of_different_devices_do_not_share_a_group() -> None:
    given = parse("g (float[4] x) => (float[4] y) { a = Neg(x)  b = Abs(a)  y = Exp(b) }")
    given.graph.node[2].metadata_props.add(key="layer_ann", value="gpu")
    done = apply(given, "outline")
    assert done.ops == ["fused_neg_abs", "fused_exp"]
    assert [e.value for e in done.after.graph.node[1].metadata_props if e.key == "layer_ann"] == [
        "gpu"
    ]


def test_equal_groups_share_a_function() -> None:
    body = "a = Neg(x)  b = Abs(a)  s = Softmax(b)  c = Neg(s)  y = Abs(c)"
    done = apply(parse(f"g (float[4] x) => (float[4] y) {{ {body} }}"), "outline")
    assert (
        done.ops == ["fused_neg_abs", "Softmax", "fused_neg_abs"]
        and len(done.program.functions) == 1
    )
    done.prove()


def test_before_ir_8_there_are_no_functions() -> None:
    given = parse(FIVE, opset=12, ir_version=7)
    done = apply(given, "outline")
    assert done.after == given and "has no functions" in done.declined


def round_trip(path: Path) -> None:
    model = onnx.load(path)
    outlined = apply(model, "outline{min_size=2}")
    assert outlined.trace.rewrites
    again = apply(outlined.after, "inline{names=onnxgrad::*}")
    if (
        model.ir_version < 10
    ):  # nodes have no metadata yet, in which a call remembers names and places
        assert canonical(again.after) == canonical(model)
        return
    # field for field, names and the order of nodes included; value_info is a set
    assert sorted_declarations(again.after) == sorted_declarations(model)


def sorted_declarations(model: onnx.ModelProto) -> onnx.ModelProto:
    found = onnx.ModelProto()
    found.CopyFrom(model)
    for graph in (
        found.graph,
        *(a.g for n in found.graph.node for a in n.attribute if a.type == a.GRAPH),
    ):
        infos = sorted(graph.value_info, key=lambda v: v.name)
        copies = [onnx.ValueInfoProto.FromString(v.SerializeToString()) for v in infos]
        del graph.value_info[:]
        graph.value_info.extend(copies)
    return found


@pytest.mark.parametrize("name", ["resnet18", "lstmcell", "mobilenet_v2.raw"])
def test_inline_is_the_inverse(name: str) -> None:
    round_trip(MODELS_DIR / f"{name}.onnx")


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(MODELS_DIR.glob("*.onnx")), ids=lambda p: p.stem)
def test_inline_is_the_inverse_on_every_model(path: Path) -> None:
    round_trip(path)


def declared() -> onnx.ModelProto:
    """Two groups that are equal but for what is declared inside, out of their natural order, with names and notes."""
    given = parse("""g (float[N] x, float[N] z) => (float[N] y, float[N] w) {
      a = Neg(x)  c = Neg(z)  b = Abs(a)  y = Exp(b)  d = Abs(c)  w = Exp(d) }""")
    for name, size in (("a", "N"), ("b", "N"), ("c", "M")):
        given.graph.value_info.append(
            onnx.helper.make_tensor_value_info(name, 1, [size], doc_string=f"about {name}")
        )
    for n, name in zip(
        given.graph.node, ["first", "", "second", "third", "fourth", "fifth"], strict=True
    ):
        n.name, n.doc_string = name, f"node {name}"
    return given


def test_declared_types_names_and_order_come_back() -> None:
    given = declared()
    outlined = apply(given, "outline")
    assert [len(f.value_info) for f in outlined.after.functions] == [2, 1]
    assert not outlined.after.graph.value_info
    onnx.checker.check_model(outlined.after)
    outlined.prove()
    again = apply(outlined.after, "inline{names=onnxgrad::*}")
    assert sorted_declarations(again.after) == sorted_declarations(given)
    assert sorted_declarations(
        apply(given, "outline,inline{names=onnxgrad::*}").after
    ) == sorted_declarations(given)


def test_a_name_that_was_taken_meanwhile_is_made_anew() -> None:
    outlined = apply(declared(), "outline").after
    outlined.graph.node.append(onnx.helper.make_node("Identity", ["x"], ["a"], name="first"))
    outlined.graph.output.append(onnx.helper.make_tensor_value_info("a", 1, ["N"]))
    again = apply(outlined, "inline{names=onnxgrad::*}")
    names = [n for node in again.after.graph.node for n in node.output]
    assert len(set(names)) == len(names) == 7 and {"b", "c", "d"} <= set(names)
    assert len({n.name for n in again.after.graph.node if n.name}) == 6
    again.prove()


def test_positions_mean_nothing_while_a_group_stays() -> None:
    outlined = apply(declared(), "outline")
    first = outlined.after.functions[0].name
    again = apply(outlined.after, f"inline{{names={first}}}")
    assert len(again.program.functions) == 1
    assert [n.op_type for n in again.after.graph.node].count("Neg") == 1
    again.prove()


def test_a_damaged_note_is_no_note() -> None:
    outlined = apply(declared(), "outline").after
    for n in outlined.graph.node:
        next(e for e in n.metadata_props if e.key == "onnxgrad.outlined").value = "[[1, 2]]"
    again = apply(outlined, "inline{names=onnxgrad::*}")
    assert sorted(again.ops) == ["Abs", "Abs", "Exp", "Exp", "Neg", "Neg"]
    again.prove()


@pytest.mark.slow
def test_inline_is_the_inverse_on_the_whole_suite() -> None:
    wrong = []
    for case in usable():
        model = clamp_ir(case.model)
        outlined = apply(model, "outline")
        if outlined.trace.rewrites:
            again = apply(outlined.after, "inline{names=onnxgrad::*}").after
            # before IR version 10 nothing has room for the note, so names, order and declarations are made anew
            same = canonical if model.ir_version < 10 else sorted_declarations
            if same(again) != same(model):
                wrong.append(case.name)
    assert wrong == []


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(MODELS_DIR.glob("*.onnx")), ids=lambda p: p.stem)
def test_onnxruntime_reads_every_outlined_model(path: Path) -> None:
    after = apply(onnx.load(path), "outline{min_size=2}").after
    assert any(f.value_info for f in after.functions) or not after.graph.value_info
    onnxruntime.InferenceSession(after.SerializeToString(), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("name", ["bert", "resnet18"])
def test_outlined_models_compute_the_same(name: str) -> None:
    apply(onnx.load(MODELS_DIR / f"{name}.onnx"), "outline").prove(checks=["onnxruntime"])
