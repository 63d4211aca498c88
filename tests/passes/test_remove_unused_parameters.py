"""onnxgrad/passes/remove_unused.py: operands, attributes and results of local functions that nothing reads."""

from __future__ import annotations

import onnx
import pytest
from onnx import ModelProto, helper

import onnxgrad
from onnxgrad.ir.load import load
from onnxgrad.ir.save import to_proto
from tests.helpers import parse
from tests.rewriting import apply

PASSES = "remove-unused,remove-unused-parameters,remove-unused"
HEADER = '<ir_version: 10, opset_import: ["" : 20, "my" : 1]>'
OPSETS = 'opset_import: ["" : 20, "my" : 1]'


def model(main: str, *functions: str, outputs: str = "float[3] y") -> ModelProto:
    listed = [f'<domain: "my", {OPSETS}> {f}' for f in functions]
    return parse("\n".join([HEADER, f"main (float[3] x) => ({outputs}) {{ {main} }}", *listed]))


def signatures(given: ModelProto) -> dict[str, str]:
    return {
        f.name: f"{','.join(f.input)} -> {','.join(f.output)} {sorted(f.attribute)}"
        for f in given.functions
    }


def test_operands_results_and_attributes() -> None:
    given = model(
        "a = Exp(x) b = Abs(x) u, y, w = my.f <k = 1, j = 2> (a, b, x)",
        "f <k, j, unused: int = 3> (p, q, r) => (s, t, o) { s = Exp(p) c = Softmax <axis: int = @k> (r) t = Neg(c) o = Abs(q) }",
    )
    given.graph.node[-1].attribute[0].i = 0
    done = apply(given, PASSES)
    assert signatures(done.after) == {"f": "r -> t ['k']"}
    assert [n.op_type for n in done.after.graph.node] == ["f"]
    assert [a.name for a in done.after.graph.node[0].attribute] == ["k"]
    assert done.fired("unused_parameter") == 6
    onnx.checker.check_model(done.after)
    done.prove()


def test_through_calls_of_calls_and_nested_graphs() -> None:
    given = model(
        """c = Constant <value = bool {1}> ()
        y = If (c) <then_branch = t () => (float[3] a) { z = Neg(x) a, n = my.outer(x, z) },
                    else_branch = e () => (float[3] b) { b, m = my.outer(x, x) }>""",
        "outer (p, q) => (s, t) { s, t = my.inner(p, q) }",
        "inner (p, q) => (s, t) { s = Exp(p) t = Abs(q) }",
    )
    done = apply(given, PASSES)
    assert signatures(done.after) == {"outer": "p -> s []", "inner": "p -> s []"}
    done.prove()


def test_a_long_chain_of_calls_goes_at_once() -> None:
    count = 300
    chain = [f"f{i} (p, q) => (s, t) {{ s, t = my.f{i + 1}(p, q) }}" for i in range(count)]
    last = f"f{count} (p, q) => (s, t) {{ s = Exp(p) t = Abs(q) }}"
    for functions in ([*chain, last], [last, *reversed(chain)]):
        done = apply(model("y, u = my.f0(x, x)", *functions), "remove-unused-parameters")
        assert set(signatures(done.after).values()) == {"p -> s []"}


def test_an_operand_that_a_call_leaves_out() -> None:
    given = model(
        "a = my.f(x, , x) b = my.f(x) y = Add(a, b)",
        "f (p, q, r) => (s) { s = Exp(p) }",
    )
    done = apply(given, PASSES)
    assert signatures(done.after) == {"f": "p -> s []"}
    assert [list(n.input) for n in done.after.graph.node[:2]] == [["x"], ["x"]]
    done.prove()


@pytest.mark.parametrize(
    "given",
    [
        model("y = my.f(x, x)", "f (p, q) => (s) { s = Add(p, q) }"),
        model("y = my.f(x)", "f (p) => (s) { s = Identity(p) }"),
        model(
            "y, u = my.f(x)", "f (p) => (s, t) { s = Exp(p) t = Abs(p) }", outputs="float[3] y, float[3] u"
        ),
        model("a, y = my.f(x)", "f (p) => (s, s2) { s = Exp(p) s2 = Neg(s) }", outputs="float[3] y, float[3] a"),
    ],
)  # fmt: skip
def test_what_is_read_stays(given: ModelProto) -> None:
    program = load(given)
    done = apply(given, "remove-unused-parameters")
    assert to_proto(done.program) == given == to_proto(program) and not done.trace.rewrites


@pytest.mark.parametrize("domain", ["com.microsoft", "ai.onnx.ml", "com.microsoft.nchwc"])
def test_a_function_that_a_runtime_may_replace_keeps_its_operands(domain: str) -> None:
    given = parse(
        f"""<ir_version: 10, opset_import: ["" : 20, "{domain}" : 1]>
        main (float[3] x) => (float[3] y) {{ y = {domain}.Own (x, x) }}
        <domain: "{domain}", opset_import: ["" : 20]> Own (p, q) => (s) {{ s = Exp(p) }}"""
    )
    assert signatures(apply(given, PASSES).after) == {"Own": "p,q -> s []"}


def test_training_graphs_and_kept_names() -> None:
    function = "f (p, q) => (s) { s = Exp(p) }"
    kept = apply(model("y = my.f(x, x)", function), "remove-unused-parameters{keep=my::*}")
    assert signatures(kept.after) == {"f": "p,q -> s []"}
    given = model("y = my.f(x, x)", function)
    node = helper.make_node("f", ["y", "y"], ["z"], domain="my")
    given.training_info.add().algorithm.CopyFrom(helper.make_graph([node], "algorithm", [], []))
    assert signatures(apply(given, PASSES).after) == {"f": "p,q -> s []"}


def test_fuel_and_the_default_preset() -> None:
    given = model("y = my.f(x, x)", "f (p, q, r) => (s) { s = Exp(p) }")
    stopped = onnxgrad.optimize(given, passes=PASSES, max_rewrites=1)
    assert signatures(stopped) == {"f": "p,q -> s []"}
    assert signatures(apply(given, "default").after) == {"f": "p -> s []"}
