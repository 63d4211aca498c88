from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, NodeProto

from onnxgrad.errors import InputError
from onnxgrad.ir.load import load
from onnxgrad.passes.inline import Inline
from onnxgrad.rewrite.trace import Trace
from onnxgrad.verify.running.session import run
from tests.helpers import parse, unindented
from tests.passes.test_remove_unused_functions import function, model
from tests.rewriting import Done, apply, assert_same_results, model_of


def marked(given: ModelProto, *names: str) -> ModelProto:
    for f in given.functions:
        if f.name in names:
            f.metadata_props.add(key="onnxgrad.inline", value="1")
    return given


def left(done: Done) -> list[str]:
    return [name for _, name, _ in done.program.functions]


def test_the_example_of_the_specification() -> None:
    given = model(
        "a = local.g1(x)  y = local.g2(a)", function("g1", "t = Abs(x) y = Sqrt(t)"), function("g2")
    )
    done = apply(marked(given, "g1"), "inline")
    assert done.ops == ["Abs", "Sqrt", "g2"] and left(done) == ["g2"]
    assert done.text == unindented("""
        main(x: f32[3]) {
          t_2: f32[3] = Abs(x)
          a: f32[3] = Sqrt(t_2)
          y: f32[3] = local::g2(a)
          return y
        }
    """)
    done.prove()


def test_by_name_callees_first() -> None:
    functions = [
        function("outer", "t = local.inner(x) y = local.inner(t)"),
        function("inner", "t = Abs(x) y = Neg(t)"),
    ]
    done = apply(
        model("a = local.outer(x) y = local.outer(a)", *functions),
        "inline{names=outer local::inner}",
    )
    assert done.ops == ["Abs", "Neg"] * 4 and left(done) == []
    assert [o.domain for o in done.after.opset_import] == [""]
    done.prove()


def test_a_function_that_calls_one_that_stays_is_not_inlined() -> None:
    functions = [function("outer", "y = local.inner(x)"), function("inner")]
    done = apply(model("y = local.outer(x)", *functions), "inline{names=outer}")
    assert done.ops == ["outer"]
    assert "calls 'inner', which is not inlined" in done.declined


def test_attributes_are_given_defaulted_or_left_out() -> None:
    body = """<domain: "local", opset_import: ["" : 20]>
      f <alpha: float = 0.5, beta> (x) => (y) { a = LeakyRelu <alpha: float = @alpha> (x)  y = HardSigmoid <alpha: float = @alpha, beta: float = @beta> (a) }"""
    main = "a = local.f <alpha = 0.25, beta = 0.125> (x)  y = local.f(a)"
    done = apply(model(main, body), "inline{names=f}")
    first, second = [b for b in done.program.main.bindings if b.op == "HardSigmoid"]
    assert dict(first.attrs) == {"alpha": 0.25, "beta": 0.125}
    assert dict(second.attrs) == {"alpha": 0.5}
    done.prove()


def test_attributes_inside_nested_graphs_of_the_body() -> None:
    body = """<domain: "local", opset_import: ["" : 20]>
      f <alpha: float = 0.5> (x) => (y) { s = ReduceSum <keepdims = 0> (x)  z = Constant <value = float {0.0}> ()  c = Less(s, z)
        y = If (c) <then_branch = t () => (a) { a = LeakyRelu <alpha: float = @alpha> (x) },
                    else_branch = e () => (b) { b = Identity(x) }> }"""
    done = apply(model("a = local.f <alpha = 0.25> (x)  y = local.f(a)", body), "inline{names=f}")
    assert sorted(b.attrs["alpha"] for b in done.program.main.walk() if b.op == "LeakyRelu") == [
        0.25,
        0.5,
    ]
    done.prove()


def test_omitted_optional_inputs() -> None:
    body = """<domain: "local", opset_import: ["" : 20]> f (x, lo, hi) => (y) { y = Clip(x, lo, hi) }"""
    text = '<ir_version: 10, opset_import: ["" : 20, "local" : 1]> main (float[3] x, float h) => (float[3] y, float[3] z) { y = local.f(x, "", h) z = local.f(x) }'
    done = apply(parse(f"{text}\n{body}"), "inline{names=f}")
    assert [[v is not None for v in b.inputs] for b in done.program.main.bindings] == [
        [True, False, True],
        [True],
    ]
    done.prove()


def test_an_omitted_operand_that_is_returned_declines() -> None:
    body = '<domain: "local", opset_import: ["" : 20]> f (x, c) => (y, c) { y = Neg(x) }'
    done = apply(model('y, z = local.f(x, "")', body), "inline{names=f}")
    assert done.ops == ["f"] and "which the call leaves out" in done.declined


def test_an_operand_that_is_returned() -> None:
    body = '<domain: "local", opset_import: ["" : 20]> f (x) => (y, x) { y = Neg(x) }'
    done = apply(model("a, b = local.f(x)  y = Add(a, b)", body), "inline{names=f}")
    assert done.ops == ["Neg", "Add"]
    # onnxruntime reads no function that returns its operand, so there is nothing to compare with
    np.testing.assert_array_equal(
        run(done.after, {"x": np.ones(3, np.float32)})["y"], np.zeros(3, np.float32)
    )


