"""Operands joined and results split again: sizes known and at run time, axes counted from either end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import onnxgrad
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.load import load
from onnxgrad.laws.combine_parallel.merging import (
    concat,
    known_size,
    reason_not_to_split,
    split,
    stack,
)
from tests.helpers import parse
from tests.rewriting import emitted, model_of

A, B = np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(8, dtype=np.float32).reshape(2, 4)
INPUTS = "g (float[2,3] a, float[2,4] b) => (float[2,3] y) { y = Neg(a) }"


@pytest.mark.parametrize("axis", [1, -1])
def test_inputs_are_joined_when_the_model_runs(axis: int) -> None:
    (found,) = emitted(parse(INPUTS), lambda v: [concat([v["a"], v["b"]], axis)], {"a": A, "b": B})
    np.testing.assert_array_equal(found, np.concatenate([A, B], axis=1))


def test_constants_are_joined_now() -> None:
    block = load(
        model_of("g (float[2,3] x) => (float[2,3] y) { y = Add(x, a) }", {"a": A, "b": B})
    ).main
    with emitting(block):
        whole = concat([block.initializers["a"], block.initializers["b"]], -1)
    assert whole.is_constant and whole.shape == (2, 7) and whole.name.startswith("a_merged")
    np.testing.assert_array_equal(whole.const, np.concatenate([A, B], axis=1))


def test_one_operand_at_run_time_makes_all_of_it_so() -> None:
    model = model_of("g (float[2,3] a) => (float[2,3] y) { y = Neg(a) }", {"c": B})
    (found,) = emitted(model, lambda v: [concat([v["a"], v["c"]], 1)], {"a": A})
    np.testing.assert_array_equal(found, np.concatenate([A, B], axis=1))


@pytest.mark.parametrize("constant", [False, True])
def test_values_of_a_lower_rank_are_lifted_when_stacked(constant: bool) -> None:
    """Biases (3,) beside results (2, 3): stacked they are (n, 1, 3)."""
    one, two = A[0], A[1]
    text = "g (float[3] a, float[3] b) => (float[3] y) { y = Neg(a) }"
    if constant:
        model = model_of("g (float[3] x) => (float[3] y) { y = Neg(x) }", {"a": one, "b": two})
        feeds = {"x": one}
    else:
        model, feeds = parse(text), {"a": one, "b": two}
    (found,) = emitted(model, lambda v: [stack([v["a"], v["b"], v["a"]], 2)], feeds)
    np.testing.assert_array_equal(found, np.stack([one, two, one])[:, None])


def test_a_value_that_stands_twice_is_lifted_once() -> None:
    block = load(parse(INPUTS)).main
    with emitting(block):
        stack([block.inputs[0]] * 3, 2)
    assert [b.op for b in block.bindings].count("Unsqueeze") == 1


@pytest.mark.parametrize("axis", [1, -1])
def test_split_by_known_sizes(axis: int) -> None:
    def build(v: dict[str, Any]) -> Any:
        whole = concat([v["a"], v["b"]], 1)
        return split(whole, [3, 4], [v["a"], v["b"]], 1, axis)

    first, second = emitted(parse(INPUTS), build, {"a": A, "b": B})
    np.testing.assert_array_equal(first, A)
    np.testing.assert_array_equal(second, B)


@pytest.mark.parametrize("source_axis", [1, -1])
def test_split_by_sizes_known_only_at_run_time(source_axis: int) -> None:
    model = parse("g (float[2,M] a, float[2,N] b) => (float[2,M] y) { y = Neg(a) }")

    def build(v: dict[str, Any]) -> Any:
        sources = [v["a"], v["b"]]
        return split(
            concat(sources, 1), [known_size(s, 1) for s in sources], sources, source_axis, 1
        )

    for width in (1, 5):
        a, b = np.ones((2, width), np.float32), B
        first, second = emitted(model, build, {"a": a, "b": b})
        assert first.shape == (2, width)
        np.testing.assert_array_equal(second, B)


def test_sizes() -> None:
    block = load(parse("g (float[2,N] a, float[] b) => (float[] y) { y = Add(a, b) }")).main
    a, b = block.inputs[0], block.outputs[0]
    assert (known_size(a, 0), known_size(a, -1), known_size(b, 0)) == (2, "N", None)


@pytest.mark.parametrize(
    ("rank", "sizes", "opset", "reason"),
    [
        (2, [3, 4], 6, "broadcast by an attribute"),
        (2, [3, 4], 7, None),
        (None, [3, 4], 10, "counts its axis from the front"),
        (None, [3, 4], 11, None),
        (2, [3, "N"], 12, "has fixed sizes"),
        (2, [3, None], 12, "has fixed sizes"),
        (None, [3, "N"], 13, None),
    ],
)
def test_what_an_opset_cannot_split(
    rank: int | None, sizes: Any, opset: int, reason: str | None
) -> None:
    found = reason_not_to_split(rank, sizes, opset)
    assert found is None if reason is None else found is not None and reason in found


@pytest.mark.parametrize("name", ["MatMul", "Gemm", "Conv"])
def test_products_that_onnxruntime_fuses_to_int8_stay_apart(name: str) -> None:
    """Both operands are dequantised; a float beside an int8 weight is merged."""
    size = "[4,4,1,1]" if name == "Conv" else "[4,4]"
    given = "[1,4,5,5]" if name == "Conv" else "[3,4]"
    text = f"""g (uint8{given} q, int8{size} v, int8{size} w) => (float y, float z)
        <float s = {{0.5}}, uint8 a = {{128}}, int8 b = {{0}}> {{ x = DequantizeLinear (q, s, a)
        f = DequantizeLinear (v, s, b)  g = DequantizeLinear (w, s, b)
        m = {name} (x, f)  n = {name} (x, g)  y = ReduceSum (m)  z = ReduceSum (n) }}"""
    passes = f"combine-parallel-{name.lower()}{{merge=always}}"
    kept = onnxgrad.optimize(parse(text), passes=passes, explain=True, report=True)
    assert [n.op_type for n in kept.model.graph.node].count(name) == 2
    assert any("int8 kernel" in why for _, _, why in kept.near_misses)
    floats = parse(
        text.replace(f"uint8{given} q", f"float{given} x").replace(
            "x = DequantizeLinear (q, s, a)", ""
        )
    )
    merged = onnxgrad.optimize(floats, passes=passes)
    assert [n.op_type for n in merged.graph.node].count(name) == 1
