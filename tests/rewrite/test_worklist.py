"""The worklist: fixpoint, measures, fuel, one-shot rules, forms of answers, refusals, the record."""

from __future__ import annotations

import re
from typing import Any

import pytest

from onnxgrad.errors import InputError, InternalError, RuleFailed
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.load import load
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var
from onnxgrad.rewrite.combine import combine
from onnxgrad.rewrite.pattern import P, capture
from onnxgrad.rewrite.trace import Trace, decline
from onnxgrad.rewrite.worklist import Rule, apply_rules, count, rewrite
from tests.helpers import parse

x, y = capture("x y")


def block(
    body: str, inputs: str = "float[2,3] a, float[2,3] b", outputs: str = "float[2,3] o"
) -> BindingBlock:
    return load(parse(f"g ({inputs}) => ({outputs}) {{ {body} }}")).main


def ops(main: BindingBlock) -> list[str]:
    main.schedule()
    main.check()
    return [b.op for b in main.bindings]


def run(main: BindingBlock, *rules: Rule, **options: Any) -> Trace:
    trace = Trace(check_measures=True, **options)
    apply_rules(main, rules, trace)
    return trace


@rewrite(P.Neg(P.Neg(x)), shrinks=count("Neg"))
def neg_of_neg(x: Var) -> Var:
    """Neg(Neg(x)) = x"""
    return x


@rewrite(P.Abs(P.Abs(x)), shrinks=count("Abs"))
def abs_of_abs(x: Var) -> Var:
    """Abs(Abs(x)) = Abs(x)"""
    return op.Abs(x)


def test_rewriting_goes_on_until_nothing_matches() -> None:
    body = "n0 = Relu(a)" + "".join(f" n{i + 1} = Neg(n{i})" for i in range(9)) + " o = Neg(n9)"
    main = block(body)
    trace = run(main, neg_of_neg)
    assert ops(main) == ["Relu"] and main.outputs[0].name == "o"
    assert trace.counts["neg_of_neg"].applied == 5 == len(trace.rewrites)


def test_one_rules_result_is_anothers_match() -> None:
    main = block("p = Abs(a) q = Neg(p) r = Neg(q) o = Abs(r)")
    run(main, neg_of_neg, abs_of_abs)
    assert ops(main) == ["Abs"]


def test_a_rule_reaches_nested_blocks_and_function_bodies() -> None:
    program = load(
        parse(
            """<ir_version: 10, opset_import: ["" : 20, "my" : 1]>
            g (bool k, float[2] a) => (float[2] o) {
              m = Neg(a)
              o = If (k) <
                then_branch = t () => (float[2] u) { n = Neg(m) u = Relu(n) },
                else_branch = e () => (float[2] v) { v = my.f(a) }>
            }
            <domain: "my", opset_import: ["" : 20]> f (s) => (r) { p = Neg(s) q = Neg(p) r = Exp(q) }"""
        )
    )
    trace = run(program.main, neg_of_neg)
    (function,) = program.functions.values()
    apply_rules(function, [neg_of_neg], trace)
    assert ops(function) == ["Exp"]
    assert ops(program.main) == ["If"], "the outer Neg has no reader left"
    (branch, _) = next(iter(program.main.bindings)).blocks.values()
    assert ops(branch) == ["Relu"] and trace.counts["neg_of_neg"].applied == 2


def test_a_rule_that_does_not_shrink_its_measure_is_found_out() -> None:
    @rewrite(P.Neg(x), shrinks=count("Neg"))
    def swap(x: Var) -> Var:
        return op.Neg(op.Identity(x))

    with pytest.raises(
        InternalError, match="rule swap did not shrink its measure, the number of Neg"
    ):
        run(block("o = Neg(a)"), swap)


def test_fuel_ends_an_endless_rule_and_names_it() -> None:
    @rewrite(P.Add(x, y), shrinks=count())
    def forever(x: Var, y: Var) -> Var:
        return op.Add(y, x)

    with pytest.raises(
        RuleFailed, match=r"rule forever failed at .* it was applied until its fuel of"
    ):
        apply_rules(block("o = Add(a, b)"), [forever], Trace())


def test_two_one_shot_rules_that_undo_each_other_run_out_of_fuel() -> None:
    there = rewrite(P.Relu(x))(lambda x: op.Max(x, op.Sub(x, x)))
    back = rewrite(P.Max(x, y))(lambda x: op.Relu(x))
    with pytest.raises(RuleFailed, match="fuel"):
        apply_rules(
            block("o = Relu(a)"),
            [
                Rule("there", there.pattern, there.build, None),
                Rule("back", back.pattern, back.build, None),
            ],
            Trace(),
        )


def test_a_one_shot_rule_does_not_fire_on_its_own_result() -> None:
    @rewrite(P.Exp(x))
    def shifted(x: Var) -> Var:
        return op.Exp(op.Add(x, op.Sub(x, x)))

    main = block("e = Exp(a) o = Exp(e)")
    trace = run(main, shifted)
    assert trace.counts["shifted"].applied == 2 and ops(main).count("Exp") == 2


