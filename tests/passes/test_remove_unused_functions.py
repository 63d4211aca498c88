from __future__ import annotations

import pytest
from onnx import ModelProto, helper

from onnxgrad.ir.load import load
from onnxgrad.ir.save import to_proto
from tests.helpers import parse, unindented
from tests.rewriting import Done, apply

HEADER = '<ir_version: 10, opset_import: ["" : 20, "local" : 1]>'


def function(name: str, body: str = "y = Neg(x)", domain: str = "local") -> str:
    return (
        f'<domain: "{domain}", opset_import: ["" : 20, "local" : 1]> {name} (x) => (y) {{ {body} }}'
    )


def model(main: str, *functions: str) -> ModelProto:
    return parse("\n".join([HEADER, f"main (float[3] x) => (float[3] y) {{ {main} }}", *functions]))


def left(done: Done) -> list[str]:
    return [name for _, name, _ in done.program.functions]


def test_the_example_of_the_specification() -> None:
    done = apply(
        model("y = local.fn1(x)", function("fn1"), function("fn2")), "remove-unused-functions"
    )
    assert left(done) == ["fn1"]
    assert "\n".join([done.text, *map(str, done.program.functions.values())]) == unindented("""
        main(x: f32[3]) {
          y: f32[3] = local::fn1(x)
          return y
        }
        fn1(x) {
          y = Neg(x)
          return y
        }
    """)
    assert [f.name for f in done.after.functions] == ["fn1"]
    done.prove()


def test_calls_of_calls_and_of_nested_graphs_count() -> None:
    main = """c = Constant <value = bool {1}> ()
      y = If (c) <then_branch = t () => (float[3] a) { a = local.outer(x) },
                  else_branch = e () => (float[3] b) { b = Neg(x) }>"""
    functions = [
        function("outer", "y = local.inner(x)"),
        function("inner"),
        function("other", "y = local.inner(x)"),
    ]
    done = apply(model(main, *functions), "remove-unused-functions")
    assert left(done) == ["outer", "inner"]
    done.prove()


def test_a_function_that_only_dead_functions_call_goes() -> None:
    done = apply(
        model("y = Neg(x)", function("a", "y = local.b(x)"), function("b")),
        "remove-unused-functions",
    )
    assert left(done) == []
    assert len(done.trace.rewrites) == 2


def test_overloads_are_different_functions() -> None:
    given = model("y = local.f(x)", function("f"), function("f", "y = Abs(x)"))
    given.functions[1].overload = "other"
    done = apply(given, "remove-unused-functions")
    assert list(done.program.functions) == [("local", "f", "")]


def test_training_graphs_are_roots() -> None:
    given = model("y = Neg(x)", function("f"), function("g"))
    info = given.training_info.add()
    info.algorithm.CopyFrom(
        helper.make_graph(
            [helper.make_node("f", ["y"], ["z"], domain="local")], "algorithm", [], []
        )
    )
    done = apply(given, "remove-unused-functions")
    assert left(done) == ["f"]


@pytest.mark.parametrize("keep", ["f", "local::f", "f*", "nothing local::?"])
def test_named_entries_stay_with_what_they_call(keep: str) -> None:
    functions = [function("f", "y = local.inner(x)"), function("inner"), function("gone")]
    done = apply(model("y = Neg(x)", *functions), f"remove-unused-functions{{keep={keep}}}")
    assert left(done) == ["f", "inner"]


def test_nothing_to_do_changes_nothing() -> None:
    given = model("y = local.f(x)", function("f"))
    program = load(given)
    assert to_proto(apply(given, "remove-unused-functions").program) == given == to_proto(program)
