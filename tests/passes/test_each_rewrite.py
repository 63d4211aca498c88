"""`--verify each`: both forms of every rewrite run on its boundary, so a law that the whole model hides is found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx
import pytest

from onnxgrad.functions import optimize
from onnxgrad.ir.ops import op
from onnxgrad.ir.program import Program
from onnxgrad.ir.var import Var
from onnxgrad.jobs.outcome import Outcome
from onnxgrad.jobs.rewriting import RewriteRefuted, optimize_program
from onnxgrad.passes.base import Pass, roots
from onnxgrad.passes.each_rewrite import EachReport
from onnxgrad.passes.pipeline import Pipeline
from onnxgrad.rewrite.pattern import P, capture
from onnxgrad.rewrite.trace import Trace
from onnxgrad.rewrite.worklist import apply_rules, count, rewrite
from tests.helpers import MODELS_DIR, parse
from tests.rewriting import model_of, weights

x = capture("x")


@rewrite(P.Abs(x), shrinks=count("Abs"))
def abs_is_nothing(x: Var) -> Var:
    """|x| = x: wrong below 0."""
    same: Var = op.Identity(x)
    return same


@rewrite(P.Tanh(x), shrinks=count("Tanh"))
def tanh_is_softsign(x: Var) -> Var:
    """Tanh(x) = x / (1 + |x|): wrong."""
    softsign: Var = op.Softsign(x)
    return softsign


@dataclass(frozen=True)
class Wrong(Pass):
    """Laws that do not hold."""

    name: ClassVar[str] = "wrong"

    def run(self, program: Program, trace: Trace) -> None:
        for block in roots(program):
            apply_rules(block, [abs_is_nothing, tanh_is_softsign], trace)


def each(model: onnx.ModelProto, *passes: Pass, prove: bool = False) -> Outcome:
    pipeline = Pipeline(passes) if passes else Pipeline.of("default", merge="always")
    return optimize_program(model, pipeline, prove=prove, each=True)


# where the whole model, on its feeds, has no eyes for a Tanh: a branch that is never taken, a factor of 0, an ArgMax, a
# clip, a function that only such a place calls
HIDDEN = {
    "branch": """g (float[N,4] x) => (float[N,4] y) <int64 far = {1000000}> {
      s = Size(x) c = Greater(s, far)
      y = If (c) <then_branch = a () => (float[N,4] p) { p = Tanh(x) }, else_branch = b () => (float[N,4] q) { q = Neg(x) }>
    }""",
    "factor of 0": """g (float[N,4] x) => (float[N,4] y) <float zero = {0}> {
      t = Tanh(x) z = Mul(t, zero) y = Add(x, z) }""",
    "clip": """g (float[N,4] x) => (float[N,4] y) <float far = {9}> { t = Tanh(x) c = Add(t, far) y = Min(c, far2) far2 = Constant <value = float {2}> () }""",
    "function": """<ir_version: 10, opset_import: ["" : 20, "own" : 1]>
      g (float[N,4] x) => (float[N,4] y) <float zero = {0}> { t = own.f(x) z = Mul(t, zero) y = Add(x, z) }
      <domain: "own", opset_import: ["" : 20]>
      f (a) => (b) { b = Tanh(a) }""",
}


@pytest.mark.parametrize("where", HIDDEN)
def test_a_wrong_law_that_the_whole_model_hides(where: str) -> None:
    model = parse(HIDDEN[where])
    assert optimize_program(model, Pipeline((Wrong(),))).report
    with pytest.raises(
        RewriteRefuted, match=r"whose two forms differ is number 1, tanh_is_softsign \(pass wrong\)"
    ) as e:
        each(model, Wrong())
    assert (
        e.value.culprit is not None
        and e.value.culprit.rule == "tanh_is_softsign"
        and not e.value.report.ok
    )


def test_the_first_wrong_firing_is_named_among_right_ones() -> None:
    model = parse("""g (float[N,4] x) => (float[N,4] y) <float[1] zero = {0}> {
      i = Identity(x) n = Identity(i) e = Exp(n) a = Abs(e) t = Tanh(a) z = Mul(t, zero) w = Abs(z) y = Add(x, w) }""")
    pipeline = Pipeline((*Pipeline.of(passes="remove-noops").passes, Wrong()))
    with pytest.raises(RewriteRefuted, match="number 4, tanh_is_softsign"):
        optimize_program(model, pipeline, each=True)


def test_a_law_may_lean_on_what_computes_its_operands() -> None:
    """|Exp(x)| = Exp(x), though |x| is not x: found only with the Exp, and two steps up here."""
    done = each(
        parse("g (float[N,4] x) => (float[N,4] y) { e = Exp(x) c = Sqrt(e) y = Abs(c) }"), Wrong()
    )
    assert done.each is not None and (done.each.alone, done.each.in_context) == (0, 1)


def test_a_shape_of_another_value_says_nothing_of_its_numbers() -> None:
    model = parse("""g (float[N,3] x) => (float[M] y, float[N,3] z) {
      r = Relu (x)  z = Exp (r)  s = Shape (r)  c = Cast <to = 1> (s)  y = Neg (c) }""")
    done = each(model, *Pipeline.of(passes="simplify-sizes").passes)
    assert [b.inputs[0].name for b in done.program.main.bindings if b.op == "Shape"] == ["x"]
    assert done.each is not None and done.each.alone == 1


def test_every_firing_is_counted() -> None:
    text = """g (float[N,4] x) => (float[N,4] y, float[N,4] z) {
      i = Identity(x) p = MatMul(i, w1) q = MatMul(x, w1) c = Add(p, q) d = MatMul(x, w2) y = Tanh(c) z = Neg(d)
      unused = Exp(d) k = Neg(w1) l = Exp(k) }"""
    done = each(model_of(text, weights(w1=(4, 4), w2=(4, 4))), prove=True)
    assert done.each is not None and done.report is not None and done.report.ok
    found = done.each
    assert found.alone + found.in_context + len(found.skipped) == len(done.trace.rewrites) > 3
    assert (
        set(found.skipped.values()) <= {"no value that is read has changed"}
        and found.in_context >= 1
    )
    plain = optimize(model_of(text, weights(w1=(4, 4), w2=(4, 4))), merge="always", verify=False)
    assert [n.op_type for n in plain.graph.node] == [b.op for b in done.program.main.bindings]


def test_weights_that_a_firing_rounds_anew() -> None:
    text = """g (float[1,3,8,8] x) => (float[1,4,6,6] y) { c = Conv(x, w) y = BatchNormalization(c, s, b, m, v) }"""
    model = model_of(text, weights(w=(4, 3, 3, 3), s=(4,), b=(4,), m=(4,), v=(4,)))
    for tensor in model.graph.initializer:
        if tensor.name == "v":
            array = abs(onnx.numpy_helper.to_array(tensor)) + 0.5
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, "v"))
    done = each(model)
    assert done.each is not None and done.each.alone >= 1 and done.trace.rounded


def test_every_firing_of_a_pass_that_rounds_may_round() -> None:
    """Two Gemms with biases become one, twice: the sums of biases are rounded to float32."""
    body = """p = Gemm (x, a, c)  q = Gemm (x, b, d)  y = Add (p, q)
      r = Gemm (x, b, c)  s = Gemm (x, a, e)  z = Add (r, s)"""
    text = f"g (float[4,8] x) => (float[4,6] y, float[4,6] z) {{ {body} }}"
    shapes = {"a": (8, 6), "b": (8, 6), "c": (6,), "d": (6,), "e": (6,)}
    done = optimize_program(
        model_of(text, weights(**shapes)), Pipeline.of(passes="accumulate-gemms"), each=True
    )
    assert len(done.trace.rewrites) == 2 and done.each is not None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            """<ir_version: 10, opset_import: ["" : 20, "own" : 1]> g (float[2,3] x) => (float[2,3] y) { y = own.f(x) }
               <domain: "own", opset_import: ["" : 20]> f (a) => (b) { r = RandomNormalLike(a) b = Add(a, r) }""",
            "draws random numbers",
        ),
        (
            "g (float[2] x) => (float[2] y) { y = Neg(x) z = Exp(x) }",
            "no value that is read has changed",
        ),
    ],
)
def test_skipped_with_a_reason(text: str, why: str) -> None:
    done = each(parse(text), *Pipeline.of(passes="inline{names=f},remove-unused").passes)
    assert done.each is not None and len(done.each.skipped) == 1
    assert why in str(done.each) and sum(done.each.to_dict()["skipped"].values()) == 1


def test_the_bytes_are_those_without_it() -> None:
    path = MODELS_DIR / "lstmcell.onnx"
    pipeline = Pipeline.of(passes="remove-noops,merge-equal,fold-bias,combine-parallel-gemm")
    from onnxgrad.ir.save import to_proto

    both = [
        to_proto(optimize_program(path, pipeline, prove=False, limit=12, each=e).program)
        for e in (True, False)
    ]
    assert both[0].SerializeToString(deterministic=True) == both[1].SerializeToString(
        deterministic=True
    )


def test_words() -> None:
    report = EachReport(3, 2, {4: "it draws random numbers", 5: "it draws random numbers"})
    assert str(report) == (
        "5 rewrites equal on their own, 2 of them with the nodes that compute their operands; 2 skipped (2 it draws random numbers)"
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lstmcell", "training/lstm_tagger", "training/resnet18", "t5"])
def test_real_models(name: str) -> None:
    done = each(onnx.load(MODELS_DIR / f"{name}.onnx"))
    assert done.each is not None
    assert set(done.each.skipped.values()) <= {"no value that is read has changed"}, done.each
