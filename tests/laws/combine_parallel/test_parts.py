"""What a merged value falls into: read off a Split, off Gathers, off a stack; joined operands, and parted again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.load import load
from onnxgrad.laws.combine_parallel.splits import GatheredParts, Parts, SplitParts, StackedParts
from tests.rewriting import emitted, model_of

SPLIT = """g (float[2,5,3] x, float[3,1] u, float[2] flat) => (float[2,2,3] a, float[2,3,3] b) {
    p, q = Split <axis = 1> (x, n) a = Neg(p) b = Neg(q) }"""
STACK = """g (float[2,4,3] x, float[3] u) => (float[4,3] a, float[4,3] b) {
    s, t = Split <axis = 0> (x, n) p = Squeeze(s, zero) q = Squeeze(t, zero) a = Neg(p) b = Neg(q) }"""
GATHER = """g (float[2,4,3] x, float[2,1] u) => (float[2,2,3] a, float[2,2,3] b) {
    h = Relu(x) p = Gather <axis = 1> (h, i) q = Gather <axis = 1> (h, j) a = Neg(p) b = Neg(q) }"""
N = {"n": np.array([2, 3])}
ONES = {"n": np.array([1, 1]), "zero": np.array([0])}
CHANNELS = {"i": np.array([2, 0]), "j": np.array([1, 3])}
X = np.arange(30, dtype=np.float32).reshape(2, 5, 3)
X4 = np.arange(24, dtype=np.float32).reshape(2, 4, 3)
C = {"c": np.float32([[1], [2]]), "d": np.float32([[3], [4], [5]])}


def split_parts(v: dict[str, Any]) -> Parts:
    found = SplitParts.read(v["p"].definition)
    assert found is not None
    return found


def stacked_parts(v: dict[str, Any]) -> Parts:
    found = StackedParts.read(v["s"].definition)
    assert found is not None
    return found


def gathered_parts(v: dict[str, Any]) -> Parts:
    found = GatheredParts.read(v["h"])
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("text", "constants", "read", "x"),
    [
        (SPLIT, N, split_parts, X),
        (STACK, ONES, stacked_parts, X4),
        (GATHER, CHANNELS, gathered_parts, abs(X4)),
    ],
)
def test_another_value_is_parted_in_the_same_way(
    text: str, constants: Any, read: Any, x: Any
) -> None:
    def build(v: dict[str, Any]) -> list[Any]:
        parts = read(v)
        assert [o.name for o in parts.outs] == ["p", "q"]
        again = parts.again(parts.whole)
        assert again.made and not set(again.made) & set(parts.made)
        return [*parts.outs, *again.outs]

    feeds = {
        "x": x,
        "u": np.ones([3, 1] if text is SPLIT else [3] if text is STACK else [2, 1], np.float32),
    }
    if text is SPLIT:
        feeds["flat"] = np.ones(2, np.float32)
    p, q, p2, q2 = emitted(model_of(text, constants), build, feeds)
    np.testing.assert_array_equal(p, p2)
    np.testing.assert_array_equal(q, q2)


def joined(text: str, constants: Any, read: Any, operands: Any, feeds: Any) -> Any:
    """whole + joined operands, parted, minus the branches each with its own operand: zeros."""

    def build(v: dict[str, Any]) -> list[Any]:
        parts = read(v)
        chosen = operands(v)
        whole = parts.join(chosen)
        assert whole is not None
        moved = parts.of(parts.whole + whole)
        return [
            m - (o if c is None else o + c)
            for m, o, c in zip(moved, parts.outs, chosen, strict=True)
        ]

    for difference in emitted(model_of(text, constants), build, feeds):
        assert not difference.any()


def test_operands_beside_a_split() -> None:
    feeds = {"x": X, "u": np.float32([[7], [8], [9]]), "flat": np.ones(2, np.float32)}
    for operands in (
        lambda v: [v["c"], v["d"]],
        lambda v: [v["c"], v["u"]],
        lambda v: [None, v["u"]],
        lambda v: [v["c"], None],
        lambda v: [v["one"], v["d"]],
    ):
        joined(SPLIT, {**N, **C, "one": np.float32(4)}, split_parts, operands, feeds)


def test_operands_of_channels_that_were_gathered() -> None:
    feeds = {"x": X4, "u": np.float32([[7], [8]])}
    for operands in (
        lambda v: [v["c"], v["u"]],
        lambda v: [v["c"], v["e"]],
        lambda v: [v["u"], None],
    ):
        joined(
            GATHER,
            {**CHANNELS, "c": C["c"], "e": np.float32([[5], [6]])},
            gathered_parts,
            operands,
            feeds,
        )


def test_operands_beside_a_stack() -> None:
    feeds = {"x": X4, "u": np.float32([7, 8, 9])}
    constants = {**ONES, "c": np.float32([1, 2, 3]), "m": np.ones((4, 3), np.float32)}
    for operands in (
        lambda v: [v["c"], v["u"]],
        lambda v: [v["m"], None],
        lambda v: [v["u"], v["u"]],
    ):
        joined(STACK, constants, stacked_parts, operands, feeds)


def test_what_a_split_takes() -> None:
    constants = {
        **N,
        **C,
        "one": np.float32(4),
        "row": np.ones(3, np.float32),
        "all": np.ones((2, 2, 3), np.float32),
    }
    v = {v.name: v for v in load(model_of(SPLIT, constants)).main.vars()}
    parts = split_parts(v)
    takes = {
        n: parts.takes(v[n], parts.outs[0]) for n in ("c", "d", "one", "row", "all", "u", "flat")
    }
    assert takes == {
        "c": True,
        "d": False,
        "one": True,
        "row": False,
        "all": False,
        "u": False,
        "flat": False,
    }
    assert parts.takes(v["u"], parts.outs[1])


def test_shapes_that_differ_cannot_be_stacked() -> None:
    block = load(
        model_of(STACK, {**ONES, "c": np.ones(3, np.float32), "m": np.ones((4, 3), np.float32)})
    ).main
    v = {v.name: v for v in block.vars()}
    with emitting(block):
        assert stacked_parts(v).join([v["c"], v["m"]]) is None


@pytest.mark.parametrize(
    "body",
    [
        "p, q = Split <axis = 0> (x, n) a = Neg(p) b = Neg(q)",
        "s, t = Split <axis = 0> (x, n) a = Squeeze(s, zero) b = Neg(t)",
        "s, t = Split <axis = 1> (x, m) a = Neg(s) b = Neg(t)",
    ],
)
def test_what_is_no_stack(body: str) -> None:
    text = f"g (float[2,4,3] x) => (float[] a, float[] b) {{ {body} }}"
    block = load(model_of(text, {**ONES, "m": np.array([2, 2])})).main
    (split,) = [b for b in block.bindings if b.op == "Split"]
    assert StackedParts.read(split) is None


@pytest.mark.parametrize(
    ("i", "j", "more"),
    [([0, 1], [1, 2], ""), ([0, 1], [2], ""), ([0, 1], [2, 3], "c = Neg(h)")],
)
def test_what_is_not_each_channel_once(i: list[int], j: list[int], more: str) -> None:
    output = ", float[2,4,3] c" if more else ""
    text = (
        GATHER.replace(") => (", ") => (")
        .replace("float[2,2,3] b)", f"float[] b{output})")
        .replace("a = Neg", f"{more} a = Neg")
    )
    block = load(model_of(text, {"i": np.array(i), "j": np.array(j)})).main
    h = next(v for v in block.vars() if v.name == "h")
    assert GatheredParts.read(h) is None
