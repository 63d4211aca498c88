"""Gather of Gather, Concat of Concat, and Where by a constant."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.rewriting import assert_same_bits, rewritten, special


def i64(values: Any) -> Any:
    return np.array(values, np.int64)


@pytest.mark.parametrize(
    ("first", "second", "axes"),
    [
        ([3, -1, 0], [2, 0], (0, 0)),
        ([3, -1, 0], -1, (0, 0)),
        ([2, 1], [[0, 1], [-1, -2]], (1, -2)),
        ([2, 1], 1, (1, 1)),
        ([2, 1], [], (-1, 2)),
    ],
)
@pytest.mark.parametrize("opset", [11, 13, 20])
def test_gather_of_gather(first: Any, second: Any, axes: tuple[int, int], opset: int) -> None:
    text = f"g (float[5,4,3] x) => (float[] o) {{ y = Gather<axis={axes[0]}>(x, i) o = Gather<axis={axes[1]}>(y, j) }}"
    done = rewritten(text, "merge-consecutive", {"i": i64(first), "j": i64(second)}, opset=opset)
    same = axes[0] % 3 == axes[1] % 3
    assert done.ops == ["Gather"] * (1 if same else 2)
    assert_same_bits(done, x=special(5, 4, 3))


@pytest.mark.parametrize(
    ("first", "second", "axes"),
    [
        ([1, 0], [1], (0, 1)),
        (1, [1], (0, 0)),
        ([1, 0], [2], (0, 0)),
        ([[1, 0]], [0], (0, 0)),
        ([1, 0], [-3], (0, 0)),
    ],
)
def test_two_gathers_stay(first: Any, second: Any, axes: tuple[int, int]) -> None:
    text = f"g (float[5,4,3] x) => (float[] o) {{ y = Gather<axis={axes[0]}>(x, i) o = Gather<axis={axes[1]}>(y, j) }}"
    assert len(rewritten(text, "merge-consecutive", {"i": i64(first), "j": i64(second)}).ops) == 2


def test_indices_that_a_caller_gives_stay() -> None:
    text = "g (float[5] x, int64[2] j) => (float[] o) { y = Gather(x, i) o = Gather(y, j) }"
    assert len(rewritten(text, "merge-consecutive", {"i": i64([1, 2])}).ops) == 2


@pytest.mark.parametrize("opset", [4, 11, 20])
def test_concat_of_concat(opset: int) -> None:
    text = """g (float[2,N] a, float[2,M] b) => (float[2,K] o) {
        u = Concat<axis=1>(a, b) v = Concat<axis=1>(b, a) o = Concat<axis=1>(u, a, v)
      }"""
    done = rewritten(text, "merge-consecutive", opset=opset)
    assert done.ops == ["Concat"]
    assert_same_bits(done, a=special(2, 3), b=special(2, 2))


def test_concat_counted_from_the_end() -> None:
    text = "g (float[2,N] a, float[2,M] b) => (float[2,K] o) { u = Concat<axis=-1>(a, b) o = Concat<axis=1>(u, a) }"
    done = rewritten(text, "merge-consecutive")
    assert done.ops == ["Concat"]
    assert_same_bits(done, a=special(2, 3), b=special(2, 2))


@pytest.mark.parametrize(
    "body",
    [
        "u = Concat<axis=0>(a, a) o = Concat<axis=1>(u, u)",
        "u = Concat<axis=1>(a, a) o = Concat<axis=1>(u, u)",  # it would be written twice
        "u = Concat<axis=1>(a, a) o = Concat<axis=1>(u, a) p = Neg(u)",
        "p = Concat<axis=1>(a, a) o = Concat<axis=1>(p, a)",
    ],
)
def test_concats_stay(body: str) -> None:
    outputs = "float[] o, float[] p" if "p =" in body else "float[] o"
    done = rewritten(f"g (float[2,2] a) => ({outputs}) {{ {body} }}", "merge-consecutive")
    assert done.count("Concat") == 2


@pytest.mark.parametrize("opset", [9, 16, 20])
@pytest.mark.parametrize(("says", "left"), [(True, "x"), (False, "z")])
def test_where_by_a_constant(says: bool, left: str, opset: int) -> None:
    text = "g (float[2,3] x, float[2,3] z) => (float[2,3] o) { y = Where(c, x, z) o = Neg(y) }"
    for shape in ((), (3,), (2, 1)):
        done = rewritten(text, "remove-noops", {"c": np.full(shape, says)}, opset=opset)
        assert done.ops == ["Neg"]
        assert done.after.graph.node[-1].input[0] == left
        # onnxruntime's own Where loses the sign of a zero
        assert_same_bits(done, x=np.abs(special(2, 3)), z=np.abs(special(2, 3, seed=1)))


@pytest.mark.parametrize(
    ("x", "z", "c"),
    [
        ("float[3]", "float[2,3]", np.array(True)),
        ("float[2,3]", "float[2,3]", np.ones((1, 1, 3), bool)),
        ("float[2,3]", "float[2,3]", np.array([True, False, True])),
        ("float[N]", "float[M]", np.array(True)),
        ("float[1]", "float[1]", np.ones(0, bool)),
        ("float[1]", "float[1]", np.ones(2, bool)),
    ],
)
def test_where_that_may_broadcast_stays(x: str, z: str, c: Any) -> None:
    text = f"g ({x} x, {z} z) => (float[] o) {{ y = Where(c, x, z) o = Neg(y) }}"
    assert rewritten(text, "remove-noops", {"c": c}).ops == ["Where", "Neg"]


def test_where_between_input_and_output_is_an_identity() -> None:
    text = "g (float[2,N] x, float[2,N] z) => (float[2,N] o) { o = Where(c, x, z) }"
    done = rewritten(text, "remove-noops", {"c": np.array([False])})
    assert done.ops == ["Identity"]
    assert_same_bits(done, x=special(2, 3), z=np.ones((2, 3), np.float32))