def test_another_opset_with_the_same_operators_is_merged_else_declined() -> None:
    same = '<domain: "local", opset_import: ["" : 18]> f (x) => (y) { y = Neg(x) }'
    other = '<domain: "local", opset_import: ["" : 12]> g (x) => (y) { t = ReduceSum <axes = [0]> (x)  y = Add(x, t) }'
    done = apply(model("a = local.f(x)  y = local.g(a)", same, other), "inline{names=*}")
    assert done.ops == ["Neg", "g"]
    assert "written for opset 12" in done.declined and "ReduceSum changed" in done.declined


def test_imports_of_the_body_are_added() -> None:
    body = '<domain: "local", opset_import: ["" : 20, "com.microsoft" : 1]> f (x) => (y) { y = com.microsoft.QuickGelu(x) }'
    caller = (
        '<domain: "local", opset_import: ["" : 20, "local" : 1]> h (x) => (y) { y = local.f(x) }'
    )
    done = apply(model("a = local.f(x)  y = local.h(a)", body, caller), "inline{names=f}")
    assert {o.domain for o in done.after.opset_import} == {"", "local", "com.microsoft"}
    assert {o.domain for o in done.after.functions[0].opset_import} == {
        "",
        "local",
        "com.microsoft",
    }
    load(done.after)
    done.prove()


def test_names_stay_unique_and_results_keep_theirs() -> None:
    done = apply(
        model("t = local.f(x)  y = local.f(t)", function("f", "t = Abs(x)  y = Sqrt(t)")),
        "inline{names=f}",
    )
    names = [n for node in done.after.graph.node for n in (*node.output, node.name) if n]
    assert len(names) == len(set(names)) and {"t", "y"} <= set(names)
    done.prove()


def test_metadata_of_the_call_reaches_the_body() -> None:
    given = model("y = local.f(x)", function("f", "t = Abs(x)  y = Sqrt(t)"))
    given.graph.node[0].metadata_props.add(key="layer_ann", value="gpu")
    given.functions[0].node[0].metadata_props.add(key="layer_ann", value="cpu")
    done = apply(given, "inline{names=f}")
    assert [[e.value for e in n.metadata_props] for n in done.after.graph.node] == [
        ["cpu"],
        ["gpu"],
    ]


def doubling(levels: int) -> ModelProto:
    functions = [
        function(f"f{i}", f"t = local.f{i + 1}(x)  y = local.f{i + 1}(t)") for i in range(levels)
    ]
    return model("y = local.f0(x)", *functions, function(f"f{levels}"))


def test_a_bomb_is_refused_before_it_is_expanded() -> None:
    with pytest.raises(InputError, match=rf"{2**20} nodes, more than max_nodes=200000"):
        apply(doubling(20), "inline{names=*}")
    assert len(apply(doubling(5), "inline{names=*}").ops) == 32
    with pytest.raises(InputError, match="32 nodes"):
        apply(doubling(5), "inline{names=*;max_nodes=31}")


def test_recursion_is_refused() -> None:
    with pytest.raises(InputError, match="calls itself"):
        apply(model("y = local.f(x)", function("f", "y = local.f(x)")), "inline{names=f}")
    # a program that was made recursive after it was read
    program = load(model("y = local.f(x)", function("f")))
    body = program.functions["local", "f", ""]
    node = NodeProto(op_type="f", domain="local", input=["y"], output=["z"])
    body.append(node, [body.outputs[0]], [None])
    trace = Trace(explain=True)
    Inline("f").run(program, trace)
    assert not trace.rewrites and any("recursive" in reason for *_, reason in trace.declined)


def test_unmarked_functions_stay_and_nothing_changes() -> None:
    given = model("y = local.f(x)", function("f"))
    assert apply(given, "inline").after == given


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('main (float[2,6] x) => (float[2,6] y) { y = Gelu <approximate = "tanh"> (x) }', "Gelu"),
        ("main (float[2,6] x) => (float[2,6] y) { y = HardSwish(x) }", "HardSw*"),
        ("main (float[2,6] x) => (float[2,6] y) { y = Softmax <axis = 1> (x) }", "Softmax"),
        (
            "main (float[2,6] x, float[6] s) => (float[2,6] y) { y = LayerNormalization(x, s) }",
            "LayerNormalization",
        ),
        (
            "main (float[N,6] x) => (float[N,6] y) { a = Celu <alpha = 2.0> (x)  y = Selu(a) }",
            "Celu",
        ),
    ],
)
def test_operators_with_a_schema_body(text: str, names: str) -> None:
    done = apply(parse(text), f"inline{{names={names}}}")
    assert done.trace.counts["inline_call"].applied == 1
    assert not any(b.op.startswith(names.rstrip("*")) for b in done.program.main.bindings)
    done.prove()