def test_answers_a_value_a_tuple_a_mapping_or_nothing() -> None:
    @rewrite(P.Split(x))
    def by_tuple(x: Var, root: Binding) -> Any:
        return tuple(op.Slice(x, [i], [i + 1], [0]) for i in range(2))

    @rewrite(P.Split(x))
    def by_mapping(x: Var, root: Binding) -> Any:
        return {root.outputs[1]: op.Slice(x, [1], [2], [0])}

    @rewrite(P.Split(x))
    def by_nothing(x: Var) -> Any:
        op.Neg(x)  # what a rule emitted before it declined goes again
        return None

    body, inputs, outputs = (
        "s, t = Split<num_outputs=2>(a) o = Add(s, t)",
        "float[2,3] a",
        "float[1,3] o",
    )
    for rule, expected in (
        (by_tuple, ["Slice", "Slice", "Add"]),
        (by_mapping, ["Split", "Slice", "Add"]),
    ):
        main = block(body, inputs, outputs)
        run(main, Rule(rule.name, rule.pattern, rule.build, None), limit=1)
        assert ops(main) == expected
    main = block(body, inputs, outputs)
    assert not run(main, by_nothing).rewrites and ops(main) == ["Split", "Add"]


def test_constants_of_a_declined_rule_are_taken_back() -> None:
    @rewrite(P.Relu(x))
    def emits_and_declines(x: Var) -> Any:
        op.Add(x, 1.0)
        return decline("on second thoughts")

    main = block("o = Relu(a)")
    run(main, emits_and_declines)
    assert not main.initializers and ops(main) == ["Relu"]


def test_too_many_values_are_refused() -> None:
    rule = rewrite(P.Relu(x))(lambda x: (x, x))
    with pytest.raises(RuleFailed, match="returned 2 values"):
        run(block("o = Relu(a)"), rule)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: op.Cast(x, to=11),
        lambda x: op.Transpose(x, perm=[1, 0]),
        lambda x: op.Reshape(x, [-1]),
        lambda x: op.SequenceConstruct(x),
    ],
)
def test_a_replacement_of_another_type_is_refused(wrong: Any) -> None:
    rule = rewrite(P.Relu(x))(wrong)
    with pytest.raises(RuleFailed, match="a value of another type"):
        run(block("r = Relu(a) o = Exp(r)"), rule)


def test_a_replacement_that_depends_on_what_it_replaces_is_refused() -> None:
    """Each root's replacement reads the other root: neither could be computed first."""

    @rewrite(P.Sub(P.Exp(x).named("left"), P.Log(x).named("right")))
    def crossed(left: Binding, right: Binding) -> Any:
        return {left.out: op.Neg(right.out), right.out: op.Neg(left.out)}

    with pytest.raises(
        RuleFailed, match=r"rule crossed failed at .* it builds on a value that it replaces"
    ):
        run(block("e = Exp(a) l = Log(a) o = Sub(e, l)"), crossed)


def test_counts_firings_and_reasons() -> None:
    @rewrite(P.Neg(P.Neg(x)), shrinks=count("Neg"))
    def picky(x: Var) -> Any:
        """Neg(Neg(x)) = x"""
        return decline("not an input") if x.definition is not None else x

    main = block("n = Neg(a) m = Neg(n) r = Relu(m) s = Neg(r) o = Neg(s)")
    trace = run(main, picky, explain=True)
    counts = trace.counts["picky"]
    assert (counts.matched, counts.applied) == (2, 1) and counts.tried >= 4 and counts.seconds > 0
    (done,) = trace.rewrites
    assert (
        done.number == 1 and done.rule == "picky" and done.where.startswith("m: f32[2,3] = Neg(n")
    )
    ((name, where, reason),) = trace.declined
    assert (name, reason) == ("picky", "not an input") and where.startswith("o: f32[2,3] = Neg(s")
    assert picky.law == "Neg(Neg(x)) = x"
    assert not run(block("n = Neg(a) o = Neg(n)"), picky).declined, (
        "reasons are kept on request only"
    )


def test_max_rewrites_stops_and_numbers_stay_the_same() -> None:
    body = (
        "".join(f" n{i + 1} = Neg({'a' if i == 0 else f'n{i}'})" for i in range(6))
        + " o = Relu(n6)"
    )
    full = run(block(body), neg_of_neg)
    for limit in range(len(full.rewrites) + 1):
        main = block(body)
        trace = run(main, neg_of_neg, limit=limit)
        assert trace.rewrites == full.rewrites[:limit] and trace.stopped
        assert ops(main).count("Neg") == 6 - 2 * limit


def test_what_is_emitted_says_what_it_came_from() -> None:
    model = parse("g (float[2] a) => (float[2] o) { p = Abs(a) o = Abs(p) }")
    model.graph.node[1].metadata_props.add(key="namespace", value="layer")
    main = load(model).main
    run(main, abs_of_abs)
    (only,) = main.bindings
    assert {e.key: e.value for e in only.node.metadata_props} == {
        "namespace": "layer",
        "onnxgrad.made_by": "abs_of_abs",
    }


