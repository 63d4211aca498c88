"""Rules of onnxscript's in our engine: what fires, what is declined, and what the proof says of it."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import onnxgrad
from onnxgrad.cli.app import main
from onnxgrad.ir.origins import VALUES_USED
from tests.helpers import MODELS_DIR, parse, unindented
from tests.rewriting import ABS_OF_NEG_TWICE, apply, assert_same_results, model_of, weights

pytest.importorskip("onnxscript")
from onnxscript.rewriter import RewriteRule, RewriteRuleSet
from onnxscript.rewriter.rules import common

pytestmark = pytest.mark.peers


def rule(target: Any, replacement: Any, condition: Any = None, **more: Any) -> Any:
    return RewriteRule(target, replacement, condition, name="own", **more)


ABS_OF_NEG = rule(lambda op, x: op.Abs(op.Neg(x)), lambda op, x: op.Abs(x))
CHAIN = "g (float[2,3] x) => (float[2,3] y) { n = Neg(x) y = Abs(n) }"


def test_a_rule_rewrites() -> None:
    done = apply(CHAIN, ABS_OF_NEG)
    assert done.text == unindented("""
        g(x: f32[2,3]) {
          y: f32[2,3] = Abs(x)
          return y
        }""")
    assert done.fired("own") == 1
    assert done.trace.rewrites[0].where == "y: f32[2,3] = Abs(n)"
    assert done.trace.rewrites[0].matched == ("n", "y")
    assert_same_results(done)


def test_names_and_rules_in_one_list() -> None:
    model = parse(
        "g (float[3] x) => (float[3] y) { p = Relu(x) q = Identity(p) n = Neg(q) y = Abs(n) }"
    )
    found = onnxgrad.optimize(model, passes=["remove-noops", RewriteRuleSet([ABS_OF_NEG])])
    assert [n.op_type for n in found.graph.node] == ["Relu", "Abs"]


def test_a_value_with_other_readers_is_left_to_them() -> None:
    done = apply(
        "g (float[3] x) => (float[3] y, float[3] z) { n = Neg(x) y = Abs(n) z = Exp(n) }",
        ABS_OF_NEG,
    )
    assert done.ops == ["Neg", "Abs", "Exp"]


def test_a_condition_says_why_not() -> None:
    def transposed(context: Any, x: Any) -> Any:
        from onnxscript.rewriter import MatchResult

        return MatchResult().fail("x is no matrix") if len(x.shape) != 2 else True

    guarded = rule(lambda op, x: op.Abs(op.Neg(x)), lambda op, x: op.Abs(x), transposed)
    assert apply(CHAIN, guarded).fired("own") == 1
    done = apply(CHAIN.replace("[2,3]", "[3]"), guarded)
    assert done.fired("own") == 0 and done.reasons("own") == ["x is no matrix"]


def test_rules_read_the_types_that_we_know() -> None:
    """The file declares nothing of `n`; onnxscript, which does not infer, would not know."""
    seen = []

    def note(context: Any, n: Any) -> bool:
        seen.append((str(n.type), str(n.shape)))
        return False

    apply(
        "g (float[N,3] x) => (float[N,3] y) { n = Neg(x) y = Abs(n) }",
        rule(lambda op, n: op.Abs(n), lambda op, n: n, note),
    )
    assert seen == [("FLOAT", "[N,3]")]


@pytest.mark.parametrize(
    "wrong, said",
    [
        (lambda op, x: op.Cast(x, to=onnx.TensorProto.DOUBLE), "f64"),
        (lambda op, x: op.Unsqueeze(x, op.Constant(value_ints=[0])), r"f32\[1,2,3\]"),
    ],
)
def test_another_type_is_declined(wrong: Any, said: str) -> None:
    done = apply(CHAIN, rule(lambda op, x: op.Abs(op.Neg(x)), wrong))
    assert done.ops == ["Neg", "Abs"] and done.fired("own") == 0
    (reason,) = done.reasons("own")
    assert "it replaces y: f32[2,3] by a value of type" in reason


@pytest.mark.parametrize(
    "wrong, said",
    [
        (lambda op, x: op.Gelu(x), "it builds Gelu, which opset 18 does not have"),
        (lambda op, x: op.Gelu(x, _version=20), "Multiple versions of opset"),
        (lambda op, x: op.MatMul(x, x), "it builds MatMul wrongly"),
        (lambda op, x: op.Abs(x, beta=2), "no attribute 'beta'"),
    ],
)
def test_what_this_opset_does_not_have_is_declined(wrong: Any, said: str) -> None:
    done = apply(CHAIN, rule(lambda op, x: op.Abs(op.Neg(x)), wrong), opset=18)
    assert done.ops == ["Neg", "Abs"]
    assert said in done.declined


def test_a_wrong_rule_is_refuted() -> None:
    wrong = rule(lambda op, x: op.Abs(op.Neg(x)), lambda op, x: op.Relu(x))
    with pytest.raises(onnxgrad.RewriteRefuted, match=r"number 1, own "):
        onnxgrad.optimize(parse(CHAIN), passes=[wrong])


def test_a_rule_of_their_own_that_is_wrong_is_refuted() -> None:
    """onnxscript 0.7.2 has Relu(Clip(x, a, b)) = Clip(x, max(a, 0), b), which is -1 in place of 0 where b is -1."""
    text = "g (float[8] x) => (float[8] y) <float a = {-2.0}, float b = {-1.0}> { c = Clip(x, a, b) y = Relu(c) }"
    with pytest.raises(onnxgrad.RewriteRefuted, match="number 1, FuseSuccessiveReluClip "):
        onnxgrad.optimize(parse(text), passes=[common.successive_relu_clip_rule])


def test_a_rule_of_their_own_that_loses_a_rank_is_declined() -> None:
    text = "g (float[2,3] x, float[3,4] w, float[5,2,4] b) => (float[5,2,4] y) { m = MatMul(x, w) y = Add(m, b) }"
    done = apply(text, common.matmul_add_to_gemm_rule)
    assert done.ops == ["MatMul", "Add"]
    assert done.declined == "it replaces y: f32[5,2,4] by a value of type f32[2,4]"


def test_an_overridable_initializer_is_no_constant() -> None:
    text = "g (float[3] x, float[3] w) => (float[3] y) <float[3] w = {0.0, 0.0, 0.0}> { y = Add(x, w) }"

    def zero(context: Any, w: Any, **_: Any) -> bool:
        return w.const_value is not None and not w.const_value.numpy().any()

    add_zero = rule(lambda op, x, w: op.Add(x, w), lambda op, x, w: op.Identity(x), zero)
    assert apply(text, add_zero).fired("own") == 0
    fixed = text.replace(", float[3] w)", ")")
    assert apply(fixed, add_zero).fired("own") == 1


def test_several_outputs_are_replaced_together() -> None:
    swap = rule(
        lambda op, x: (op.Sin(x), op.Cos(x)),
        lambda op, x: (op.Sin(x), op.Sin(op.Add(x, op.Constant(value_float=float(np.pi / 2))))),
    )
    done = apply(
        "g (float[3] x) => (float[3] y, float[3] z) { s = Sin(x) y = Neg(s) c = Cos(x) z = Neg(c) }",
        swap,
        "remove-unused",
    )
    assert sorted(done.ops) == ["Add", "Neg", "Neg", "Sin", "Sin"]
    assert_same_results(done)


def test_in_a_branch_and_in_a_function() -> None:
    done = apply(
        ABS_OF_NEG_TWICE,
        ABS_OF_NEG,
    )
    assert done.fired("own") == 2 and done.count("Neg") == 0 and done.count("Abs") == 2
    done.prove()


def test_a_new_constant_is_an_initializer_and_in_a_function_a_constant() -> None:
    double = rule(
        lambda op, x: op.Abs(op.Neg(x)),
        lambda op, x: op.Max(x, op.Mul(x, op.initializer(_tensor(-1.0), name="minus_one"))),
    )
    done = apply(
        """
        <ir_version: 10, opset_import: ["" : 20, "my" : 1]>
        g (float[3] x) => (float[3] y) { m = Neg(x) b = Abs(m) y = my.F(b) }
        <domain: "my", opset_import: ["" : 20]>
        F (x) => (y) { n = Neg(x) y = Abs(n) }""",
        double,
    )
    assert list(done.block.initializers) == ["minus_one"]
    (function,) = done.program.functions.values()
    assert sorted(b.op for b in function.bindings) == ["Constant", "Max", "Mul"]
    done.prove()


def _tensor(value: float) -> Any:
    import onnx_ir

    return onnx_ir.tensor(np.float32(value), name="minus_one")


def test_another_domain_is_imported() -> None:
    fused = rule(
        lambda op, x, w: op.MatMul(op.Transpose(x, perm=[1, 0]), w),
        lambda op, x, w: op.FusedMatMul(x, w, transA=1, _domain="com.microsoft"),
    )
    model = model_of(
        "g (float[4,3] x) => (float[3,5] y) { t = Transpose <perm = [1, 0]> (x) y = MatMul(t, w) }",
        weights(w=(4, 5)),
    )
    done = apply(model, fused)
    assert done.ops == ["FusedMatMul"]
    assert [(o.domain, o.version) for o in done.after.opset_import] == [
        ("", 20),
        ("com.microsoft", 1),
    ]
    assert_same_results(done)


def test_rules_that_undo_each_other_end_with_an_error() -> None:
    there = rule(
        lambda op, x: op.Relu(op.Neg(x)),
        lambda op, x: op.Relu(op.Sub(op.Constant(value_float=0.0), x)),
    )
    back = RewriteRule(
        lambda op, x, z: op.Relu(op.Sub(z, x)), lambda op, x, z: op.Relu(op.Neg(x)), name="back"
    )
    with pytest.raises(
        onnxgrad.RuleFailed, match=r"rule (own|back) failed at .*: it was applied until its fuel"
    ):
        onnxgrad.optimize(
            parse("g (float[3] x) => (float[3] y) { n = Neg(x) y = Relu(n) }"),
            passes=[RewriteRuleSet([there, back])],
        )


def test_a_rule_that_raises_is_named() -> None:
    def broken(context: Any, x: Any) -> bool:
        raise KeyError("scale")

    with pytest.raises(
        onnxgrad.RuleFailed,
        match=r"rule own failed at y: .*Abs\(n\) \(.*test_onnxscript_rules.py, line \d+\): KeyError: 'scale'",
    ):
        onnxgrad.optimize(
            parse(CHAIN), passes=[rule(lambda op, x: op.Abs(op.Neg(x)), lambda op, x: x, broken)]
        )


def test_a_rule_that_makes_functions_is_refused() -> None:
    outlines = rule(
        lambda op, x: op.Abs(op.Neg(x)), lambda op, x: op.AbsNeg(x, _domain="my"), as_function=True
    )
    with pytest.raises(onnxgrad.InputError, match=r"own makes local functions .*outline_as"):
        onnxgrad.optimize(parse(CHAIN), passes=[outlines])


def test_weights_computed_anew_are_proved_within_their_rounding() -> None:
    constants = weights(w=(4, 3, 3, 3), s=(4,), b=(4,), m=(4,), v=(4,), positive="v s")
    done = apply(
        model_of(
            "g (float[1,3,8,8] x) => (float[1,4,6,6] y) { c = Conv(x, w) y = BatchNormalization(c, s, b, m, v) }",
            constants,
        ),
        common.fuse_batchnorm_into_conv_rule,
    )
    assert done.ops == ["Conv"] and done.trace.rounded
    done.prove()


def test_weights_that_their_rules_read() -> None:
    """A derivative by the scale lacks what the rule folded, and other weights are refused."""
    constants = weights(w=(4, 3, 3, 3), s=(4,), b=(4,), m=(4,), v=(4,), positive="v s")
    model = model_of(
        """g (float[1,3,8,8] x, float[1,4] t) => (float[1,4,6,6] y, float[1,4] z) {
          c = Conv(x, w) y = BatchNormalization(c, s, b, m, v) z = Mul (t, s) }""",
        constants,
    )
    for rebasable in (False, True):
        passes = [common.fuse_batchnorm_into_conv_rule]
        made = onnxgrad.optimize(
            model, passes=passes, verify=False, rebasable=rebasable, report=True
        )
        assert {n.op_type for n in made.model.graph.node} == {"Conv", "Mul"}
        assert [p.value for p in made.model.metadata_props if p.key == VALUES_USED] == ["s"]
    other = onnx.ModelProto.FromString(model.SerializeToString())
    for tensor in other.graph.initializer:
        if tensor.name == "s":
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * 2, "s"))
    with pytest.raises(onnxgrad.OnnxgradError, match="s keeps its 4 elements"):
        onnxgrad.rebase(made.model, other, record=made.record)


@pytest.mark.parametrize(
    "name, fires",
    [
        (
            "mobilenet_v2.raw",
            {"ExpandIdentity": 52, "SqueezeReshape1d": 1, "MaterializeReshapeShape": 1},
        ),
        ("bert.raw", {"CastIdentity": 4, "TransposeTranspose": 12, "UnsqueezeUnsqueeze": 3}),
    ],
)
def test_their_own_collection_on_our_models(name: str, fires: dict[str, int]) -> None:
    rules = [getattr(common, n) for n in common.__all__ if n != "gemm_to_matmul_add_rule"]
    rules = [r for r in rules if isinstance(r, RewriteRule | RewriteRuleSet)]
    one = RewriteRuleSet(
        [r for given in rules for r in (given if isinstance(given, RewriteRuleSet) else [given])]
    )
    done = onnxgrad.optimize(MODELS_DIR / f"{name}.onnx", passes=[one], report=True)
    fired = [r.rule for r in done.rewrites]
    assert {rule: fired.count(rule) for rule in fires} == fires
    assert done.proof is not None and done.proof.ok


@pytest.mark.parametrize(
    "fusion, rule, model, opset, made",
    [
        (
            "rules.fusion._rms_normalization",
            "RmsNormFusion2",
            "llama",
            23,
            ("RMSNormalization", 25),
        ),
        (
            "ort_fusions.rms_normalization",
            "RmsNormFusion1",
            "llama",
            None,
            ("SimplifiedLayerNormalization", 25),
        ),
        (
            "ort_fusions.skip_normalization",
            "SkipLayerNorm",
            "bert.raw",
            None,
            ("SkipLayerNormalization", 24),
        ),
    ],
)
def test_their_fusions_are_proved(
    fusion: str, rule: str, model: str, opset: int | None, made: tuple[str, int]
) -> None:
    holder = vars(importlib.import_module(f"onnxscript.rewriter.{fusion}")).values()
    sets = [v for v in holder if isinstance(v, RewriteRuleSet)]
    done = onnxgrad.optimize(
        MODELS_DIR / f"{model}.onnx", passes=sets, target_opset=opset, report=True
    )
    assert [r.rule for r in done.rewrites].count(rule) == made[1]
    assert [n.op_type for n in done.model.graph.node].count(made[0]) == made[1]
    assert done.proof is not None and all(check.ran for check in done.proof.checks.values())


PLUGIN = """
from onnxscript.rewriter import RewriteRule
from onnxscript.rewriter.rules.common import transpose_transpose_rule

abs_of_neg = RewriteRule(lambda op, x: op.Abs(op.Neg(x)), lambda op, x: op.Abs(x))
"""


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "their_rules.py").write_text(PLUGIN)
    onnx.save(parse(CHAIN), tmp_path / "m.onnx")

    def ops(*words: str) -> list[str]:
        chosen = ["--plugin", str(tmp_path / "their_rules.py"), "--passes", "their-rules", *words]
        assert (
            main(["optimize", str(tmp_path / "m.onnx"), *chosen, "-o", str(tmp_path / "out.onnx")])
            == 0
        )
        return [n.op_type for n in onnx.load(tmp_path / "out.onnx").graph.node]

    assert ops("--verify", "each") == ["Abs"]
    said = capsys.readouterr().out
    assert "abs_of_neg" in said and "1 rewrite equal on their own" in said
    assert ops("--max-rewrites", "0") == ["Neg", "Abs"]
