"""Block rewriting once more: roots, families, kinds of models, nested blocks, and its cost on long models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.load import load
from onnxgrad.ir.ops import op
from onnxgrad.rewrite import context
from onnxgrad.rewrite.context import Matched, PatternContext, forms, rewrite_bindings, rewrite_call
from onnxgrad.rewrite.pattern import Each, P, capture
from onnxgrad.rewrite.trace import Trace, decline
from onnxgrad.rewrite.worklist import count
from onnxgrad.verify import run
from tests.helpers import parse

x, w, u, v = capture("x w u v")


def block(body: str, outputs: str) -> BindingBlock:
    typed = ", ".join(f"float[4,4] {name}" for name in outputs.split())
    inputs = ", ".join(f"float[4,4] {name}" for name in "abcd")
    return load(parse(f"g ({inputs}) => ({typed}) {{ {body} }}")).main


def ops(main: BindingBlock) -> list[str]:
    main.schedule()
    main.check()
    return [b.op for b in main.bindings]


def test_three_roots_that_share_an_operand() -> None:
    q, k, r = P.MatMul(x, w), P.MatMul(x, u), P.MatMul(x, v)

    def fused(m: Matched) -> Any:
        product = m[x] @ op.Concat(m[w], m[u], m[v], axis=1)
        return dict(zip((q, k, r), op.Split(product, [4, 4, 4], axis=1, outputs=3), strict=True))

    main = block("p = MatMul(a, b) s = MatMul(a, c) t = MatMul(a, d)", "p s t")
    trace = Trace()
    assert rewrite_bindings(PatternContext(q, k, r), fused, main, trace=trace) is main
    assert ops(main) == ["Concat", "MatMul", "Split"] and [o.name for o in main.outputs] == [
        "p",
        "s",
        "t",
    ]
    assert trace.counts["fused"].applied == 1 and trace.rewrites[0].where == "p, s, t"


def test_roots_are_different_bindings_and_all_must_match() -> None:
    context = PatternContext(P.Relu(x), P.Relu(x))
    assert list(context.matches(block("p = Relu(a) q = Relu(b)", "p q"))) == []
    assert len(list(context.matches(block("p = Relu(a) q = Relu(a)", "p q")))) == 2, (
        "in either order"
    )


@pytest.mark.parametrize("n", [2, 12, 13, 40])
def test_a_family_and_a_mapping_of_its_members(n: int) -> None:
    family = Each(P.MatMul(x, w), same=(x,))
    names = [f"y{i}" for i in range(n)]
    main = block(
        " ".join(f"{name} = MatMul(a, {'bcd'[i % 3]})" for i, name in enumerate(names)),
        " ".join(names),
    )

    def fused(m: Matched) -> Any:
        if len(m[family]) < 2:
            return None
        product = m[x] @ op.Concat(*m[w], axis=1)
        return dict(zip(m[family], op.Split(product, [4] * n, axis=1, outputs=n), strict=True))

    rewrite_bindings(PatternContext(family), fused, main)
    assert ops(main) == ["Concat", "MatMul", "Split"]


def asked(context: PatternContext, main: BindingBlock) -> list[list[Any]]:
    """The roots' names at each call of a rewriter that leaves all alone."""
    calls: list[list[Any]] = []

    def look(m: Matched) -> None:
        found = [m[root] for root in context.roots]
        calls.append(
            [[v.name for v in value] if isinstance(value, list) else value.name for value in found]
        )

    rewrite_bindings(context, look, main)
    return calls


@pytest.mark.parametrize(("n", "matches"), [(2, 0), (3, 1), (5, 10), (8, 56)])
def test_callbacks_for_symmetric_roots_grow_with_the_matches(n: int, matches: int) -> None:
    """SPEC, added after a second reading, S3: and not with their permutations."""
    names = [f"y{i}" for i in range(n)]
    main = block(
        " ".join(f"{y} = MatMul(a, {'bcd'[i % 3]})" for i, y in enumerate(names)), " ".join(names)
    )
    three = asked(PatternContext(P.MatMul(x, w), P.MatMul(x, u), P.MatMul(x, v)), main)
    assert len(three) == len({frozenset(roots) for roots in three}) == matches


def test_roots_that_are_told_apart_are_asked_in_every_order() -> None:
    main = block("p = Relu(a) q = Relu(b) r = Neg(q)", "p r")
    assert len(asked(PatternContext(P.Relu(x), P.Relu(w)), main)) == 1
    assert (
        len(asked(PatternContext(P.Relu(x.where(lambda v: v.name == "a")), P.Relu(w)), main)) == 1
    )
    first, negated = P.Relu(x), P.Neg(w)
    told = PatternContext(first, P.Relu(u), negated).only_used_by(first, negated)
    assert asked(told, main) == [["q", "p", "r"]]
    leaky = block("p = LeakyRelu<alpha=0.5>(a) q = LeakyRelu<alpha=0.25>(b)", "p q")
    apart = PatternContext(P.LeakyRelu(x, alpha=0.5), P.LeakyRelu(w, alpha=0.25))
    assert asked(apart, leaky) == [["p", "q"]]


