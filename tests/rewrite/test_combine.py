"""Families of parallel branches: which belong together, what depends on what, and graphs that change underway."""

from __future__ import annotations

from typing import Any

import pytest

from onnxgrad.errors import RuleFailed
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.load import load
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var
from onnxgrad.rewrite.combine import Branch, Shared, apply_family, combine
from onnxgrad.rewrite.pattern import P, capture
from onnxgrad.rewrite.trace import Trace, decline
from tests.helpers import parse

x, w = capture("x w")


def shares_x(x: Var, w: Var) -> Any:
    return x if w.shape == (4, 4) else decline("not 4 by 4")


@combine(P.MatMul(x, w), by=shares_x)
def side_by_side(x: list[Var], w: list[Var], roots: list[Binding]) -> Any:
    return op.Split(x[0] @ op.Concat(*w, axis=1), [4] * len(roots), axis=1, outputs=len(roots))


def block(
    body: str, outputs: str, inputs: str = "float[2,4] x, float[2,4] z, float[4,4] w, float[4,4] v"
) -> BindingBlock:
    typed = ", ".join(f"float[2,4] {name}" for name in outputs.split())
    return load(parse(f"g ({inputs}) => ({typed}) {{ {body} }}")).main


def run(main: BindingBlock, **options: Any) -> Trace:
    trace = Trace(explain=True)
    apply_family(main, side_by_side, trace, **options)
    main.schedule()
    main.check()
    return trace


def products(main: BindingBlock) -> int:
    return sum(b.op == "MatMul" for b in main.walk())


def test_branches_with_one_key_become_one() -> None:
    main = block("a = MatMul(x, w) b = MatMul(x, v) c = MatMul(z, w)", "a b c")
    trace = run(main)
    assert products(main) == 2 and trace.counts["side_by_side"].applied == 1
    assert trace.rewrites[0].where == "2 branches: a, b"
    assert [v.name for v in main.outputs] == ["a", "b", "c"]


@pytest.mark.parametrize("n", [2, 12, 13, 40])
def test_any_number_of_branches(n: int) -> None:
    names = [f"p{i}" for i in range(n)]
    main = block(" ".join(f"{name} = MatMul(x, w)" for name in names), " ".join(names))
    run(main)
    assert products(main) == 1 and len(main.outputs) == n


def test_fewer_than_min_branches_stay() -> None:
    main = block("a = MatMul(x, w) b = MatMul(x, v)", "a b")
    assert not run(main, min_branches=3).rewrites and products(main) == 2


def test_a_branch_that_depends_on_another_does_not_merge() -> None:
    main = load(
        parse(
            """g (float[4,4] x, float[4,4] w) => (float[4,4] a, float[4,4] b) {
            a = MatMul(x, w)
            r = Relu(a)
            b = MatMul(x, r)
            }"""
        )
    ).main
    assert not run(main).rewrites and products(main) == 2


def test_the_independent_ones_merge_around_a_dependent_one() -> None:
    """b and d read a's result: {a, c} and {b, d} are two groups."""
    main = load(
        parse(
            """g (float[4,4] x, float[4,4] w, float[4,4] v) => (float[4,4] a, float[4,4] b, float[4,4] c, float[4,4] d) {
            a = MatMul(x, w)
            r = Relu(a)
            b = MatMul(x, r)
            c = MatMul(x, v)
            s = Tanh(a)
            d = MatMul(x, s)
            }"""
        )
    ).main
    trace = run(main)
    assert [f.where for f in trace.rewrites] == [
        "2 branches: a, c",
        "2 branches: b, d",
    ] and products(main) == 2


def test_two_groups_that_would_close_a_cycle_together() -> None:
    """{a1, a2} on x and {b1, b2} on z; b1 reads a1 and a2 reads b2. Each group alone may merge, both may not.

    Whoever decides on the graph as it was before the first merge builds a cycle.
    """
    main = load(
        parse(
            """g (float[4,4] x, float[4,4] z, float[4,4] w, float[4,4] v)
                => (float[4,4] a1, float[4,4] a2, float[4,4] b1, float[4,4] b2) {
            a1 = MatMul(x, w)
            wb = Relu(a1)
            b1 = MatMul(z, wb)
            b2 = MatMul(z, v)
            wa = Relu(b2)
            a2 = MatMul(x, wa)
            }"""
        )
    ).main
    trace = run(main)
    assert len(trace.rewrites) == 1 and products(main) == 3


def test_operands_defined_after_the_first_branch_are_hoisted_chains_too() -> None:
    main = block(
        "a = MatMul(x, w) n = Neg(a) vt = Transpose(v) vtt = Transpose(vt) b = MatMul(x, vtt)",
        "n b",
    )
    run(main)
    assert [b.op for b in main.bindings] == [
        "Transpose",
        "Transpose",
        "Concat",
        "MatMul",
        "Split",
        "Neg",
    ]


def test_reasons_and_refusals_are_recorded() -> None:
    main = block(
        "a = MatMul(x, w) b = MatMul(x, u)", "a", "float[2,4] x, float[4,4] w, float[4,5] u"
    )
    assert "not 4 by 4" in {reason for _, _, reason in run(main).declined}

    @combine(P.MatMul(x, w), by=shares_x)
    def refuses(x: list[Var]) -> Any:
        op.Neg(x[0])
        return decline("too dear")

    main = block("a = MatMul(x, w) b = MatMul(x, v)", "a b")
    trace = Trace(explain=True)
    assert apply_family(main, refuses, trace) == [] and len(main.bindings) == 2
    assert list(trace.declined) == [("refuses", "2 branches: a, b", "too dear")]


