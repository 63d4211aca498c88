"""onnxgrad/plugins/outline_as.py: neighbouring calls of one domain become a region, unless that makes a cycle."""

from __future__ import annotations

import onnx
import pytest

import onnxgrad
from onnxgrad import P, capture, outline_as
from onnxgrad.passes.user_laws import UserLaws
from onnxgrad.plugins.outline_as import OutlinedPattern
from tests.passes.same_graph import canonical
from tests.rewriting import Done, apply, model_of, weights

x, w, c = capture("x w c")
DENSE = outline_as("accel::Dense", P.Add(P.MatMul(x, w), c))
ACT = outline_as("accel::Act", P.Relu(x))
OTHER = outline_as("other::Squash", P.Tanh(x))
W = weights(u=(4, 4), v=(4, 4), c=(4,))


def merged(text: str, *composites: OutlinedPattern, passes: str = "merge-composites") -> Done:
    done = apply(model_of(text, W), UserLaws(composites or (DENSE, ACT, OTHER)), passes)
    onnx.checker.check_model(done.after)
    done.prove()
    return done


def test_a_chain_is_one_region() -> None:
    done = merged(
        """g (float[N,4] x) => (float[N,4] y) {
        a = MatMul(x, u) b = Add(a, c) d = Relu(b) e = MatMul(d, v) f = Add(e, c) y = Exp(f) }"""
    )
    assert [(b.domain, b.op) for b in done.block.bindings] == [
        ("accel.regions", "region"),
        ("", "Exp"),
    ]
    region = done.program.functions["accel.regions", "region", ""]
    assert [b.op for b in region.bindings] == ["Dense", "Act", "Dense"]
    assert done.fired("merge_composites") == 1


def test_a_region_with_several_results() -> None:
    done = merged(
        """g (float[N,4] x) => (float[N,4] y, float[N,4] z, float[N,4] b) {
        b = Relu(x) d = Relu(b) e = MatMul(b, v) z = Add(e, c) y = Exp(d) }"""
    )
    (call,) = [b for b in done.block.bindings if b.op == "region"]
    assert len(call.outputs) == 3 and [v.name for v in done.block.outputs] == ["y", "z", "b"]


def test_equal_regions_share_a_function() -> None:
    done = merged(
        """g (float[N,4] x) => (float[N,4] y) {
        a = Relu(x) b = Relu(a) d = Exp(b) e = Relu(d) f = Relu(e) y = Exp(f) }"""
    )
    assert [b.op for b in done.block.bindings] == ["region", "Exp", "region", "Exp"]
    assert [domain for domain, *_ in done.program.functions].count("accel.regions") == 1


def test_no_path_leaves_a_region_and_comes_back() -> None:
    done = merged(
        """g (float[N,4] x) => (float[N,4] y) {
        a = Relu(x) e = Exp(a) s = Add(a, e) m = MatMul(s, u) y = Add(m, c) }""",
        DENSE,
        ACT,
    )
    assert [b.op for b in done.block.bindings] == ["region", "Exp", "Add", "region_2"]
    both = merged(
        """g (float[4,4] x) => (float[4,4] y) {
        a = Relu(x) e = Exp(a) m = MatMul(a, e) y = Add(m, c) }""",
        outline_as("accel::Dense", P.Add(P.MatMul(x, w), c)),
        ACT,
    )
    assert [b.op for b in both.block.bindings] == ["region", "Exp", "region_2"]


def test_two_regions_that_read_each_other_would_be_a_cycle() -> None:
    """Each may be cut out alone; together each would need the other first."""
    done = merged(
        """g (float[4,4] x, float[4,4] z) => (float[4,4] y, float[4,4] q) {
        a = Relu(x) t = Tanh(a) s = Tanh(z) r = Relu(s) p = Add(a, r) q = Add(t, s) y = Exp(p)
        }"""
    )
    done.block.check()
    assert {b.domain for b in done.block.bindings} == {"", "accel.regions", "other.regions"}


def test_domains_stay_apart_and_one_may_be_chosen() -> None:
    text = "g (float[N,4] x) => (float[N,4] y) { a = Relu(x) b = Tanh(a) y = Relu(b) }"
    assert [b.domain for b in merged(text).block.bindings] == [
        "accel.regions", "other.regions", "accel.regions",
    ]  # fmt: skip
    chosen = merged(text, passes="merge-composites{domain=other}")
    assert [b.domain for b in chosen.block.bindings] == ["accel", "other.regions", "accel"]


def test_twice_is_once() -> None:
    text = "g (float[N,4] x) => (float[N,4] y) { a = Relu(x) y = Relu(a) }"
    once = merged(text)
    assert canonical(apply(once.after, "merge-composites").after) == canonical(once.after)


def test_inline_is_the_way_back() -> None:
    text = "g (float[N,4] x) => (float[N,4] y) { a = Relu(x) b = Relu(a) d = MatMul(b, u) y = Add(d, c) }"
    done = merged(text, passes="merge-composites,inline{names=*}")
    assert [b.op for b in done.block.bindings] == ["Relu", "Relu", "MatMul", "Add"]
    assert not done.program.functions


def test_in_nested_graphs_and_before_functions() -> None:
    text = """g (float[2,4] x, bool c0) => (float[2,4] y) {
        y = If (c0) <then_branch = t () => (float[2,4] p) { a = Relu(x) p = Relu(a) },
            else_branch = e () => (float[2,4] q) { q = Exp(x) }> }"""
    done = merged(text)
    assert done.fired("merge_composites") == 1
    old = apply(model_of(text, ir_version=7), "merge-composites")
    assert not old.trace.rewrites


@pytest.mark.parametrize("count", [60])
def test_a_long_chain(count: int) -> None:
    nodes = " ".join(f"v{i + 1} = Relu(v{i})" for i in range(count))
    done = merged(f"g (float[4] v0) => (float[4] v{count}) {{ {nodes} }}")
    assert [b.op for b in done.block.bindings] == ["region"]


def test_from_python_in_one_run() -> None:
    model = model_of("g (float[N,4] x) => (float[N,4] y) { a = Relu(x) y = Relu(a) }")
    made = onnxgrad.optimize(model, passes=[ACT, "merge-composites"])
    assert [(n.domain, n.op_type) for n in made.graph.node] == [("accel.regions", "region")]


def test_operators_of_the_runtime_are_merged_and_have_no_body() -> None:
    own = outline_as("accel::Act", P.Relu(x), body=False)
    model = model_of("g (float[4,4] x) => (float[4,4] y) { a = Relu(x) y = Relu(a) }")
    made = onnxgrad.optimize(model, passes=[own, "merge-composites"])
    assert [f.name for f in made.functions] == ["region"]
    assert [n.op_type for n in made.functions[0].node] == ["Act", "Act"]
