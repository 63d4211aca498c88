"""Our laws as rules of onnxscript's: on its graphs, in its functions and branches, among its own rules."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import onnxgrad
from onnxgrad import P, capture, decline, op
from onnxgrad.ir.var import Var
from onnxgrad.verify import run
from tests.helpers import MODELS_DIR, parse
from tests.rewriting import ABS_OF_NEG_TWICE, model_of, weights

pytest.importorskip("onnxscript")
import onnx_ir
from onnxscript import rewriter
from onnxscript.rewriter.rules import common

pytestmark = pytest.mark.peers

x, w = capture("x w")


@onnxgrad.rewrite(P.Abs(P.Neg(x)))
def abs_of_neg(x: Var) -> Any:
    """Abs(Neg(x)) = Abs(x)"""
    return op.Abs(x)


def rewritten(model: onnx.ModelProto, *laws: Any) -> onnx.ModelProto:
    found = rewriter.rewrite(model, onnxgrad.to_onnxscript_rules(*laws))
    onnx.checker.check_model(found)
    return found


def ops(model: onnx.ModelProto) -> list[str]:
    return [n.op_type for n in model.graph.node]


CHAIN = "g (float[2,3] x) => (float[2,3] y) { n = Neg(x) y = Abs(n) }"


def test_a_law_rewrites() -> None:
    found = rewritten(parse(CHAIN), abs_of_neg)
    assert ops(found) == ["Abs"] and list(found.graph.node[0].input) == ["x"]
    assert [v.name for v in found.graph.output] == ["y"]


def test_what_others_read_stays() -> None:
    text = "g (float[3] x) => (float[3] y, float[3] n) { n = Neg(x) y = Abs(n) }"
    found = rewritten(parse(text), abs_of_neg)
    assert sorted(ops(found)) == ["Abs", "Neg"]
    assert [v.name for v in found.graph.output] == ["y", "n"]


def test_a_law_counts_the_readers_outside_its_region() -> None:
    @onnxgrad.rewrite(P.Abs(P.Neg(x)))
    def careful(x: Var, root: Any) -> Any:
        if root.inputs[0].use_count > 1 or x.use_count > 1:
            return decline("others read it")
        return op.Abs(x)

    shared = "g (float[3] x) => (float[3] y, float[3] z) { n = Neg(x) y = Abs(n) z = Exp(%s) }"
    assert ops(rewritten(parse(CHAIN), careful)) == ["Abs"]
    assert ops(rewritten(parse(shared % "n"), careful)) == ["Neg", "Abs", "Exp"]
    assert ops(rewritten(parse(shared % "x"), careful)) == ["Neg", "Abs", "Exp"]


def test_an_answer_that_is_there_already_is_an_identity() -> None:
    text = "g (float[2,3] x) => (float[2,3] y) { t = Transpose <perm = [1, 0]> (x) u = Transpose <perm = [1, 0]> (t) y = Relu(u) }"
    found = rewritten(parse(text), "simplify-transpose")
    assert ops(found) == ["Identity", "Relu"]
    assert [v.name for v in found.graph.input] == ["x"]


def test_constants_are_read_and_made() -> None:
    @onnxgrad.rewrite(P.Mul(P.Mul(x, w.const), 2.0))
    def scaled(x: Var, w: Var) -> Any:
        assert w.const is not None
        return op.Mul(x, w.const * 2)

    model = model_of(
        "g (float[2,3] x) => (float[2,3] y) <float two = {2.0}> { m = Mul(x, w) y = Mul(m, two) }",
        weights(w=(3,)),
    )
    found = rewritten(model, scaled)
    assert ops(found).count("Mul") == 1
    feeds = {"x": np.arange(6, dtype=np.float32).reshape(2, 3)}
    np.testing.assert_array_equal(run(found, feeds)["y"], run(model, feeds)["y"])


def test_an_overridable_initializer_is_no_constant() -> None:
    @onnxgrad.rewrite(P.Add(x, w.const))
    def dropped(x: Var) -> Any:
        return op.Identity(x)

    text = "g (float[3] x, float[3] w) => (float[3] y) <float[3] w = {0.0, 0.0, 0.0}> { y = Add(x, w) }"
    assert ops(rewritten(parse(text), dropped)) == ["Add"]
    assert ops(rewritten(parse(text.replace(", float[3] w)", ")")), dropped)) == ["Identity"]


def test_in_a_branch_and_in_a_function_without_types() -> None:
    found = rewritten(
        parse(ABS_OF_NEG_TWICE),
        abs_of_neg,
    )
    then = next(a.g for a in found.graph.node[0].attribute if a.name == "then_branch")
    assert [n.op_type for n in then.node] == ["Abs"]
    assert [n.op_type for n in found.functions[0].node] == ["Abs"]


def test_a_law_that_keeps_its_form_fires_once() -> None:
    @onnxgrad.rewrite(P.Add(x, w))
    def swapped(x: Var, w: Var) -> Any:
        return op.Add(w, x)

    found = rewritten(
        parse("g (float[3] a, float[3] b) => (float[3] y) { y = Add(a, b) }"), swapped
    )
    assert list(found.graph.node[0].input) == ["b", "a"]


def test_among_rules_of_onnxscript() -> None:
    model = parse("g (float[3] x) => (float[3] y) { n = Neg(x) c = Cast <to = 1> (n) y = Abs(c) }")
    ours = onnxgrad.to_onnxscript_rules(abs_of_neg)
    both = rewriter.RewriteRuleSet([common.no_op_cast_rule, *ours], commute=True)
    given = onnx_ir.from_proto(onnx.shape_inference.infer_shapes(model))
    assert both.apply_to_model(given) == 1
    both.apply_to_model(onnx_ir.passes.common.IdentityEliminationPass()(given).model)
    assert [
        n.op_type for n in onnx_ir.passes.common.RemoveUnusedNodesPass()(given).model.graph
    ] == ["Abs"]


def test_a_match_has_the_reason_of_a_decline() -> None:
    @onnxgrad.rewrite(P.Abs(P.Neg(x)))
    def never(x: Var) -> Any:
        return decline("not on a day like this")

    (made,) = onnxgrad.to_onnxscript_rules(never)
    model = onnx_ir.from_proto(parse(CHAIN))
    result = made.match(model, model.graph, model.graph.node(1))
    assert not result and result.reason == "not on a day like this"


@pytest.mark.parametrize(
    "given, said",
    [
        (["fold-constant"], "fold-constant is not a list of laws with one root each"),
        (["combine-parallel-matmul"], "combine-parallel-matmul is not a list"),
        ([3], "laws must be a Rule or a RulePass or text"),
        ([], "no law is given"),
    ],
)
def test_what_onnxscript_has_no_rules_for_is_said(given: list[Any], said: str) -> None:
    with pytest.raises(onnxgrad.InputError, match=said):
        onnxgrad.to_onnxscript_rules(*given)


@pytest.mark.parametrize("name", ["bert.raw", "mobilenet_v2.raw"])
def test_passes_on_real_models(name: str) -> None:
    """What our laws do as theirs is proved like what they do as ours, and is not less."""
    path = MODELS_DIR / f"{name}.onnx"
    passes = "remove-noops,simplify-transpose"
    model = onnx.shape_inference.infer_shapes(onnx.load(path), data_prop=True)
    found = rewriter.rewrite(model, onnxgrad.to_onnxscript_rules(passes))
    report = onnxgrad.verify(path, found)
    assert report.ok, str(report)
    assert len(found.graph.node) < len(model.graph.node)
