"""Split, Slice and Gather of a Concat, and Concat of a Split, between the same places; Concat of
nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.rewriting import assert_same_bits, rewritten, special

TWO = "g (float[2,3] a, float[2,4] b) =>"
JOIN = "w = Concat<axis=1>(a, b)"


def i64(values: Any) -> Any:
    return np.array(values, np.int64)


def check(text: str, ops: list[str], opset: int = 20, **constants: Any) -> None:
    passes = "merge-consecutive,remove-noops"
    done = rewritten(text, passes, {n: i64(v) for n, v in constants.items()}, opset=opset)
    assert done.ops == ops
    feeds = {"a": special(2, 3), "b": special(2, 4, seed=1), "c": special(2, 7, seed=2)}
    assert_same_bits(done, **{n: v for n, v in feeds.items() if f"] {n}" in text.split("=>")[0]})


@pytest.mark.parametrize("opset", [13, 18, 20])
@pytest.mark.parametrize(
    ("parts", "axis", "k", "ops"),
    [
        ("a, b", 1, [3, 4], ["Neg", "Abs"]),
        ("a, b", -1, [3, 4], ["Neg", "Abs"]),
        ("a, b, a", 1, [3, 7], ["Neg", "Concat", "Abs"]),
        ("a, b", 1, [4, 3], ["Concat", "Split", "Neg", "Abs"]),
        ("a, a", 0, [2, 2], ["Concat", "Split", "Neg", "Abs"]),
        ("a, b", 1, [0, 7], ["Concat", "Split", "Neg", "Abs"]),
    ],
)
def test_split_of_concat(parts: str, axis: int, k: list[int], ops: list[str], opset: int) -> None:
    """Cuts of equal or other places, along another axis, and an empty part."""
    if (parts, axis) == ("a, a", 0):
        text = f"{TWO} (float[] o, float[] q) {{ w = Concat<axis=1>(a, a) y, z = Split<axis=0>(w, k) o = Neg(y) q = Abs(z) }}"
        check(text, ops, opset, k=[1, 1])
        return
    text = f"{TWO} (float[] o, float[] q) {{ w = Concat<axis=1>({parts}) y, z = Split<axis={axis}>(w, k) o = Neg(y) q = Abs(z) }}"
    check(text, ops, opset, k=k)


def test_split_of_concat_that_others_read() -> None:
    text = f"{TWO} (float[] o, float[] q, float[] r) {{ {JOIN} y, z = Split<axis=1>(w, k) o = Neg(y) q = Abs(z) r = Sign(w) }}"
    check(text, ["Concat", "Neg", "Abs", "Sign"], k=[3, 4])
    text = text.replace("(a, b)", "(a, b, a)")
    check(text, ["Concat", "Split", "Neg", "Abs", "Sign"], k=[3, 7])


def test_parts_that_are_outputs_keep_their_names() -> None:
    text = f"{TWO} (float[] o, float[] q) {{ w = Concat<axis=1>(a, a) o, q = Split<axis=1>(w, k) }}"
    check(text, ["Identity", "Identity"], k=[3, 3])


@pytest.mark.parametrize(
    ("operands", "axis", "ops"),
    [
        ("p, q", 1, ["Neg"]),
        ("p, q", -1, ["Neg"]),
        ("c, p, q", 1, ["Concat", "Neg"]),
        ("q, p", 1, ["Split", "Concat", "Neg"]),
        ("p, q, p", 1, ["Split", "Concat", "Neg"]),
        ("p, p", 1, ["Split", "Concat", "Neg"]),
    ],
)
def test_concat_of_split(operands: str, axis: int, ops: list[str]) -> None:
    """In order, whole, and otherwise not."""
    text = f"g (float[2,7] c) => (float[] o) {{ p, q = Split<axis=1>(c, k) w = Concat<axis={axis}>({operands}) o = Neg(w) }}"
    check(text, ops, k=[3, 4])


def test_concat_of_split_along_another_axis() -> None:
    text = "g (float[2,7] c) => (float[] o) { p, q = Split<axis=0>(c, k) w = Concat<axis=1>(p, q) o = Neg(w) }"
    check(text, ["Split", "Concat", "Neg"], k=[1, 1])


@pytest.mark.parametrize(
    ("operands", "ops"),
    [
        ("a, e", ["Neg"]),
        ("e, a", ["Neg"]),
        ("a, e, b, e", ["Concat", "Neg"]),
        ("e, e", ["Neg"]),
        ("a, b", ["Concat", "Neg"]),
    ],
)
def test_concat_of_empty(operands: str, ops: list[str]) -> None:
    text = f"{TWO} (float[] o) <float[2,0] e> {{ w = Concat<axis=1>({operands}) o = Neg(w) }}"
    done = rewritten(text, "merge-consecutive", {"e": np.zeros((2, 0), np.float32)})
    assert done.ops == ops
    feeds = {"a": special(2, 3), "b": special(2, 4, seed=1)}
    assert_same_bits(done, **feeds)


def test_an_empty_operand_of_other_rows_stays() -> None:
    """onnxruntime refuses the model if N is not 2; so must it be afterwards."""
    text = "g (float[2,3] a, float[N,0] e) => (float[] o) { o = Concat<axis=1>(a, e) }"
    done = rewritten(text, "merge-consecutive")
    assert done.reasons("concat_of_empty") == [
        "the other sizes of an empty operand are not known to be those of the first"
    ]
    assert not rewritten(text.replace("[N,0]", "[2,M]"), "merge-consecutive").fired(
        "concat_of_empty"
    )


def test_a_concat_of_empty_that_is_an_output_keeps_its_name() -> None:
    text = f"{TWO} (float[2,3] o) <float[2,0] e> {{ o = Concat<axis=1>(a, e) }}"
    done = rewritten(text, "merge-consecutive", {"e": np.zeros((2, 0), np.float32)})
    assert done.ops == ["Identity"]


@pytest.mark.parametrize(
    ("start", "end", "step", "ops"),
    [
        (0, 3, 1, ["Neg"]),
        (-4, 1 << 40, 1, ["Neg"]),
        (1, -4, 1, ["Slice", "Neg"]),
        (-1, -5, -1, ["Slice", "Neg"]),
        (2, -100, -1, ["Slice", "Neg"]),
        (3, 7, 2, ["Slice", "Neg"]),
        (2, 4, 1, ["Concat", "Slice", "Neg"]),
        (5, 5, 1, ["Concat", "Slice", "Neg"]),
        (0, 6, 3, ["Concat", "Slice", "Neg"]),
    ],
)
@pytest.mark.parametrize("opset", [10, 20])
def test_slice_of_concat(start: int, end: int, step: int, ops: list[str], opset: int) -> None:
    """Within one operand; across two, or of nothing, it stays."""
    text = f"{TWO} (float[] o) {{ {JOIN} y = Slice(w, s, e, x, t) o = Neg(y) }}"
    check(text, ops, opset, s=[start], e=[end], x=[1], t=[step])


def test_slice_of_concat_along_two_axes_through_two_concats() -> None:
    text = f"{TWO} (float[] o) {{ {JOIN} v = Concat<axis=1>(b, w) r = Neg(w) y = Slice(v, s, e) o = Div(y, y) }}"
    check(text, ["Slice", "Div"], s=[0, 4], e=[1, 6])


@pytest.mark.parametrize(
    ("indices", "ops"),
    [
        (0, ["Gather", "Neg"]),
        ([[2, 0], [-5, 1]], ["Gather", "Neg"]),
        ([-1, 3], ["Gather", "Neg"]),
        ([2, 3], ["Concat", "Gather", "Neg"]),
        ([], ["Concat", "Gather", "Neg"]),
    ],
)
def test_gather_of_concat(indices: Any, ops: list[str]) -> None:
    text = f"{TWO} (float[] o) {{ {JOIN} y = Gather<axis=-1>(w, i) o = Neg(y) }}"
    check(text, ops, i=indices)


@pytest.mark.parametrize(
    ("index", "ops"), [(2, ["Gather"]), (3, ["Concat", "Gather"]), (-1, ["Concat", "Gather"])]
)
def test_gather_in_front_of_an_unknown_size(index: int, ops: list[str]) -> None:
    """The first three rows are there whatever N is."""
    text = f"g (float[2,3] a, float[2,N] b) => (float[] o) {{ {JOIN} o = Gather<axis=1>(w, i) }}"
    check(text, ops, i=index)


@pytest.mark.parametrize(
    ("end", "ops"), [(3, ["Slice"]), (4, ["Concat", "Slice"]), (-4, ["Concat", "Slice"])]
)
def test_slice_in_front_of_an_unknown_size(end: int, ops: list[str]) -> None:
    text = f"g (float[2,3] a, float[2,N] b) => (float[] o) {{ {JOIN} o = Slice(w, s, e, x) }}"
    check(text, ops, s=[1], e=[end], x=[1])
