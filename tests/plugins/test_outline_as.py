"""`outline_as`: what a user's pattern matches becomes a call, of a function in the file or of an operator that the runtime has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxgrad
from onnxgrad import P, capture, outline_as
from onnxgrad.errors import InputError, NotProved
from onnxgrad.ir.load import load
from onnxgrad.passes.user_laws import UserLaws
from onnxgrad.plugins.outline_as import OutlinedPattern
from onnxgrad.rewrite.pattern import Each
from onnxgrad.verify import run as run_model
from tests.cli.conftest import Result, run
from tests.helpers import parse, unindented
from tests.passes.same_graph import canonical
from tests.rewriting import Done, apply, model_of, weights

Run = Callable[..., Result]
__all__ = ["run"]
x, w, c, s, p = capture("x w c s p")
LINEAR = outline_as("my.ops::LinearRelu", P.Relu(P.Add(P.MatMul(x, w), c)))
TEXT = """g (float[N,4] x) => (float[N,4] y) {
  a = MatMul(x, u) b = Add(a, c) d = Relu(b) e = MatMul(d, v) f = Add(c, e) h = Relu(f) y = Tanh(h) }"""
W = weights(u=(4, 4), v=(4, 4), c=(4,))


def outlined(composite: OutlinedPattern, text: str, constants: Any = None, **options: Any) -> Done:
    done = apply(model_of(text, constants, **options), UserLaws((composite,)))
    done.prove()
    return done


def whole(done: Done) -> str:
    functions = ["::".join(k[:2]) + " " + str(b) for k, b in done.program.functions.items()]
    return "\n".join([done.text, *functions])


def test_two_matches_share_a_function() -> None:
    done = outlined(LINEAR, TEXT.replace("[N,4]", "[9,4]"), {**W, **weights(c=(9, 4))})
    assert whole(done) == unindented("""
        g(x: f32[9,4], u: f32[4,4] const, v: f32[4,4] const, c: f32[9,4] const) {
          d: f32[9,4] = my.ops::LinearRelu(x, u, c)
          h: f32[9,4] = my.ops::LinearRelu(d, v, c)
          y: f32[9,4] = Tanh(h)
          return y
        }
        my.ops::LinearRelu LinearRelu(d, v, c) {
          e = MatMul(d, v)
          f = Add(c, e)
          h = Relu(f)
          return h
        }
    """)
    assert [f.rule for f in done.trace.rewrites] == ["outline_as LinearRelu"] * 2


def test_inline_is_the_exact_way_back() -> None:
    model = model_of(TEXT.replace("Add(c, e)", "Add(e, c)"), W)
    done = apply(model, UserLaws((LINEAR,)), "inline{names=LinearRelu}")
    assert canonical(done.after) == canonical(model)


def test_from_python_with_a_preset() -> None:
    found = onnxgrad.optimize(model_of(TEXT, W), passes=["default", LINEAR])
    assert [n.op_type for n in found.graph.node] == ["LinearRelu", "LinearRelu", "Tanh"]
    assert [(f.domain, f.name) for f in found.functions] == [("my.ops", "LinearRelu")]


def test_operands_come_in_the_order_of_the_pattern() -> None:
    """The captures first, whatever is read first, then what no capture names."""
    pattern = P.Sub(P.Mul(P.Exp(w), x), P.any_of("Neg")(c))
    text = "g (float[3] a, float[3] b, float[3] k) => (float[3] y) { e = Exp(a) m = Mul(b, e) n = Neg(k) y = Sub(m, n) }"
    call = next(iter(outlined(outline_as("f", pattern), text).block.bindings))
    assert (call.domain, [v.name for v in call.inputs if v is not None]) == (
        "onnxgrad", ["a", "b", "k"],
    )  # fmt: skip


def test_numbers_that_the_pattern_names_are_part_of_the_body() -> None:
    gelu = outline_as("my.ops::Gelu", P.Mul(P.Mul(x, P.Add(P.Erf(P.Div(x, s)), 1.0)), 0.5))
    text = """g (float[3] a) => (float[3] y) { d = Div(a, root) e = Erf(d) f = Add(e, one) m = Mul(a, f) y = Mul(m, half) }"""
    numbers = {"root": np.float32(1.4142135), "one": np.float32(1), "half": np.float32(0.5)}
    done = outlined(gelu, text, numbers)
    assert [len(b.inputs) for b in done.block.bindings] == [2]  # x, and s, which is captured
    assert (
        sum(b.op == "Constant" for b in next(iter(done.program.functions.values())).bindings) == 2
    )


def test_attributes_that_are_captured_are_said_by_the_call() -> None:
    composite = outline_as("my.ops::TRelu", P.Relu(P.Transpose(x, perm=p)))
    text = """g (float[2,3,4] x) => (float[4,3,2] y, float[3,2,4] z) {
      a = Transpose<perm=[2,1,0]>(x) y = Relu(a) b = Transpose<perm=[1,0,2]>(x) z = Relu(b) }"""
    done = outlined(composite, text)
    assert [n.op_type for n in done.after.graph.node] == ["TRelu", "TRelu"]
    assert [list(n.attribute[0].ints) for n in done.after.graph.node] == [[2, 1, 0], [1, 0, 2]]
    (function,) = done.after.functions
    assert list(function.attribute) == ["p"]
    assert function.node[0].attribute[0].ref_attr_name == "p"
    again = apply(done.after, "inline{names=TRelu}")
    assert again.ops == ["Transpose", "Relu", "Transpose", "Relu"]


def test_forms_that_differ_get_names_of_their_own() -> None:
    composite = outline_as("my.ops::TRelu", P.Relu(P.Transpose(x)))
    text = """g (float[2,3,4] x) => (float[4,3,2] y, float[3,2,4] z) {
      a = Transpose<perm=[2,1,0]>(x) y = Relu(a) b = Transpose<perm=[1,0,2]>(x) z = Relu(b) }"""
    assert sorted(f.name for f in outlined(composite, text).after.functions) == ["TRelu", "TRelu_2"]
    bare = outline_as("my.ops::TRelu", P.Relu(P.Transpose(x)), body=False)
    done = apply(model_of(text), UserLaws((bare,)))
    assert done.count("TRelu") == 1 and "capture the attributes" in done.declined


def test_any_number_of_operands() -> None:
    composite = outline_as("f", P.Concat(Each(P.Relu(x)), axis=p))
    text = "g (float[2] a, float[3] b, float[4] k) => (float[9] y) { q = Relu(a) r = Relu(b) t = Relu(k) y = Concat<axis=0>(q, r, t) }"
    done = outlined(composite, text)
    assert done.ops == ["f"] and len(done.block.bindings) == 1
    call = next(iter(done.block.bindings))
    assert [v.name for v in call.inputs if v is not None] == ["a", "b", "k"]


def test_operands_that_may_be_left_out() -> None:
    composite = outline_as("f", P.Relu(P.Gemm(x, w, c.maybe)))
    text = """g (float[N,4] x) => (float[N,4] y) { a = Gemm(x, u, c) b = Relu(a) d = Gemm(b, v) y = Relu(d) }"""
    done = outlined(composite, text, W)
    assert [len(b.inputs) for b in done.block.bindings] == [3, 2]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (TEXT.replace("(float[N,4] y)", "(float[N,4] y, float[N,4] a, float[N,4] f)"), "read outside as well"),
        (TEXT.replace("y = Tanh(h)", "t = Add(a, f) y = Add(t, h)"), "read outside as well"),
        ("g (bool k, float[N,4] x) => (float[N,4] y) { a = MatMul(x, u) b = Add(a, c) y = If (k) <then_branch = t () => (float[N,4] q) { q = Relu(b) }, else_branch = o () => (float[N,4] r) { r = Neg(b) }> }",
         "another block"),
    ],
)  # fmt: skip
def test_what_cannot_be_cut_out(text: str, reason: str) -> None:
    done = outlined(LINEAR, text, W)
    assert not done.trace.rewrites and reason in done.declined


def test_the_users_check() -> None:
    seen: list[Any] = []

    def check(captured: Any) -> bool:
        seen.append(sorted(captured))
        return bool(captured["w"].name == "v")

    composite = outline_as("f", P.Relu(P.Add(P.MatMul(x, w), c)), check=check)
    done = outlined(composite, TEXT, W)
    assert done.count("f") == 1 and seen[0] == ["c", "w", "x"]
    assert "refused by the check" in done.declined


def test_of_a_chain_the_end_is_taken_first() -> None:
    composite = outline_as("f", P.Relu(P.Relu(x)))
    text = "g (float[3] x) => (float[3] y) { a = Relu(x) b = Relu(a) y = Relu(b) }"
    assert outlined(composite, text).ops == ["Relu", "f"]


def test_inside_branches_and_loops() -> None:
    text = """g (bool k, float[N,4] x) => (float[N,4] y) <int64 n = {2}, bool yes = {1}> {
      y = If (k) <
        then_branch = t () => (float[N,4] q) { a = MatMul(x, u) b = Add(a, c) q = Relu(b) },
        else_branch = o () => (float[N,4] r) { r = Loop (n, yes, x) <body = l (int64 i, bool e, float[N,4] h) => (bool z, float[N,4] m) {
          z = Identity(e) d = MatMul(h, v) f = Add(d, c) m = Relu(f) }> }> }"""
    done = outlined(LINEAR, text, W)
    assert done.count("LinearRelu") == 2 and len(done.program.functions) == 1


def test_the_file_has_a_function_of_the_name() -> None:
    once = outlined(LINEAR, TEXT, W).after
    done = apply(once, UserLaws((outline_as("my.ops::LinearRelu", P.Tanh(x)),)))
    assert sorted(f.name for f in done.after.functions) == ["LinearRelu", "LinearRelu_2"]
    done.prove()


def test_models_without_functions_stay() -> None:
    done = apply(model_of(TEXT, W, ir_version=7, opset=13), UserLaws((LINEAR,)))
    assert not done.trace.rewrites and "IR version 7" in done.declined


@pytest.mark.parametrize(
    ("name", "pattern", "words"),
    [
        ("my ops", P.Relu(x), "is not an operator: write domain::Operator"),
        ("Relu6::", P.Relu(x), "is not an operator: write domain::Operator"),
        ("ai.onnx::Relu6", P.Relu(x), "ONNX's own"),
        ("ai.onnx.ml::Relu6", P.Relu(x), "ONNX's own"),
        ("my::Relu6", x, "the pattern's root is an operator"),
        ("my::Relu6", "Relu", "pattern must be a Pattern, not 'Relu'"),
    ],
)
def test_bad_descriptions(name: str, pattern: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        outline_as(name, pattern)


# ---- an operator that the runtime has --------------------------------------------------------------------------------

BARE = outline_as("my.ops::LinearRelu", P.Relu(P.Add(P.MatMul(x, w), c)), body=False)


def test_the_body_is_proved_and_left_out() -> None:
    done = onnxgrad.optimize(model_of(TEXT, W), passes=[BARE], report=True)
    assert done.proof is not None and done.proof.ok
    model = done.model
    assert [n.op_type for n in model.graph.node] == ["LinearRelu", "LinearRelu", "Tanh"]
    assert not model.functions
    assert {o.domain: o.version for o in model.opset_import}["my.ops"] == 1
    declared = {v.name: v.type.tensor_type.elem_type for v in model.graph.value_info}
    assert declared == {"d": 1, "h": 1}
    onnx.checker.check_model(model)
    assert str(load(model).main).count("my.ops::LinearRelu") == 2


def test_nothing_is_written_where_the_proof_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rules before it are wrong: the operator's body shows it."""
    wrong = onnxgrad.rewrite(P.Tanh(x))(lambda x: onnxgrad.op.Neg(x))
    with pytest.raises(NotProved):
        onnxgrad.optimize(model_of(TEXT, W), passes=[BARE, wrong])


