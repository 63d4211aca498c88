"""Patterns with several roots: any number of branches, hoisting, cycles refused."""

from __future__ import annotations

import onnx
import pytest

from onnxgrad import (
    Each,
    P,
    PatternContext,
    capture,
    decline,
    op,
    rewrite_bindings,
    rewrite_call,
    verify,
)
from onnxgrad.errors import RuleFailed
from onnxgrad.ir.load import load
from onnxgrad.rewrite.trace import Trace
from onnxgrad.rewrite.worklist import count
from tests.helpers import parse

x, y, w, w1, w2, a, b = capture("x y w w1 w2 a b")


def branches(n: int) -> onnx.ModelProto:
    weights = "".join(f", float[4,{1 + i % 3}] w{i}" for i in range(n))
    outputs = ", ".join(f"float[N,{1 + i % 3}] y{i}" for i in range(n))
    body = " ".join(f"y{i} = MatMul (x, w{i})" for i in range(n))
    return parse(f"g (float[N,4] x{weights}) => ({outputs}) {{ {body} }}")


@pytest.mark.parametrize("n", [2, 3, 12, 13, 22, 32])
def test_any_number_of_branches(n: int) -> None:
    family = Each(P.MatMul(x, w), same=(x,))

    def merge(m: object) -> object:
        if len(m[family]) < 2:
            return None
        parts = op.Split(
            m[x] @ op.Concat(*m[w], axis=1), [v.shape[1] for v in m[w]], axis=1, outputs=len(m[w])
        )
        return dict(zip(m[family], parts))

    model = branches(n)
    merged = rewrite_bindings(PatternContext(family), merge, model)
    assert [node.op_type for node in merged.graph.node] == ["Concat", "MatMul", "Split"]
    assert verify(model, merged).ok


CHAIN = """g (float[2,4] x, float[4,5] u, float[6,4] r) => (float[2,5] p, float[2,6] q) {
    p = MatMul (x, u)
    r_t = Transpose <perm = [1, 0]> (r)
    r_tt = Transpose <perm = [1, 0]> (r_t)
    r_ttt = Transpose <perm = [1, 0]> (r_tt)
    q = MatMul (x, r_ttt)
}"""


def merge_two(m: object) -> object:
    parts = op.Split(
        m[x] @ op.Concat(m[w1], m[w2], axis=1), [m[w1].shape[1], m[w2].shape[1]], axis=1, outputs=2
    )
    return dict(zip(TWO, parts))


TWO = (P.MatMul(x, w1), P.MatMul(x, w2))


def test_what_is_defined_later_is_hoisted_and_nothing_else() -> None:
    merged = rewrite_bindings(PatternContext(*TWO), merge_two, parse(CHAIN))
    onnx.checker.check_model(merged, full_check=True)
    assert [n.op_type for n in merged.graph.node] == [
        "Transpose",
        "Transpose",
        "Transpose",
        "Concat",
        "MatMul",
        "Split",
    ]
    assert verify(parse(CHAIN), merged).ok


def test_a_match_that_would_close_a_cycle_is_refused() -> None:
    model = parse(
        """g (float[4,4] x, float[4,4] u) => (float[4,4] p, float[4,4] q) {
            p = MatMul (x, u)
            r = Relu (p)
            q = MatMul (x, r)
        }"""
    )
    trace = Trace(explain=True)
    assert rewrite_bindings(PatternContext(*TWO), merge_two, model, trace=trace) == model
    assert any("depends on the replaced value" in reason for _, _, reason in trace.declined)


def test_tests_and_sole_readers() -> None:
    add, relu = P.Add(a, b), P.Relu(P.Add(a, b))
    model = parse(
        "g (float[3] x, float[3] z) => (float[3] y, float[3] t) { s = Add (x, z) y = Relu (s) t = Neg (s) }"
    )
    assert list(PatternContext(relu).matches(load(model).main))
    assert not list(PatternContext(add, relu).only_used_by(add, relu).matches(load(model).main))
    assert not list(PatternContext(relu).where(lambda m: m[a].rank == 2).matches(load(model).main))