def test_the_key_may_read_the_root() -> None:
    @combine(P.MatMul(x, w), by=lambda root, x: (x, root.out.returned))
    def outputs_only(x: list[Var], w: list[Var], roots: list[Binding]) -> Any:
        assert all(root.out.returned for root in roots)
        return side_by_side.build(x, w, roots)

    main = block("a = MatMul(x, w) b = MatMul(x, v) c = MatMul(x, w) d = Relu(c)", "a b d")
    apply_family(main, outputs_only, Trace())
    assert products(main) == 2


def test_a_wrong_number_of_replacements_is_an_error() -> None:
    @combine(P.MatMul(x, w), by=shares_x)
    def too_few(x: list[Var], w: list[Var], roots: list[Binding]) -> Any:
        return side_by_side.build(x, w, roots)[:1]

    with pytest.raises(RuleFailed, match="one value for each of 2 branches"):
        apply_family(block("a = MatMul(x, w) b = MatMul(x, v)", "a b"), too_few, Trace())


def test_blocks_are_apart() -> None:
    """A product in a branch of an If does not merge with one outside, nor with one of the other branch."""
    main = load(
        parse(
            """g (bool k, float[2,4] x, float[4,4] w, float[4,4] v) => (float[2,4] a, float[2,4] o) {
              a = MatMul(x, w)
              o = If (k) <
                then_branch = t () => (float[2,4] r) { p = MatMul(x, w) q = MatMul(x, v) r = Add(p, q) },
                else_branch = e () => (float[2,4] s) { s = MatMul(x, v) }>
            }"""
        )
    ).main
    trace = run(main)
    assert [f.where for f in trace.rewrites] == ["2 branches: p, q"] and products(main) == 3


def test_the_limit_stops_between_groups() -> None:
    main = block("a = MatMul(x, w) b = MatMul(x, v) c = MatMul(z, w) d = MatMul(z, v)", "a b c d")
    trace = Trace(limit=1)
    apply_family(main, side_by_side, trace)
    assert len(trace.rewrites) == 1 and products(main) == 3


def test_roots_are_bindings() -> None:
    main = block("a = MatMul(x, w) b = MatMul(x, v)", "a b")
    seen: list[Binding] = []

    @combine(P.MatMul(x, w), by=shares_x)
    def look(group: list[Branch]) -> Any:
        seen.extend(branch.root for branch in group)

    apply_family(main, look, Trace())
    assert seen == list(main.bindings)


def test_what_a_branch_leaves_out_is_none_in_the_list() -> None:
    c = capture("c")
    seen: list[Any] = []

    @combine(P.Gemm(x, w, c.maybe), by=lambda x: x)
    def look(c: list[Var | None], group: list[Branch]) -> Any:
        seen.append([None if v is None else v.name for v in c])
        raise decline(f"{group[0]['c']} and others")

    main = block(
        "a = Gemm(x, w) b = Gemm(x, v, k)",
        "a b",
        "float[2,4] x, float[4,4] w, float[4,4] v, float[4] k",
    )
    trace = Trace(explain=True)
    assert apply_family(main, look, trace) == [] and seen == [[None, "k"]]
    assert list(trace.declined) == [("look", "2 branches: a, b", "None and others")]


# ---- near misses -------------------------------------------------------------------------------------------------------


def missed(text: str, **options: Any) -> list[tuple[str, str]]:
    """Where branches stayed apart, and why."""
    trace = Trace(explain=True)
    family = combine(
        P.MatMul(x, w), by=lambda x, w: (x, w.shape), shared=Shared("x", "their weights differ")
    )(side_by_side.build)
    apply_family(load(parse(text)).main, family, trace, **options)
    return [(where, reason) for _, where, reason in trace.declined]


SHARING = "g (float[2,4] x, float[4,4] w, float[4,4] v, float[4,5] u{0}) => ({1}) {{ {2} }}"


def test_branches_of_other_keys_are_named() -> None:
    text = SHARING.format(
        ", float[4,6] t",
        "float[2,4] a, float[2,5] b, float[2,6] c",
        "a = MatMul(x, w) b = MatMul(x, u) c = MatMul(x, t)",
    )
    assert missed(text) == [
        ("1 branch: a", "x is read by b, c too, but their weights differ"),
        ("1 branch: b", "x is read by a, c too, but their weights differ"),
        ("1 branch: c", "x is read by a, b too, but their weights differ"),
    ]


def test_who_shares_with_nobody_is_no_near_miss() -> None:
    text = "g (float[2,4] x, float[2,4] z, float[4,4] w) => (float[2,4] a, float[2,4] b) { a = MatMul(x, w) b = MatMul(z, w) }"
    assert missed(text) == []


def test_branches_that_depend_on_one_another_are_named() -> None:
    text = """g (float[4,4] x, float[4,4] w) => (float[4,4] b) {
        a = MatMul(x, w) r = Relu(a) b = MatMul(x, r) }"""
    assert missed(text) == [("2 branches: a, b", "each depends on another of them")]


def test_what_is_left_of_a_group_is_named() -> None:
    text = """g (float[4,4] x, float[4,4] w, float[4,4] v) => (float[4,4] b, float[4,4] c) {
        a = MatMul(x, w) r = Relu(a) b = MatMul(x, r) c = MatMul(x, v) }"""
    assert missed(text) == [("1 branch: b", "the others of its group depend on it, or it on them")]


def test_too_few_are_named() -> None:
    text = SHARING.format("", "float[2,4] a, float[2,4] b", "a = MatMul(x, w) b = MatMul(x, v)")
    assert missed(text, min_branches=3) == [("2 branches: a, b", "fewer than 3 branches")]