def test_families_of_independent_extents_do_not_overlap() -> None:
    """SPEC, added after a second reading, S3."""
    body = "o = MatMul(a, b) p = MatMul(a, c) q = MatMul(a, d) r = MatMul(b, c) s = MatMul(b, d)"
    one, other = Each(P.MatMul(x, w), same=(x,)), Each(P.MatMul(u, v), same=(u,))
    assert asked(PatternContext(one, other), block(body, "o p q r s")) == [
        [["o", "p", "q"], ["r", "s"]]
    ]
    single = PatternContext(P.MatMul(x, w), Each(P.MatMul(x, v), same=(x,), at_least=2))
    assert asked(single, block(body, "o p q r s"))[0] == ["o", ["p", "q"]]


def test_two_each_share_one_extent() -> None:
    """SPEC, added after a second reading, S3."""
    context = PatternContext(P.Sum(Each(x)), P.Max(Each(x)))
    assert asked(context, block("p = Sum(a, b, c) q = Max(a, b, c)", "p q")) == [["p", "q"]]
    assert asked(context, block("p = Sum(a, b, c) q = Max(a, b)", "p q")) == []


def test_a_declined_match_is_asked_once_and_its_reason_kept() -> None:
    asked: list[str] = []
    relu = P.Relu(x)

    def picky(m: Matched) -> Any:
        asked.append(m[relu].name)
        return decline("not today")

    main = block("p = Relu(a) q = Relu(b)", "p q")
    trace = Trace(explain=True)
    rewrite_bindings(PatternContext(relu), picky, main, trace=trace)
    assert asked == ["p", "q"] and ops(main) == ["Relu", "Relu"]
    assert {reason for _, _, reason in trace.declined} == {"not today"}


def test_the_limit_of_the_trace_holds() -> None:
    relu = P.Relu(x)
    main = block("p = Relu(a) q = Relu(b) r = Relu(c)", "p q r")
    rewrite_bindings(
        PatternContext(relu), lambda m: {relu: op.Abs(m[x])}, main, trace=Trace(limit=2)
    )
    assert ops(main).count("Relu") == 1


def test_rewrite_call_gives_back_the_kind_it_was_given() -> None:
    model = parse("g (float[2] a) => (float[2] o) { p = Neg(a) q = Neg(p) o = Relu(q) }")
    after = rewrite_call(P.Neg(P.Neg(x)), lambda x: x, model, shrinks=count("Neg"))
    assert [n.op_type for n in after.graph.node] == ["Relu"] and len(model.graph.node) == 3
    one = {"a": np.array([1, -1], np.float32)}
    assert np.array_equal(np.asarray(run(after, one)["o"]), np.asarray(run(model, one)["o"]))


def test_nested_blocks_and_functions_are_rewritten_too() -> None:
    model = parse(
        """<ir_version: 10, opset_import: ["" : 20, "my" : 1]>
        g (bool k, float[2] a) => (float[2] o) {
          o = If (k) <
            then_branch = t () => (float[2] p) { p = Relu(a) },
            else_branch = e () => (float[2] q) { q = my.f(a) }>
        }
        <domain: "my", opset_import: ["" : 20]> f (s) => (r) { r = Relu(s) }"""
    )
    relu = P.Relu(x)
    after = rewrite_bindings(PatternContext(relu), lambda m: {relu: op.Abs(m[x])}, model)
    assert "Relu" not in str(after) and str(after).count('"Abs"') == 2


def test_a_long_model_takes_time_in_proportion() -> None:
    n, looked = 3000, 0
    main = block(
        " ".join(f"v{i + 1} = Relu({'a' if i == 0 else f'v{i}'})" for i in range(n)), f"v{n}"
    )

    def look(m: Matched) -> bool:
        nonlocal looked
        looked += 1
        return True

    relu = P.Relu(x)
    rewrite_bindings(PatternContext(relu).where(look), lambda m: {relu: op.Abs(m[x])}, main)
    assert ops(main) == ["Abs"] * n and looked <= 2 * n


def test_interchangeable_roots_are_found_once_for_all_matches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[int] = []

    def counted(roots: Any, told_apart: Any) -> Any:
        calls.append(len(told_apart))
        return forms(roots, told_apart)

    monkeypatch.setattr(context, "forms", counted)
    roots = PatternContext(P.MatMul(x, w), P.MatMul(x, u))
    offered: list[Matched] = []
    main = block("p = MatMul(a, b) q = MatMul(a, c) r = MatMul(a, d)", "p q r")
    rewrite_bindings(roots, offered.append, main)
    assert len(offered) == 3 and calls == [0]
    rewrite_bindings(roots.only_used_by(*roots.roots), offered.append, main)
    assert len(offered) == 3 and calls == [0]  # nothing matches: no form is needed