def test_a_declined_match_leaves_nothing_behind() -> None:
    def refuse(m: object) -> object:
        op.Concat(m[w1], m[w2], axis=1)
        return decline("not today")

    model = branches(2)
    assert rewrite_bindings(PatternContext(*TWO), refuse, model) == model


def test_endless_rewriting_names_the_rewriter() -> None:
    neg = P.Neg(x)

    def flip_for_ever(m: object) -> object:
        return {neg: op.Neg(m[x])}

    model = parse("g (float[3] x) => (float[3] y) { y = Neg (x) }")
    with pytest.raises(RuleFailed, match="flip_for_ever"):
        rewrite_bindings(PatternContext(neg), flip_for_ever, model, shrinks=count("Neg"))
    trace = Trace()
    rewrite_bindings(PatternContext(neg), flip_for_ever, model, trace=trace)
    assert len(trace.rewrites) == 1, "without a measure its own Neg is no match"


def test_call_rewriting_in_place() -> None:
    block = load(
        parse("g (float[3] x) => (float[3] y) { n = Neg (x) m = Neg (n) y = Relu (m) }")
    ).main
    assert rewrite_call(P.Neg(P.Neg(x)), lambda x: x, block, shrinks=count("Neg")) is block
    assert [bound.op for bound in block.bindings] == ["Relu"]


def test_a_family_is_of_members_that_do_not_depend_on_one_another() -> None:
    """`r` reads `p`: with it the whole family would be refused, for its replacement would close a cycle."""
    x, w = capture("x w")
    model = parse(
        """g (float[4,4] x, float[4,4] v, float[4,4] w) => (float[4,4] y, float[4,4] q) {
            p = MatMul(x, v) t = Tanh(p) r = MatMul(x, t) q = MatMul(x, w) y = Relu(r) }"""
    )
    each = Each(P.MatMul(x, w), same=(x,), at_least=2)

    def merge(m):  # type: ignore[no-untyped-def]
        parts = op.Split(
            m["x"] @ op.Concat(*m["w"], axis=1), [4] * len(m["w"]), axis=1, outputs=len(m["w"])
        )
        return dict(zip(m[each], parts, strict=True))

    found = rewrite_bindings(PatternContext(each), merge, model)
    assert sorted(n.op_type for n in found.graph.node).count("MatMul") == 2
    assert verify(model, found)


def test_a_pattern_inside_two_roots_stands_for_one_value() -> None:
    n = P.Softmax(a)
    r, s = P.Relu(n), P.Neg(n)
    text = "g (float[4,4] x) => (float[4,4] y, float[4,4] z) {{ {} }}".format
    split = "p = Softmax<axis=0>(x) q = Softmax<axis=1>(x) y = Relu(p) z = Neg(q)"
    joint = "p = Softmax<axis=0>(x) q = Softmax<axis=1>(x) y = Relu(q) z = Neg(q)"
    for roots in ((r, s), (s, r), (r, s, n), (n, s, r)):
        context = PatternContext(*roots)
        assert not list(context.matches(load(parse(text(split))).main))
        (found,) = context.matches(load(parse(text(joint))).main)
        assert found[n].name == "q"


def test_a_pattern_in_two_families_is_the_same_list() -> None:
    n = P.Softmax(a)
    one, other = Each(P.Relu(n), at_least=2), Each(P.Neg(n), at_least=2)
    text = "g (float[4] x, float[4] v) => ({}) {{ p = Softmax(x) q = Softmax(v) {} }}".format
    outputs = "float[4] a, float[4] b, float[4] c, float[4] d"
    pairs = text(outputs, "a = Relu(p) b = Relu(q) c = Neg(q) d = Neg(p)")
    (found,) = PatternContext(one, other).matches(load(parse(pairs)).main)
    assert [v.name for v in found[one]] == ["a", "b"]
    assert [v.name for v in found[other]] == ["d", "c"], "in the order of the shared values"
    odd = text(outputs, "a = Relu(p) b = Relu(q) c = Neg(q) d = Neg(q)")
    assert not list(PatternContext(one, other).matches(load(parse(odd)).main))
