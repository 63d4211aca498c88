"""Which Muls and Divs apply one factor per channel, and which factors may move."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.load import load
from onnxgrad.laws.fold_scale_axis.scale import RunTimeScale, Scale, channel_vector, read_scale
from onnxgrad.rewrite.trace import Decline
from tests.rewriting import model_of


def read(
    constant: Any, *, op: str = "Mul", shape: str = "2,3,4,4", scalars: bool = True
) -> Scale | None:
    model = model_of(
        f"g (float[{shape}] x) => (float[] y) {{ y = {op}(x, s) }}",
        {"s": np.asarray(constant, np.float32)},
    )
    block = load(model).main
    b = block.outputs[0].definition
    return read_scale(b, block.inputs[0], block.initializers["s"], scalars, False)


@pytest.mark.parametrize(
    ("shape", "axis", "size"),
    [
        ((3, 1, 1), 1, 3),
        ((1, 3, 1, 1), 1, 3),
        ((4,), 3, 4),
        ((2, 1, 1, 1), 0, 2),
        ((), None, 1),
        ((1,), None, 1),
    ],
)
def test_the_axis_is_counted_from_the_front_of_what_is_scaled(
    shape: tuple[int, ...], axis: int | None, size: int
) -> None:
    found = read(np.full(shape, 2))
    assert found is not None and (found.axis, found.factors.size, found.divide) == (
        axis,
        size,
        False,
    )


@pytest.mark.parametrize("shape", [(3, 4, 1), (1, 1, 3, 1, 1), (5, 1, 1), (0,), (2, 3, 4, 4)])
def test_what_is_no_channel_vector(shape: tuple[int, ...]) -> None:
    assert read(np.full(shape, 2)) is None


def test_one_channel_is_a_vector_of_one() -> None:
    found = read([[[2.0]]], shape="5,1,4,4")
    assert found is not None and (found.axis, found.factors.shape) == (1, (1,))


def test_one_factor_for_all_only_where_that_is_asked_for() -> None:
    assert (
        read(2.0, scalars=False) is None and read(np.full((3, 1, 1), 2), scalars=False) is not None
    )


@pytest.mark.parametrize(
    ("op", "bad"), [("Mul", np.inf), ("Mul", np.nan), ("Div", 0.0), ("Div", np.inf)]
)
def test_factors_that_are_not_finite_are_declined(op: str, bad: float) -> None:
    with pytest.raises(Decline, match="not finite"):
        read(np.array([1, bad, 2]).reshape(3, 1, 1), op=op)


def test_a_factor_of_zero_multiplies_and_does_not_divide() -> None:
    found = read(np.zeros((3, 1, 1)))
    assert found is not None and not found.factors.any()
    divided = read(np.full((3, 1, 1), 2), op="Div")
    assert divided is not None and divided.divide


def test_integers_scale_nothing() -> None:
    model = model_of(
        "g (int64[2,3] x) => (int64[2,3] y) { y = Mul(x, s) }", {"s": np.array([1, 2, 3])}
    )
    block = load(model).main
    assert channel_vector(block.initializers["s"], block.inputs[0]) is None


RUN_TIME = "g (float[2,3,4] x, float[{s}] s) => (float[2,3,4] y) {{ y = {op}(x, s) }}"


@pytest.mark.parametrize(
    ("s", "op", "runtime", "reason"),
    [
        ("3,1", "Mul", False, "without runtime=true"),
        ("3,1", "Div", True, "may be zero"),
        ("3,1", "Mul", True, None),
        ("4", "Mul", True, None),
    ],
)
def test_what_is_known_only_at_run_time(s: str, op: str, runtime: bool, reason: str | None) -> None:
    block = load(model_of(RUN_TIME.format(s=s, op=op))).main
    b, (x, given) = block.outputs[0].definition, block.inputs
    with emitting(block):
        if reason is not None:
            with pytest.raises(Decline, match=reason):
                read_scale(b, x, given, True, runtime)
            return
        found = read_scale(b, x, given, True, runtime)
    assert isinstance(found, RunTimeScale) and found.axis == (1 if s == "3,1" else 2)
    assert not found.positive and not found.uniform and found.loses_digits, (
        "nothing is known of its values"
    )


@pytest.mark.parametrize("s", ["3,4", "2,3,4", "1,1"])
def test_several_axes_at_run_time_are_no_scale(s: str) -> None:
    block = load(model_of(RUN_TIME.format(s=s, op="Mul"))).main
    with emitting(block):
        assert (
            read_scale(block.outputs[0].definition, *block.inputs, scalars=False, runtime=True)
            is None
        )
