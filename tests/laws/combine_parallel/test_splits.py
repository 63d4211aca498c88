"""What stands behind every part of a Split moves above it, once: biases, operations, elementwise functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxgrad.ir.domains import ACTIVATIONS
from onnxgrad.ir.load import load
from onnxgrad.ir.save import to_proto
from onnxgrad.laws.combine_parallel.splits import lift_above_split
from onnxgrad.rewrite.trace import Trace
from onnxgrad.verify.reference.evaluate import reference
from tests.rewriting import model_of, special

C2, C3 = np.float32([1, -2]), np.float32([3, 0.5, -1])


def lifted(
    body: str, constants: dict[str, Any] | None = None, *, opset: int = 20, limit: int | None = None
) -> Any:
    """[operators, trace] of `p, q = Split(x)` (2 and 3 of 5 columns) and `body` that makes a and b, after lifting."""
    text = f"g (float[4,5] x, float[2] u, float[3] v) => (float[4,2] a, float[4,3] b) {{ p, q = Split <axis = 1> (x, n) {body} }}"
    given = model_of(
        text, {"n": np.array([2, 3]), "c": C2, "d": C3, **(constants or {})}, opset=opset
    )
    program, trace = load(given), Trace(explain=True, check_measures=True, limit=limit)
    block = program.main
    lift_above_split([b for b in block.bindings if b.op == "Split"], trace)
    block.remove_unused()
    block.schedule()
    block.check()
    feeds = {"x": special(4, 5).clip(-50, 50), "u": C2 * 2, "v": C3 * 2}
    feeds["x"][np.isnan(feeds["x"])] = 0.5
    for want, got in zip(
        reference(given, feeds).values(), reference(to_proto(program), feeds).values(), strict=True
    ):
        np.testing.assert_array_equal(want, got)
    return [b.op for b in block.bindings if b.op != "Constant"], trace


def test_a_bias_on_each_branch() -> None:
    found, trace = lifted("a = Add(p, c) b = Add(q, d)")
    assert found == ["Add", "Split"] and trace.counts["add_of_split"].applied == 1


def test_a_bias_may_stand_first() -> None:
    assert lifted("a = Add(c, p) b = Add(q, d)")[0] == ["Add", "Split"]


def test_a_branch_without_a_bias_adds_minus_zero() -> None:
    """0.0 would turn -0.0 into 0.0."""
    found, _ = lifted("a = Add(p, c) b = Identity(q)")
    assert found == ["Add", "Split", "Identity"]


def test_a_bias_that_is_no_row_stays_behind_while_the_others_move() -> None:
    found, _ = lifted("a = Add(p, full) b = Add(q, d)", {"full": np.ones((4, 2), np.float32)})
    assert found == ["Add", "Split", "Add"]


@pytest.mark.parametrize("op", ["Sub", "Mul", "Div", "PRelu"])
def test_other_operations_need_an_operand_on_each_branch(op: str) -> None:
    assert lifted(f"a = {op}(p, c) b = {op}(q, d)")[0] == [op, "Split"]
    assert lifted(f"a = {op}(p, c) b = Neg(q)")[0] == ["Split", op, "Neg"]


@pytest.mark.parametrize("op", ["Sub", "Div"])
def test_what_does_not_commute_stays_the_other_way_round(op: str) -> None:
    assert lifted(f"a = {op}(c, p) b = {op}(d, q)")[0] == ["Split", op, op]


def test_operands_known_only_at_run_time_are_concatenated() -> None:
    assert lifted("a = Mul(p, u) b = Mul(v, q)")[0] == ["Concat", "Mul", "Split"]


def test_one_number_for_a_whole_branch() -> None:
    assert lifted("a = Add(p, s) b = Add(q, d)", {"s": np.float32(2)})[0] == ["Add", "Split"]


def test_an_operation_and_then_a_function_and_another_operation() -> None:
    found, trace = lifted(
        "p2 = Mul(p, c) q2 = Mul(q, d) p3 = Relu(p2) q3 = Relu(q2) a = Add(p3, u) b = Add(q3, v)"
    )
    assert sorted(found) == ["Add", "Concat", "Mul", "Relu", "Split"] and found[-1] == "Split"
    assert len(trace.rewrites) == 3


def test_a_limit_stops_it() -> None:
    found, trace = lifted("p2 = Neg(p) q2 = Neg(q) a = Relu(p2) b = Relu(q2)", limit=1)
    assert len(trace.rewrites) == 1 and found == ["Neg", "Split", "Relu", "Relu"]


@pytest.mark.parametrize("op", sorted({*ACTIVATIONS} - {"Clip", "Sqrt", "Swish"}))
def test_every_elementwise_function(op: str) -> None:
    found, trace = lifted(f"a = {op}(p) b = {op}(q)")
    assert found == [op, "Split"] and trace.counts["activation_of_split"].applied == 1


@pytest.mark.parametrize(
    "body",
    [
        "a = Relu(p) b = Neg(q)",
        "a = LeakyRelu <alpha = 0.1> (p) b = LeakyRelu <alpha = 0.2> (q)",
        "a = Clip(p, lo) b = Clip(q, hi)",
        "a = Softmax(p) b = Softmax(q)",
        "t = Relu(p) b = Relu(q) a = Mul(t, p)",
        "a = Add(p, c) b = Mul(q, d)",
        "t = ReduceSum <keepdims = 0> (q) a = Add(p, t) b = Add(q, d)",
    ],
)
def test_what_stays(body: str) -> None:
    constants = {"lo": np.float32(-1), "hi": np.float32(0)}
    assert not lifted(body, constants)[1].rewrites


def test_an_equal_clip_moves() -> None:
    assert lifted("a = Clip(p, lo) b = Clip(q, lo)", {"lo": np.float32(-1)})[0] == ["Clip", "Split"]


def test_before_opset_7_an_attribute_broadcasts() -> None:
    text = """g (float[4,5] x) => (float[4,2] a, float[4,3] b) {
      p, q = Split <axis = 1, split = [2, 3]> (x)
      a = Add <broadcast = 1> (p, c) b = Add <broadcast = 1> (q, d) }"""
    block = load(model_of(text, {"c": C2, "d": C3}, opset=6)).main
    trace = Trace()
    lift_above_split(list(block.bindings), trace)
    assert not trace.rewrites


def test_a_part_that_nobody_may_move_keeps_all() -> None:
    """A graph output is read by its name."""
    text = """g (float[4,5] x) => (float[4,2] p, float[4,2] a, float[4,3] b) {
      p, q = Split <axis = 1> (x, n) a = Relu(p) b = Relu(q) }"""
    block = load(model_of(text, {"n": np.array([2, 3])})).main
    trace = Trace()
    lift_above_split(list(block.bindings), trace)
    assert not trace.rewrites