@pytest.mark.parametrize(("operand", "left"), [("", []), ("[1]", ["Range"])])
def test_a_schema_body_for_scalars_is_for_scalars_alone(operand: str, left: list[str]) -> None:
    """onnxruntime's Range takes one element for a scalar; the body of the schema, a loop, does not."""
    text = f"main (float{operand} a, float{operand} b, float{operand} d) => (float[N] y) {{ y = Range(a, b, d) }}"
    done = apply(parse(text), "inline{names=Range}")
    assert [op for op in done.ops if op == "Range"] == left
    assert ("for scalars" in done.declined) == bool(left)


@pytest.mark.parametrize(
    ("known", "text"),
    [
        ("2,2,3", "t) => (float[N,H,W,2] y) <int64[4] n = {2,3,4,5}>"),
        ("2,3,4", "t) => (float[N,D,H,W,3] y) <int64[5] n = {2,3,2,3,4}>"),
        ("B,2,3", "t, float[B,3,H,W] i) => (float[N,H,W,2] y)"),
    ],
)
def test_a_range_of_tensors_with_one_element(known: str, text: str) -> None:
    """onnx's body of AffineGrid passes such, which onnxruntime refuses where it knows their shape."""
    shape = "" if "n =" in text else "n = Shape (i)"
    done = apply(
        parse(f"g (float[{known}] {text} {{ {shape} y = AffineGrid (t, n) }}"),
        "inline{names=AffineGrid},default",
    )
    assert "AffineGrid" not in done.ops
    assert_same_results(done)
    if "i)" not in text:
        assert not [b for b in done.program.main.walk() if b.op == "If"]


def test_zeros_have_the_scale_of_the_kernel() -> None:
    """onnx's body of DynamicQuantizeLinear divides 0 by 0."""
    text = "g (float[N,3] x) => (uint8[N,3] q, float s, uint8 z) { q, s, z = DynamicQuantizeLinear(x) }"
    done = apply(model_of(text, opset=17), "inline{names=DynamicQuantizeLinear}")
    assert "DynamicQuantizeLinear" not in done.ops
    for x in (np.zeros((2, 3), np.float32), np.float32([[-1, 0, 2.5], [0.3, 0, 1]])):
        want, got = (run(m, {"x": x}) for m in (done.before, done.after))
        assert all(np.array_equal(v, got[n]) for n, v in want.items()) and want["s"] > 0


def test_a_schema_body_that_does_not_type_declines() -> None:
    """onnx's body of LayerNormalization wants a scale of all normalised axes, the operator one that broadcasts."""
    text = """g (float[2,3,4] x, float[4] s) => (float[2,3,4] y) {
        y = LayerNormalization <axis = 1> (x, s) }"""
    done = apply(parse(text), "inline{names=LayerNormalization}")
    assert done.ops == ["LayerNormalization"] and "does not fit its operands" in done.declined
    assert done.after == done.before


def test_a_function_with_a_loop_is_inlined_whatever_its_operands() -> None:
    body = function("f", "n = Constant <value_int = 2> () c = Constant <value = bool {1}> () y = Loop (n, c, x) "
                    "<body = b (int64 i, bool go, float[N] v) => (bool on, float[N] w) { on = Identity(go) w = Neg(v) }>")  # fmt: skip
    done = apply(model("s = Shape(x) r = Reshape(x, s) y = local.f(r)", body), "inline{names=f}")
    assert "f" not in done.ops and "Loop" in done.ops
    done.prove()


def test_a_body_that_depends_on_unknown_types_declines() -> None:
    body = '<domain: "local", opset_import: ["" : 20]> f (x) => (y) { y = Gelu(x) }'
    done = apply(model("y = local.f(x)", body), "inline{names=Gelu}")
    assert done.ops == ["f"]
    # once the call is open the types are known
    again = apply(model("y = local.f(x)", body), "inline{names=Gelu f}")
    assert "Gelu" not in again.ops and "f" not in again.ops
    x = np.linspace(-1, 1, 3, dtype=np.float32)
    np.testing.assert_allclose(
        run(again.after, {"x": x})["y"], run(again.before, {"x": x})["y"], rtol=1e-6, atol=1e-7
    )


def test_attributes_handed_on_by_reference() -> None:
    inner = '<domain: "local", opset_import: ["" : 20]> f <alpha: float = 0.5> (x) => (y) { y = LeakyRelu <alpha: float = @alpha> (x) }'
    safe = '<domain: "local", opset_import: ["" : 20, "local" : 1]> g <a: float = 0.1> (x) => (y) { y = local.f <alpha: float = @a> (x) }'
    open_ = '<domain: "local", opset_import: ["" : 20, "local" : 1]> h <a> (x) => (y) { y = local.f <alpha: float = @a> (x) }'
    done = apply(
        model("b = local.g <a = 0.25> (x)  y = local.h(b)", inner, safe, open_), "inline{names=f}"
    )
    g, h = (next(iter(done.program.functions["local", n, ""].bindings)) for n in "gh")
    assert g.op == "LeakyRelu" and h.op == "f"
    assert "has its own default" in done.declined
    done.prove()
