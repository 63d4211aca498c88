"""Any pattern as a root, what stands inside one, literals, and every answer that a rewriter may give."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from onnxgrad import (
    Each,
    InputError,
    P,
    PatternContext,
    RuleFailed,
    capture,
    op,
    optimize,
    rewrite_bindings,
    rewrite_call,
)
from onnxgrad.ir.load import load
from onnxgrad.passes.rule_passes import simplify_transpose
from onnxgrad.rewrite.combine import apply_family, combine
from onnxgrad.rewrite.slips import is_ours
from onnxgrad.rewrite.trace import Trace
from onnxgrad.verify import run
from tests.helpers import parse

a, b, w, n, i = capture("a b w n i")
SPLIT = "g (float[4] x) => (float[2] y) { p, q = Split<axis=0, num_outputs=2>(x) y = Neg(p) }"
RELU = "g (float[4] x) => (float[4] y) { n = Neg(x) y = Relu(n) }"


def ops(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


@pytest.mark.parametrize(
    ("index", "read", "kept"),
    [(0, "q", "Split"), (1, "p", "Split"), (0, "p", "Slice"), (1, "q", "Slice")],
)
def test_a_root_seen_through_an_output_replaces_that_output(
    index: int, read: str, kept: str
) -> None:
    model = parse(SPLIT.replace("Neg(p)", f"Neg({read})"))
    after = rewrite_call(
        P.Split(a).output(index), lambda a: op.Slice(a, [2 * index], [2 * index + 2], [0]), model
    )
    feeds = {"x": np.arange(4, dtype=np.float32)}
    assert np.array_equal(run(model, feeds)["y"], run(after, feeds)["y"])
    assert ops(after) == [kept, "Neg"]
    root = P.Split(a).output(index)
    assert next(PatternContext(root).matches(load(model).main))[root].name == "pq"[index]


def test_a_family_seen_through_an_output() -> None:
    text = """g (float[4] x, float[4] z) => (float[2] y, float[2] u) {
      p, q = Split<axis=0, num_outputs=2>(x) y = Neg(q) r, s = Split<axis=0, num_outputs=2>(z) u = Neg(s) }"""
    model = parse(text)
    program = load(model)

    @combine(P.Split(a).output(1), by=lambda a: "all")
    def halves(group: Any) -> Any:
        return [op.Slice(branch["a"], [2], [4], [0]) for branch in group]

    apply_family(program.main, halves, Trace())
    assert [b.op for b in program.main.bindings] == ["Neg", "Neg", "Slice", "Slice"]


def test_two_outputs_of_one_binding_may_be_two_roots() -> None:
    first, second = P.Split(a).output(0), P.Split(a).output(1)
    model = parse(SPLIT.replace("Neg(p)", "Add(p, q)"))
    after = rewrite_bindings(
        PatternContext(first, second),
        lambda m: {first: op.Slice(m[a], [0], [2], [0]), second: op.Slice(m[a], [2], [4], [0])},
        model,
    )
    assert sorted(ops(after)) == ["Add", "Slice", "Slice"]


@pytest.mark.parametrize(
    "answer",
    [
        lambda a, root: root.out,
        lambda a, root: None,
        lambda a, root: {},
        lambda a, root: {root: root.out},
    ],
)
def test_a_rewriter_may_leave_the_match_alone(answer: Any) -> None:
    trace = Trace()
    assert ops(rewrite_call(P.Relu(P.Neg(a)), answer, parse(RELU), trace=trace)) == ["Neg", "Relu"]
    assert not trace.rewrites


@pytest.mark.parametrize("answer", [lambda m: {}, lambda m: None, lambda m: {m[NEG]: m[NEG]}])
def test_a_block_rewriter_may_leave_the_match_alone(answer: Any) -> None:
    trace = Trace()
    assert ops(rewrite_bindings(PatternContext(NEG), answer, parse(RELU), trace=trace)) == [
        "Neg",
        "Relu",
    ]
    assert not trace.rewrites


NEG = P.Neg(a)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda a: 3, "replaces y by int 3"),
        (lambda a: np.ones(4), "replaces y by ndarray"),
        (lambda a: [a], "replaces y by list"),
        (lambda a: op.Cast(a, to=11), "a value of another type"),
        (lambda a: {"y": a}, "replaces str 'y'"),
        (lambda a: {P.Neg(b): a}, "not part of its match"),
        (lambda a: (a, a), "returned 2 values"),
    ],
)
def test_an_answer_that_is_no_value_names_the_rule(answer: Any, says: str) -> None:
    answer.__name__ = "my_rule"
    with pytest.raises(RuleFailed, match="rule my_rule ") as raised:
        rewrite_call(P.Relu(a), answer, parse(RELU))
    assert says in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize("answer", [lambda m: 3, lambda m: m[a], lambda m: {NEG: 2.0}])
def test_a_block_rewriters_answer_that_is_no_mapping_of_values_names_it(answer: Any) -> None:
    answer.__name__ = "my_rule"
    with pytest.raises(RuleFailed, match="rule my_rule "):
        rewrite_bindings(PatternContext(NEG), answer, parse(RELU))


def test_a_value_out_of_reach_is_refused() -> None:
    model = parse(
        """g (bool k, float[2] x) => (float[2] o, float[2] e) { e = Exp(x)
          o = If (k) <then_branch = t () => (float[2] u) { u = Neg(x) }, else_branch = f () => (float[2] v) { v = Abs(x) }> }"""
    )
    seen = []

    def inside_out(root: Any) -> Any:
        seen.append(root.out)
        return seen[0] if root.op == "Exp" and root.out is not seen[0] else None

    with pytest.raises(RuleFailed, match="not visible"):
        for pattern in (P.Neg(a), P.Exp(a)):
            model = rewrite_call(
                pattern, inside_out, load(model) if pattern.ops == {"Neg"} else model
            )


def test_only_our_own_rules_are_our_own_fault() -> None:
    assert is_ours(simplify_transpose.run) and not is_ours(lambda: None)


def test_alternatives_and_captures_are_roots() -> None:
    model = parse("g (float[2] x, float[2] z) => (float[2] y) { n = Add(x, z) y = Sub(n, z) }")
    either = P.Add(a, b) | P.Sub(a, b)
    assert ops(rewrite_call(either, lambda a, b: op.Mul(a, b), model)) == ["Mul", "Mul"]
    assert [m[either].name for m in PatternContext(either).matches(load(model).main)] == [
        "n",
        "n",
        "y",
    ]
    seen: list[str] = []
    rewrite_call(a, lambda a: seen.append(a.name), model)
    assert seen == ["n", "y"]


def test_a_match_gives_inner_patterns_too() -> None:
    model = load(
        parse("g (float[2] x, float[2] z) => (float[2] y) { n = Add(x, z) y = Sub(n, z) }")
    ).main
    inner = P.Add(a, b)
    outer = P.Sub(inner, b)
    (m,) = PatternContext(outer).only_used_by(inner, outer).matches(model)
    assert (m[inner].name, m[outer].name) == ("n", "y")
    with pytest.raises(KeyError):
        m[P.Add(a, b)]


def test_a_reader_that_reads_twice_is_one_reader() -> None:
    text = "g (float[2] x) => (float[2] y) { n = Neg(x) y = Mul(n, n) }"
    inner, outer = P.Neg(a), P.Mul(b, b)
    assert (
        len(
            list(
                PatternContext(inner, outer)
                .only_used_by(inner, outer)
                .matches(load(parse(text)).main)
            )
        )
        == 1
    )
    twice = P.Mul(P.Neg(a).only, P.Neg(a).only)
    assert ops(rewrite_call(twice, lambda a: op.Mul(a, a), parse(text))) == ["Mul"]
    assert ops(rewrite_call(P.Mul(P.Neg(a).only, b), lambda a, b: op.Div(a, b), parse(text))) == [
        "Neg",
        "Mul",
    ]
    once = P.Mul(P.Neg(a).only | a, b)  # b reads it as well, so the alternative counts
    assert ops(rewrite_call(once, lambda a, b: op.Div(a, b), parse(text))) == ["Neg", "Div"]
    text = text.replace("=> (float[2] y)", "=> (float[2] y, float[2] n)")
    assert ops(rewrite_call(twice, lambda a: op.Mul(a, a), parse(text))) == ["Neg", "Mul"]


@pytest.mark.parametrize(
    ("constant", "literal", "matches"),
    [
        ("float c = {2.0}", 2.0, True),
        ("float c = {2.0}", 2, True),
        ("float[1] c = {0.1}", 0.1, True),
        ("float[2] c = {2.0, 2.0}", 2.0, False),
        ("float[2] c = {2.0, 3.0}", [2.0, 3.0], True),
        ("float[2] c = {2.0, 3.0}", np.array([3.0, 2.0]), False),
        ("float[1,1] c = {2.0}", 2.0, False),
        ("float c = {3.0}", 2.0, False),
    ],
)
def test_a_literal_operand_is_a_constant_of_that_value(
    constant: str, literal: Any, matches: bool
) -> None:
    model = parse(
        f"g (float[2] x) => (float[{'1,2' if '1,1' in constant else '2'}] y) <{constant}> {{ y = Mul(c, x) }}"
    )
    after = rewrite_call(P.Mul(a, literal), lambda a: op.Add(a, a), model)
    assert ops(after) == (["Add"] if matches else ["Mul"])


def test_literals_of_other_kinds() -> None:
    model = parse("g (int64[2] x) => (int64[2] y) <int64 c = {0}> { y = Add(x, c) }")
    assert ops(rewrite_call(P.Add(a, 0.5), lambda a: op.Neg(a), model)) == ["Add"]
    assert ops(rewrite_call(P.Add(a, False), lambda a: op.Neg(a), model)) == ["Add"]
    assert ops(rewrite_call(P.Add(a, 0), lambda a: op.Neg(a), model)) == ["Neg"]
    with pytest.raises(InputError, match="a pattern's operand is"):
        P.Add(a, object())


def test_a_list_for_an_attribute_is_what_a_tuple_is() -> None:
    model = parse("g (float[2,3] x) => (float[3,2] y) { t = Transpose<perm=[1,0]>(x) y = Exp(t) }")
    assert ops(
        rewrite_call(P.Exp(P.Transpose(a, perm=[1, 0])), lambda a: op.Transpose(op.Exp(a)), model)
    ) != ops(model)


def test_one_capture_in_two_each_is_one_list() -> None:
    text = "g (float[2] x, float[2] z) => (float[4] y) { p = Concat<axis=0>(x, z) q = Concat<axis=0>(%s) y = Add(p, q) }"
    doubled = P.Add(P.Concat(Each(a)), P.Concat(Each(a)))
    for operands, matched in (("x, z", True), ("z, x", False), ("x, x", False)):
        after = rewrite_call(
            doubled, lambda a: op.Mul(op.Concat(*a, axis=0), 2.0), parse(text % operands)
        )
        assert ("Mul" in ops(after)) == matched, operands


def test_passes_are_names_or_passes() -> None:
    one = r"a pass is a name, a Pass, a rule \(onnxscript's too\), a family or an outline_as"
    whole = "optimize: passes must be text or a list"
    for wrong, words in (
        (1, whole),
        ([["clean"]], one),
        ([lambda a: None], one),
        ({"a": 1}, whole),
    ):
        with pytest.raises(InputError, match=words):
            optimize(parse(RELU), passes=wrong, verify=False)


FUNCTION = """<ir_version: 8, opset_import: ["": 14, "f": 1]>
g (double[3] x) => (double[3] z) { y = f.F(x) z = Neg(y) }
<domain: "f", opset_import: ["": 14]> F (x) => (y) { p = Neg(x) q = Neg(x) y = Add(p, q) }"""


def test_a_literal_like_a_value_of_unknown_dtype_is_a_decline() -> None:
    """Below opset 15 no operator makes one, in the body of a function that has no types."""
    program, trace = load(onnx.parser.parse_model(FUNCTION)), Trace(explain=True)
    body = next(iter(program.functions.values()))
    rewrite_call(P.Neg(a), lambda a: op.Mul(a, -1.0), program, trace=trace)
    assert [b.op for b in body.bindings] == ["Neg", "Neg", "Add"]
    assert [b.op for b in program.main.bindings if b.op != "Constant"] == ["F", "Mul"], (
        "the others go on"
    )
    first, second = P.Neg(a), P.Neg(a)
    both = PatternContext(P.Add(first, second))
    rewrite_bindings(both, lambda m: {m[first]: op.Mul(m["a"], -1.0)}, program, trace=trace)
    family = combine(P.Neg(a), by=lambda a: a)(lambda group: [op.Mul(g["a"], -1.0) for g in group])
    apply_family(body, family, trace)
    assert [b.op for b in body.bindings] == ["Neg", "Neg", "Add"]
    assert len(trace.declined) == 4
    assert all("CastLike of opset 15" in reason for _, _, reason in trace.declined)
