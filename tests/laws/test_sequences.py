"""Sequences whose elements stand in the graph, read at constant places."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.rewriting import assert_same_bits, rewritten, special


def check(text: str, ops: list[str], opset: int = 20, **constants: Any) -> None:
    given = {n: np.array(v, np.int64) for n, v in constants.items()}
    done = rewritten(text, "merge-consecutive,remove-noops", given, opset=opset)
    assert done.ops == ops
    assert_same_bits(done, a=special(4, 6))


@pytest.mark.parametrize("opset", [11, 13, 18, 20])
@pytest.mark.parametrize(
    ("body", "ops"),
    [
        ("s = SequenceConstruct(a, r) y = SequenceAt(s, m)", ["Relu", "Neg"]),
        ("s = SequenceConstruct(r, a) y = SequenceAt(s, one)", ["Neg"]),
        ("s = SequenceConstruct(a, r) y = ConcatFromSequence<axis=-1>(s)", ["Relu", "Concat", "Neg"]),
        (
            "s = SequenceConstruct(a, r) y = ConcatFromSequence<axis=1, new_axis=1>(s)",
            ["Relu", "Unsqueeze", "Unsqueeze", "Concat", "Neg"],
        ),
        ("s = SequenceConstruct(a) t = SequenceInsert(s, r, zero) y = SequenceAt(t, m)", ["Neg"]),
        ("s = SequenceConstruct(r, r) t = SequenceInsert(s, a) y = SequenceAt(t, two)", ["Neg"]),
        ("s = SequenceConstruct(r, a) t = SequenceErase(s, zero) y = SequenceAt(t, m)", ["Neg"]),
        ("s = SequenceConstruct(a, r) t = SequenceErase(s) y = SequenceAt(t, zero)", ["Neg"]),
        ("s = SequenceEmpty() t = SequenceInsert(s, a) y = SequenceAt(t, zero)", ["Neg"]),
        ("s = SplitToSequence<axis=0>(a, sizes) y = SequenceAt(s, one)", ["Split", "Neg"]),
        ("s = SplitToSequence<axis=1>(a, two) y = SequenceAt(s, m)", ["Split", "Neg"]),
        ("s = SplitToSequence<axis=1, keepdims=0>(a) y = SequenceAt(s, two)", ["Split", "Squeeze", "Neg"]),
        ("s = SplitToSequence<axis=-1>(a) y = ConcatFromSequence<axis=1>(s)", ["Neg"]),
    ],
)  # fmt: skip
def test_known_elements(body: str, ops: list[str], opset: int) -> None:
    text = f"g (float[4,6] a) => (float[] o) {{ r = Relu(a) {body} o = Neg(y) }}"
    check(text, ops, opset, m=-1, zero=0, one=1, two=2, sizes=[1, 3])


@pytest.mark.parametrize("opset", [11, 20])
def test_length(opset: int) -> None:
    text = "g (float[4,6] a) => (int64 o) { s = SequenceConstruct(a, a, a) o = SequenceLength(s) }"
    check(text, ["Identity"], opset)


@pytest.mark.parametrize(
    ("body", "ops"),
    [
        ("s = SequenceConstruct(a, a) o = SequenceErase(s, one)", ["SequenceConstruct"]),
        ("s = SequenceConstruct(a) o = SequenceErase(s)", ["SequenceConstruct", "SequenceErase"]),
        ("o = SplitToSequence<axis=1>(a, two)", ["SplitToSequence"]),
        (
            "s = SplitToSequence<axis=1>(a, two) o = SequenceInsert(s, a)",
            ["SplitToSequence", "SequenceInsert"],
        ),
    ],
)
def test_a_sequence_that_is_a_result(body: str, ops: list[str]) -> None:
    """A Split is not repeated into a sequence that is needed as one; a sequence of nothing has another operator."""
    given = {"one": np.array(1), "two": np.array(2)}
    text = f"g (float[4,6] a) => (seq(float[]) o) {{ {body} }}"
    assert rewritten(text, "merge-consecutive", given).ops == ops


@pytest.mark.parametrize(
    "body",
    [
        "s = SequenceConstruct(a, a) o = SequenceAt(s, i)",
        "s = SequenceConstruct(a, a) o = SequenceAt(s, far)",
        "s = SplitToSequence<axis=0>(a, one) o = SequenceAt(s, i)",
        "s = SplitToSequence<axis=0>(b, one) o = SequenceAt(s, one)",
        "s = SplitToSequence<axis=0>(a, wrong) o = SequenceAt(s, one)",
    ],
)
def test_what_is_not_known_stays(body: str) -> None:
    """A place that a caller gives, one that is not there, an unknown size, sizes that do not add up."""
    text = f"g (float[4,6] a, float[N] b, int64 i) => (float[] o) {{ {body} }}"
    given = {"far": np.array(2), "one": np.array(1), "wrong": np.array([1, 2])}
    assert len(rewritten(text, "merge-consecutive", given).ops) == 2
