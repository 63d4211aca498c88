"""Gather of Gather, Concat of Concat, Where by a constant or a Not, Cast of ConstantOfShape, a value quantised twice."""

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


SLICES = [
    # start, end, axes, steps of two Slices of (5, 4, 3), and whether they are one
    (([1], [9], [0], None), ([-3], [4], [1], None), True),
    (([0, 1], [5, 3], None, None), ([-1], [-9], [-1], [-2]), True),
    (([4], [0], [-3], [-2]), ([0, 1], [2, 3], [2, 1], [1, 1]), True),
    (([1], [4], [1], None), ([0], [2], [-2], None), False),  # one axis
    (([1], [1], [0], None), ([0], [2], [2], None), True),  # nothing is left
]


@pytest.mark.parametrize(("first", "second", "one"), SLICES)
@pytest.mark.parametrize("opset", [10, 20])
def test_slice_of_slice(first: Any, second: Any, one: bool, opset: int) -> None:
    names, values = [], {}
    for slice_, bounds in (("a", first), ("b", second)):
        given = {f"{slice_}{k}": i64(v) for k, v in enumerate(bounds) if v is not None}
        names.append(
            ", ".join(n if (n := f"{slice_}{k}") in given else "" for k in range(4)).rstrip(", ")
        )
        values |= given
    text = (
        f"g (float[5,4,N] x) => (float[] o) {{ y = Slice(x, {names[0]}) o = Slice(y, {names[1]}) }}"
    )
    done = rewritten(text, "merge-consecutive", values, opset=opset)
    assert done.ops == ["Slice"] * (1 if one else 2)
    assert_same_bits(done, x=special(5, 4, 3))


@pytest.mark.parametrize(
    "text",
    [
        "g (float[5,4] x, int64[1] e) => (float[] o) { y = Slice(x, z, e) o = Slice(y, z, u, u) }",
        "g (float[5,4] x) => (float[] o, float[] y) { y = Slice(x, z, u, z) o = Slice(y, z, u, u) }",
        "g (float[] x) => (float[] o) { q = Reshape(x, t) y = Slice(q, z, u, z) o = Slice(y, z, u, m) }",
    ],
)
def test_two_slices_stay(text: str) -> None:
    """A bound that a caller gives, a result that is an output, axes from the end of an unknown rank."""
    text = text.replace("float[] x", "float[K] x, int64[n] t")
    values = {"z": i64([0]), "u": i64([1]), "m": i64([-1])}
    assert rewritten(text, "merge-consecutive", values).ops.count("Slice") == 2


QUARTERS = "float[5,4] x) => (float[] o, float[] q, float[] r)"


@pytest.mark.parametrize(
    ("second", "slices"),
    [
        ("r = Slice(y, z, e, u)", 3),
        ("s = Slice(y, z, e, u) r = Slice(s, z, u, z)", 4),  # two of one axis
        ("r = Neg(y)", 3),
        ("r = Slice(y, z, e, z)", 4),
    ],
)
def test_slices_of_one_slice(second: str, slices: int) -> None:
    """Each reads what was sliced, if nothing else reads the first."""
    text = f"g ({QUARTERS} {{ y = Slice(x, z, e, z, t) o = Slice(y, z, e, u) q = Slice(y, u, e, u) {second} }}"
    values = {"z": i64([0]), "u": i64([1]), "e": i64([9]), "t": i64([2])}
    done = rewritten(text, "merge-consecutive", values)
    assert done.count("Slice") == slices
    assert_same_bits(done, x=special(5, 4))


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


@pytest.mark.parametrize("dtype", ["float", "int64", "bool"])
@pytest.mark.parametrize("opset", [9, 16, 20])
def test_where_of_not(dtype: str, opset: int) -> None:
    text = f"g (bool[2,1] c, {dtype}[3] x, {dtype}[2,3] z) => ({dtype}[2,3] o) {{ n = Not(c) o = Where(n, x, z) }}"
    done = rewritten(text, "merge-consecutive", opset=opset)
    assert done.ops == ["Where"] and done.block.bindings
    kind = {"float": np.float32, "int64": np.int64, "bool": bool}[dtype]
    x = np.abs(special(3)) if dtype == "float" else np.arange(3).astype(kind)
    z = np.abs(special(2, 3, seed=1)) if dtype == "float" else np.ones((2, 3), kind)
    if dtype != "bool":  # onnxruntime has no Where of bool
        assert_same_bits(done, c=np.array([[True], [False]]), x=x, z=z)