def test_on_the_command_line(run: Run, tmp_path: Path) -> None:
    model, plugin, out = tmp_path / "m.onnx", tmp_path / "mine.py", tmp_path / "o.onnx"
    onnx.save(model_of(TEXT, W), model)
    text = """from onnxgrad import P, capture, outline_as
x, w, c = capture("x w c")
fused = outline_as("my.ops::LinearRelu", P.Relu(P.Add(P.MatMul(x, w), c)), body=BODY)
"""
    for body in (True, False):
        plugin.write_text(text.replace("BODY", str(body)), encoding="utf-8")
        done = run("optimize", model, "-o", out, "--plugin", plugin)
        assert done.code == 0 and "outline_as LinearRelu" in done.out and "equal on cpu" in done.out
        written = onnx.load(out)
        assert [n.op_type for n in written.graph.node] == ["LinearRelu", "LinearRelu", "Tanh"]
        assert len(written.functions) == int(body)
    refused = run("verify", model, out)
    assert refused.code in (1, 2) and "LinearRelu" in refused.err + refused.out


def test_the_function_runs() -> None:
    done = outlined(LINEAR, TEXT, W)
    feeds = {"x": np.ones((2, 4), np.float32)}
    np.testing.assert_allclose(
        run_model(done.after, feeds)["y"], run_model(done.before, feeds)["y"], rtol=1e-6
    )


def test_each_match_is_proved_by_itself() -> None:
    onnxgrad.optimize(parse(TEXT.replace("(float[N,4] x)", "(float[N,4] x, float[4,4] u, float[4,4] v, float[4] c)")),
                      passes=[LINEAR], verify="each")  # fmt: skip


@pytest.mark.parametrize("results", ["{}", "{}, unread", "{}, unread, also", "{}, , also"])
@pytest.mark.parametrize("inner", [True, False])
def test_results_that_are_absent_or_not_read(results: str, inner: bool) -> None:
    """Only a result that something reads outside keeps a binding where it is."""
    norm = P.LayerNormalization(P.Neg(x), w)
    composite = outline_as("f", P.Relu(norm) if inner else norm)
    name = "b" if inner else "y"
    text = f"""g (float[N,4] x) => (float[N,4] y) {{
      a = Neg(x) {results.format(name)} = LayerNormalization(a, c) {"y = Relu(b)" if inner else ""} }}"""
    assert outlined(composite, text, W).ops == ["f"]
