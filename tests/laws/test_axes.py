"""Squeeze and Unsqueeze that undo each other."""

from __future__ import annotations

import numpy as np
import pytest

from tests.rewriting import assert_same_bits, rewritten, special


def i64(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


@pytest.mark.parametrize(("first", "second"), [((0, 2), (2, 0)), ((-1,), (2,)), ((1,), (-2,))])
def test_squeeze_of_unsqueeze(first: tuple[int, ...], second: tuple[int, ...]) -> None:
    text = (
        "g (float[2,N] x) => (float[2,N] o) { y = Unsqueeze(x, a) z = Squeeze(y, b) o = Relu(z) }"
    )
    done = rewritten(text, "remove-noops", {"a": i64(*first), "b": i64(*second)})
    assert done.ops == ["Relu"]
    assert_same_bits(done, x=special(2, 3))


@pytest.mark.parametrize("opset", [9, 12])
def test_axes_as_attributes(opset: int) -> None:
    text = """g (float[2,N] x, float[N,1] w) => (float[2,N] o, float[N,1] p) {
        y = Unsqueeze<axes=[1]>(x) z = Squeeze<axes=[1]>(y) o = Relu(z)
        s = Squeeze<axes=[1]>(w) t = Unsqueeze<axes=[1]>(s) p = Relu(t)
      }"""
    done = rewritten(text, "remove-noops", opset=opset)
    assert done.ops == ["Relu", "Relu"]
    assert_same_bits(done, x=special(2, 3), w=special(3, 1))


def test_unsqueeze_of_squeeze() -> None:
    text = "g (float[1,N,1] x) => (float[1,N,1] o) { y = Squeeze(x, a) z = Unsqueeze(y, b) o = Relu(z) }"
    done = rewritten(text, "remove-noops", {"a": i64(0, -1), "b": i64(2, 0)})
    assert done.ops == ["Relu"]
    assert_same_bits(done, x=special(1, 3, 1))


@pytest.mark.parametrize("dtype", ["float16", "float", "double", "int32", "int64"])
def test_between_input_and_output_an_identity_is_enough(dtype: str) -> None:
    text = f"g ({dtype}[2,N] x) => ({dtype}[2,N] o) {{ y = Unsqueeze(x, a) o = Squeeze(y, a) }}"
    assert rewritten(text, "remove-noops", {"a": i64(1)}).ops == ["Identity"]


def test_the_inner_one_stays_for_its_other_reader() -> None:
    text = "g (float[2,N] x) => (float[2,N] o, float[2,1,N] p) { y = Unsqueeze(x, a) z = Squeeze(y, a) o = Relu(z) p = Neg(y) }"
    assert sorted(rewritten(text, "remove-noops", {"a": i64(1)}).ops) == [
        "Neg",
        "Relu",
        "Unsqueeze",
    ]


STAYS = [
    ("Unsqueeze(x, a)", "Squeeze(y, b)", i64(0), i64(1)),  # of (1, 1, N): axis 1 is x's own
    ("Unsqueeze(x, a)", "Squeeze(y)", i64(0), i64(0)),  # the first axis of x goes as well
    ("Squeeze(x, a)", "Unsqueeze(y, b)", i64(0), i64(1)),
    ("Squeeze(x)", "Unsqueeze(y, b)", i64(0), i64(0)),
]


@pytest.mark.parametrize(("first", "second", "a", "b"), STAYS)
def test_other_axes_stay(first: str, second: str, a: np.ndarray, b: np.ndarray) -> None:
    done = rewritten(
        f"g (float[1,N] x) => (float[] o) {{ y = {first} z = {second} o = Relu(z) }}",
        "remove-noops",
        {"a": a, "b": b},
    )
    assert len(done.ops) == 3


def test_negative_axes_of_unknown_rank_stay() -> None:
    text = "g (float[N] n, int64[M] s) => (float[] o) { x = Reshape(n, s) y = Unsqueeze(x, a) z = Squeeze(y, b) o = Relu(z) }"
    assert len(rewritten(text, "remove-noops", {"a": i64(-1), "b": i64(1)}).ops) == 4
    assert len(rewritten(text, "remove-noops", {"a": i64(1), "b": i64(1)}).ops) == 2


def test_axes_that_a_caller_gives_stay() -> None:
    text = "g (float[2,N] x, int64[1] a) => (float[2,N] o) { y = Unsqueeze(x, a) z = Squeeze(y, a) o = Relu(z) }"
    assert len(rewritten(text, "remove-noops").ops) == 3


@pytest.mark.parametrize("opset", [11, 13, 20])
@pytest.mark.parametrize(
    ("first", "second"),
    [((0,), (0,)), ((0,), (1,)), ((1, -1), (2, 0)), ((-1,), (-1,)), ((2,), (0,))],
)
def test_unsqueeze_of_unsqueeze(
    opset: int, first: tuple[int, ...], second: tuple[int, ...]
) -> None:
    rank = 2 + len(first) + len(second)
    result = f"float[{','.join('ABCDEF'[:rank])}] o"
    if opset < 13:
        text = f"""g (float[2,N] x) => ({result}) {{
            y = Unsqueeze<axes = {[i % (2 + len(first)) for i in first]}>(x)
            z = Unsqueeze<axes = {[i % rank for i in second]}>(y) o = Relu(z) }}"""
    else:
        text = f"g (float[2,N] x) => ({result}) {{ y = Unsqueeze(x, a) z = Unsqueeze(y, b) o = Relu(z) }}"
    constants = {"a": i64(*first), "b": i64(*second)} if opset >= 13 else {}
    done = rewritten(text, "remove-noops", constants, opset=opset)
    assert done.ops == ["Unsqueeze", "Relu"]
    assert_same_bits(done, x=special(2, 3))


def test_an_unsqueeze_that_is_read_elsewhere_stays() -> None:
    text = """g (float[2,N] x) => (float[1,1,2,N] o, float[1,2,N] p)
        { y = Unsqueeze(x, a) o = Unsqueeze(y, a) p = Relu(y) }"""
    assert rewritten(text, "remove-noops", {"a": i64(0)}).ops == ["Unsqueeze", "Unsqueeze", "Relu"]