def test_a_not_that_is_read_elsewhere_stays() -> None:
    text = "g (bool[3] c, float[3] x) => (float[3] o, bool[3] n) { n = Not(c) o = Where(n, x, x) }"
    assert rewritten(text, "merge-consecutive").ops == ["Not", "Where"]


@pytest.mark.parametrize("opset", [9, 13, 20])
@pytest.mark.parametrize(
    ("value", "to", "gone"),
    [
        ("float[1]{1}", 7, True), ("float[1]{-3}", 6, True), ("int64[1]{7}", 1, True), ("float[1]{0.5}", 11, True),
        ("float[1]{1}", 9, True), ("bool[1]{1}", 1, True), ("int64[1]{16777217}", 1, False),
        ("float[1]{0.5}", 7, False), ("float[1]{2}", 9, False), ("float[1]{0.1}", 10, False),
        ("int64[1]{300}", 2, False), ("float[1]{1}", 16, False),
    ],
)  # fmt: skip
def test_cast_of_a_filled_tensor(value: str, to: int, gone: bool, opset: int) -> None:
    text = f"g (int64[2] s) => (undefined[M,N] o) {{ q = ConstantOfShape<value = {value}>(s) o = Cast<to = {to}>(q) }}"
    kinds = {
        1: "float",
        2: "uint8",
        6: "int32",
        7: "int64",
        9: "bool",
        10: "float16",
        11: "double",
        16: "bfloat16",
    }
    if to == 16 and opset < 13:
        return
    done = rewritten(text.replace("undefined", kinds[to]), "merge-consecutive", opset=opset)
    assert done.ops == (["ConstantOfShape"] if gone else ["ConstantOfShape", "Cast"])
    if to != 16:
        for size in ([2, 3], [0, 3]):
            assert_same_bits(done, s=i64(size))


def test_cast_of_the_default_zeros() -> None:
    text = "g (int64[2] s) => (int32[M,N] o) { q = ConstantOfShape(s) o = Cast<to = 6>(q) }"
    done = rewritten(text, "merge-consecutive")
    assert done.ops == ["ConstantOfShape"]
    assert_same_bits(done, s=i64([2, 3]))


QDQ = "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) r = QuantizeLinear(d, t, w) o = DequantizeLinear(r, t, w)"


@pytest.mark.parametrize("opset", [13, 19, 21])
@pytest.mark.parametrize("kind", ["uint8", "int8"])
@pytest.mark.parametrize("scale", [0.1, 3e-38, 1e30, 7.0])
def test_quantised_twice(scale: float, kind: str, opset: int) -> None:
    for zero in (np.iinfo(kind).min, 3, np.iinfo(kind).max):
        constants = {"s": np.float32(scale), "z": np.array(zero, kind)}
        body = QDQ.replace("t, w", "s, z")
        done = rewritten(
            f"g (float[N] x) => (float[N] o) {{ {body} }}",
            "merge-consecutive",
            constants,
            opset=opset,
        )
        assert done.ops == ["QuantizeLinear", "DequantizeLinear"]
        x = np.linspace(-200, 200, 999).astype(np.float32) * np.float32(scale)
        assert_same_bits(done, x=x)


@pytest.mark.parametrize(
    ("s", "z", "t", "w"),
    [(0.1, np.uint8(3), 0.2, np.uint8(3)), (0.1, np.uint8(3), 0.1, np.uint8(4)), (0.1, np.uint8(3), 0.1, np.int8(3)),
     (1e-40, np.uint8(3), 1e-40, np.uint8(3))],
)  # fmt: skip
def test_quantised_in_another_way_stays(s: float, z: Any, t: float, w: Any) -> None:
    constants = {"s": np.float32(s), "z": np.array(z), "t": np.float32(t), "w": np.array(w)}
    done = rewritten(f"g (float[N] x) => (float[N] o) {{ {QDQ} }}", "merge-consecutive", constants)
    assert len(done.ops) == 4


@pytest.mark.parametrize("opset", [11, 13, 18])
def test_split_into_one(opset: int) -> None:
    split = {
        11: "Split<axis = 1>(x)",
        13: "Split<axis = 1>(x, n)",
        18: "Split<axis = 1, num_outputs = 1>(x)",
    }[opset]
    text = f"g (float[2,3] x) => (float[2,3] o) {{ y = {split} o = Neg(y) }}"
    done = rewritten(text, "remove-noops", {"n": i64([3])} if opset == 13 else {}, opset=opset)
    assert done.ops == ["Neg"]
    assert_same_bits(done, x=special(2, 3))
    two = "g (float[2,3] x) => (float[1,3] o, float[1,3] p) { o, y = Split(x) p = Neg(y) }"
    assert rewritten(two, "remove-noops", opset=11).ops == ["Split", "Neg"]
