"""Weights computed anew keep their digits: a scale stays where they would overflow, vanish or meet another fill."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from onnxgrad.folding.digits import EPSILON, NORMAL, reason_of_rounding
from onnxgrad.ir.types import numpy_dtype
from tests.rewriting import Done, apply, assert_same_results, model_of

NAMES = {"float16": np.float16, "float": np.float32, "double": np.float64}
PASSES = "backward-fold-scale-axis,forward-fold-scale-axis,fold-constant"


def scaled(
    dtype: str,
    weight: Any,
    scale: Any,
    body: str = "a = MatMul(x, w) y = Mul(a, s)",
    passes: str = PASSES,
) -> Done:
    kind = NAMES[dtype]
    rows = np.asarray(weight).shape[0]
    text = f"g ({dtype}[3,{rows}] x) => ({dtype}[3,2] y) {{ {body} }}"
    return apply(
        model_of(text, {"w": np.asarray(weight, kind), "s": np.asarray(scale, kind)}), passes
    )


W = np.random.default_rng(0).uniform(0.5, 1.5, (8, 2))


@pytest.mark.parametrize(
    ("dtype", "weight", "scale", "moves"),
    [
        ("float16", 1e-2, [0.5, 2], True),
        ("float16", 1e-2, [1e-4, 2e-4], False),
        ("float16", 1e3, [1e3, 1], False),
        ("float", 1e-25, [1e-19, 2e-19], False),
        ("float", 1e-25, [1e-9, 2e-9], True),
        ("float", 1e30, [1e10, 1], False),
        ("double", 1e-300, [1e-15, 1], False),
        ("double", 1e-300, [1e-5, 1], True),
    ],
)
def test_a_scale_moves_when_the_weight_keeps_its_digits(
    dtype: str, weight: float, scale: Any, moves: bool
) -> None:
    done = scaled(dtype, W * weight, scale)
    assert (done.count("Mul") == 0) == moves
    divided = scaled(dtype, W * weight, [1 / s for s in scale], "a = MatMul(x, w) y = Div(a, s)")
    assert (divided.count("Div") == 0) == moves
    in_front = scaled(dtype, W[:2] * weight, scale, "a = Mul(x, s) y = MatMul(a, w)")
    assert (in_front.count("Mul") == 0) == moves


def test_one_channel_does_not_pay_for_another() -> None:
    assert scaled("float16", W * [1, 1e-2], [1, 1e-3]).count("Mul") == 1
    assert scaled("float16", W * [1, 0], [1, 1e-3]).count("Mul") == 0


def test_a_dead_channel_does_not_keep_a_scale_in_place() -> None:
    """Trained networks have them: smaller than the last digit of the last digit of the others."""
    assert scaled("float", W * [1, 1e-39], [1, 1e-3]).count("Mul") == 0


def test_what_vanishes_beside_its_own_channel_may() -> None:
    weight = W.copy()
    weight[3] = 1e-38
    assert scaled("float", weight, [1e-3, 1]).count("Mul") == 0


def test_a_weight_that_is_not_folded_yet_is_looked_at_too() -> None:
    body = "t = Transpose<perm=[1,0]>(w) a = MatMul(x, t) y = Mul(a, s)"
    text = f"g (float[3,8] x) => (float[3,2] y) {{ {body} }}"
    for weight, left in ((1e-25, 1), (1.0, 0)):
        constants = {
            "w": (W.T * weight).astype(np.float32),
            "s": np.array([1e-19, 2e-19], np.float32),
        }
        done = apply(model_of(text, constants), "backward-fold-scale-axis")
        assert sum(b.op == "Mul" and b.out.returned for b in done.block.bindings) == left


def test_a_bias_that_would_overflow_stays() -> None:
    text = "g (float16[3,8] x) => (float16[3,2] y) { a = Gemm(x, w, c) y = Add(a, d) }"
    for size, left in ((60000, 1), (6, 0)):
        constants = {
            "w": W.astype(np.float16),
            "c": np.full(2, size, np.float16),
            "d": np.full(2, size, np.float16),
        }
        assert apply(model_of(text, constants), "fold-bias").count("Add") == left


@pytest.mark.parametrize("opset", [10, 17])
@pytest.mark.parametrize("fill", [5.0, 0.0])
@pytest.mark.parametrize("forward", [True, False])
def test_a_scalar_does_not_pass_a_pad_of_another_fill(
    opset: int, fill: float, forward: bool
) -> None:
    pad = "Pad(%s, p, v)" if opset > 10 else f"Pad<pads=[0,0,1,1,0,0,1,1], value={fill}>(%s)"
    conv = "Conv<kernel_shape=[1,1]>(%s, w)"
    body = (
        f"a = Mul(x, s) b = {pad % 'a'} y = {conv % 'b'}"
        if forward
        else f"a = {conv % 'x'} b = {pad % 'a'} y = Mul(b, s)"
    )
    constants: dict[str, Any] = {"s": np.float32(2), "w": np.ones((2, 2, 1, 1), np.float32)}
    if opset > 10:
        constants |= {"p": np.array([0, 0, 1, 1, 0, 0, 1, 1]), "v": np.float32(fill)}
    model = model_of(
        f"g (float[1,2,4,4] x) => (float[1,2,6,6] y) {{ {body} }}", constants, opset=opset
    )
    name = "forward" if forward else "backward"
    done = apply(model, f"{name}-fold-scale-axis{{scalars=true}}", "fold-constant")
    assert done.count("Mul") == (1 if fill else 0)
    assert_same_results(done)


def test_the_measure_of_lost_digits() -> None:
    def lost(exact: Any, dtype: int = 1) -> bool:
        return reason_of_rounding(np.asarray(exact, np.longdouble), dtype, "w") is not None

    assert (
        not lost(1 / np.longdouble(3))
        and lost(np.longdouble(1e-44) / 3)
        and lost(np.longdouble(1e39))
    )
    assert not lost(np.zeros((2, 3))) and not lost(np.zeros((0, 3)))
    assert not lost([1e-44 / 3, 1.0]) and lost([[1e-44 / 3], [1e-36]])


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE])
def test_numbers_with_all_their_digits_need_no_second_look(dtype: int) -> None:
    least = NORMAL[dtype]
    assert least == float(np.finfo(numpy_dtype(dtype)).tiny)
    edge = np.array([least * (1 - EPSILON[dtype] / 4), -least, 0.0], np.longdouble)
    assert reason_of_rounding(edge, dtype, "w") is None
    assert reason_of_rounding(edge * EPSILON[dtype] * 1.3, dtype, "w") is not None
