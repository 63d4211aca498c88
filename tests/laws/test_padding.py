"""Pad in front of Conv and pooling: zeros that the operator writes by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.rewriting import assert_same_bits, rewritten

W = np.random.default_rng(0).standard_normal((3, 2, 3, 3)).astype(np.float32)
X = np.random.default_rng(1).standard_normal((1, 2, 6, 5)).astype(np.float32)


def padded(reader: str, pads: list[int], value: float | None = None, **options: Any) -> Any:
    constants: dict[str, Any] = {"w": W, "p": np.array(pads, np.int64)}
    if value is not None:
        constants["v"] = np.float32(value)
    pad = f"Pad(x, p{', v' if value is not None else ''})"
    return rewritten(
        f"g (float[1,2,6,5] x) => (float[] o) {{ y = {pad} o = {reader} }}",
        "merge-consecutive",
        constants,
        **options,
    )


SPATIAL = [0, 0, 1, 2, 0, 0, 0, 1]


@pytest.mark.parametrize("opset", [11, 13, 18, 20])
@pytest.mark.parametrize(
    "reader",
    [
        "Conv(y, w)",
        "Conv<pads=[1,0,0,1], strides=[2,2]>(y, w)",
        "Conv<dilations=[2,1], kernel_shape=[3,3]>(y, w)",
    ],
)
def test_into_conv(reader: str, opset: int) -> None:
    for value in (None, 0.0):
        done = padded(reader, SPATIAL, value, opset=opset)
        assert done.ops == ["Conv"]
        assert_same_bits(done, x=X)


def test_into_conv_by_attributes_before_opset_11() -> None:
    text = (
        "g (float[1,2,6,5] x) => (float[] o) { y = Pad<pads=[0,0,1,2,0,0,0,1]>(x) o = Conv(y, w) }"
    )
    for opset in (2, 10):
        done = rewritten(text, "merge-consecutive", {"w": W}, opset=opset)
        assert done.ops == ["Conv"]
    assert_same_bits(done, x=X)


def test_into_conv_by_axes() -> None:
    text = "g (float[1,2,6,5] x) => (float[] o) { y = Pad(x, p, , a) o = Conv(y, w) }"
    done = rewritten(
        text, "merge-consecutive", {"w": W, "p": np.array([1, 0, 2, 3]), "a": np.array([-1, 2])}
    )
    assert done.ops == ["Conv"]
    assert_same_bits(done, x=X)


@pytest.mark.parametrize(
    ("reader", "pads", "value"),
    [
        ("Conv(y, w)", SPATIAL, 1.0),
        ("Conv(y, w)", SPATIAL, -0.0),
        ("Conv(y, w)", [0, 0, -1, 2, 0, 0, 0, 1], None),
        ("Conv(y, w)", [1, 0, 1, 2, 0, 0, 0, 1], None),
        ('Conv<auto_pad="SAME_UPPER">(y, w)', SPATIAL, None),
        (
            "AveragePool<kernel_shape=[3,3], pads=[1,1,1,1]>(y)",
            SPATIAL,
            None,
        ),  # its own do not count
        ("AveragePool<kernel_shape=[3,3], ceil_mode=1>(y)", SPATIAL, None),
        ("AveragePool<kernel_shape=[2,2]>(y)", SPATIAL, None),  # a window in the padding
        ("MaxPool<kernel_shape=[3,3]>(y)", SPATIAL, None),
        ("MaxPool<kernel_shape=[3,3]>(y)", SPATIAL, float(np.finfo(np.float32).min)),
        ("MaxPool<kernel_shape=[3,3]>(y)", SPATIAL, -np.inf),
    ],
)
def test_stays(reader: str, pads: list[int], value: float | None) -> None:
    assert padded(reader, pads, value).ops[0] == "Pad"


def test_stays_for_another_reader_another_mode_and_unknown_sizes() -> None:
    text = "g (float[1,2,6,5] x) => (float[] o, float[] y) { y = Pad(x, p) o = Conv(y, w) }"
    assert len(rewritten(text, "merge-consecutive", {"w": W, "p": np.array(SPATIAL)}).ops) == 2
    text = 'g (float[1,2,6,5] x) => (float[] o) { y = Pad<mode="edge">(x, p) o = Conv(y, w) }'
    assert len(rewritten(text, "merge-consecutive", {"w": W, "p": np.array(SPATIAL)}).ops) == 2
    text = "g (float[1,2,6,5] x, int64[8] p) => (float[] o) { y = Pad(x, p) o = Conv(y, w) }"
    assert len(rewritten(text, "merge-consecutive", {"w": W}).ops) == 2


@pytest.mark.parametrize("opset", [11, 13, 19, 22])
def test_into_pooling(opset: int) -> None:
    done = padded("AveragePool<kernel_shape=[3,3]>(y)", SPATIAL, opset=opset)
    assert done.ops == ["AveragePool"]
    assert_same_bits(done, x=X)
    done = padded(
        "AveragePool<kernel_shape=[3,3], pads=[1,0,0,1], count_include_pad=1, strides=[2,1]>(y)",
        SPATIAL,
        opset=opset,
    )
    assert done.ops == ["AveragePool"]
    assert_same_bits(done, x=X)