def test_output_names_survive_when_an_output_is_replaced() -> None:
    main = block(
        "p = Neg(a) q = Neg(p) o = Relu(q) s = Neg(o) t = Neg(s)",
        outputs="float[2,3] o, float[2,3] t, float[2,3] q",
    )
    run(main, neg_of_neg)
    assert [v.name for v in main.outputs] == ["o", "t", "q"]
    assert sorted(ops(main)) == ["Identity", "Identity", "Relu"]  # t is o, and q is the input a


def test_a_value_returned_twice_is_replaced_in_both_places() -> None:
    main = block(
        "n = Neg(a) m = Neg(n) r = Relu(m) s = Neg(r) o = Neg(s)",
        outputs="float[2,3] o, float[2,3] o",
    )
    run(main, neg_of_neg)
    assert [v.name for v in main.outputs] == ["o", "o"] and ops(main) == ["Relu"]


def test_the_law_is_the_docstring() -> None:
    assert re.match(r"Neg\(Neg\(x\)\) = x", neg_of_neg.law)


@pytest.mark.parametrize("explain", [False, True])
@pytest.mark.parametrize("opset", [19, 20])
@pytest.mark.parametrize("domain", ["", "d."])
def test_below_the_opset_that_a_law_needs_it_is_matched_only_to_explain_that(
    domain: str, opset: int, explain: bool
) -> None:
    asked = []

    @rewrite(P.Tanh(x) | P.domain("d").Tanh(x), needs=("Gelu", 20))
    def as_gelu(x: Var, root: Binding) -> Any:
        asked.append(opset)
        return decline("Gelu needs opset 20") if opset < 20 else op.Gelu(x)

    text = f"""<ir_version: 10, opset_import: ["" : {opset}, "d" : 1]>
    g (float[2] a) => (float[2] o) {{ o = {domain}Tanh(a) }}"""
    main = load(parse(text)).main
    trace = run(main, as_gelu, explain=explain)
    assert ops(main) == (["Tanh"] if opset < 20 else ["Gelu"])
    assert asked == ([] if opset < 20 and not explain else [opset])
    assert [reason for _, _, reason in trace.declined] == (
        ["Gelu needs opset 20"] if opset < 20 and explain else []
    )


def test_pattern_and_replacement_as_two_functions() -> None:
    def pattern(b: Any, a: Any) -> Any:
        return P.Sub(P.Neg(a), b)

    @rewrite(pattern)
    def negated_sum(a: Any, b: Any) -> Any:
        return op.Neg(a + b)

    main = block("n = Neg (a)  o = Sub (n, b)")
    run(main, negated_sum)
    assert [b.op for b in main.bindings if b.is_live][-2:] == ["Add", "Neg"]
    added = next(b for b in main.bindings if b.op == "Add")
    assert [v.name for v in added.inputs if v is not None] == ["a", "b"]
    with pytest.raises(InputError, match=r"is written with P, as in .*, not as tuple"):
        rewrite(lambda a: (a, a))


def test_a_rule_that_asks_for_what_its_pattern_lacks() -> None:
    """It was a bare TypeError when the rule first matched."""
    x, weight = capture("x weight")
    with pytest.raises(
        InputError,
        match=r"asks for 'wieght', .* \(did you mean 'weight'\?\): there is x, weight, root",
    ):
        rewrite(P.Mul(x, weight))(lambda x, wieght: x)
    with pytest.raises(
        InputError,
        match="asks for 'b', which its pattern does not capture: there is x, roots, group",
    ):
        combine(P.Neg(x), by=lambda x: x)(lambda x, b: x)
    with pytest.raises(InputError, match="asks for 'other'"):
        combine(P.Neg(x), by=lambda other: other)
    assert rewrite(P.Neg(x))(lambda x, root, scale=1.0: x).name == "<lambda>"


def test_the_tanh_form_of_gelu_as_two_functions() -> None:
    """A pattern that reads like the formula."""

    def pattern(x: Any) -> Any:
        cubic = x + x**3.0 * 0.044715
        return x * 0.5 * (1.0 + P.Tanh(cubic * 0.7978846))

    @rewrite(pattern)
    def gelu(x: Var) -> Var:
        """x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) = Gelu(x)"""
        return op.Gelu(x, approximate="tanh")

    body = """half = Constant <value = float {0.5}> () one = Constant <value = float {1}> ()
      three = Constant <value = float {3}> () c = Constant <value = float {0.044715}> ()
      r = Constant <value = float {0.7978846}> () h = Mul (half, a) p = Pow (a, three)
      s = Mul (c, p) t = Add (a, s) u = Mul (t, r) v = Tanh (u) w = Add (v, one) o = Mul (h, w)"""
    main = block(body)
    run(main, gelu)
    assert main.outputs[0].definition is not None and main.outputs[0].definition.op == "Gelu"


def test_a_pattern_that_is_written_with_op() -> None:
    with pytest.raises(InternalError, match=r"a pattern is written with P, as in P.Relu\(x\), not"):
        rewrite(lambda x: op.Mul(x, op.Sigmoid(x)))
