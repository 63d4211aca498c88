"""A recorded formula gives, bit for bit, what it gives when numpy computes it over whole arrays."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from onnxgrad.ir.types import Array
from onnxgrad.train import array_math
from onnxgrad.train.engines.formula_replay import Formula, Replay
from onnxgrad.train.optimizers import (
    OPTIMIZERS,
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    AdamW,
    Lion,
    NAdam,
    Optimizer,
    RAdam,
    RMSprop,
)
from onnxgrad.train.optimizers.base import Moment
from onnxgrad.train.update.moving_average import ExponentialMovingAverage

LENGTH, SIZE = 45, 16  # two whole blocks and a part of one
EVERY = [
    SGD(), SGD(momentum=0.9), SGD(momentum=0.9, nesterov=True, weight_decay=0.1),
    SGD(momentum=0.5, dampening=0.3), Adam(), Adam(amsgrad=True, weight_decay=0.1, maximize=True),
    AdamW(), Adagrad(lr_decay=0.1), RMSprop(centered=True, momentum=0.9), RMSprop(), Adadelta(),
    NAdam(decoupled_weight_decay=True, weight_decay=0.1), Lion(), RAdam(),
]  # fmt: skip


def arrays(*names: str, dtype: str = "float32") -> dict[str, Array]:
    rng = np.random.default_rng(3)
    return {name: rng.uniform(0.1, 2.0, LENGTH).astype(dtype) for name in names}


def check(
    replay: Replay, formula: Formula, held: Mapping[str, Array], part: slice
) -> dict[str, Any]:
    """Replay the formula over that part; all else stays. What it returned that are numbers."""
    expected = {name: array.copy() for name, array in held.items()}
    whole = dict(formula({name: array[part].copy() for name, array in held.items()}))
    for name in held:
        if name in whole:
            expected[name][part] = whole.pop(name)
    numbers = replay.update(formula, held, part)
    for name, array in held.items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)
    assert numbers == whole
    return numbers


def test_every_elementwise_optimiser_is_tried() -> None:
    assert {type(o) for o in EVERY} == {c for c in OPTIMIZERS.values() if c.elementwise}


@pytest.mark.parametrize("optimizer", EVERY, ids=lambda o: o.name)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_optimisers_step_by_step(optimizer: Optimizer, dtype: str) -> None:
    replay, average = Replay(SIZE), ExponentialMovingAverage(0.9)
    held = arrays("p", "g", "average", dtype=dtype)
    states = optimizer.state(held["p"])
    held |= {name: value for name, value in states.items() if value.shape}
    numbers = {name: value[()] for name, value in states.items() if not value.shape}
    for step in range(1, 8):  # RAdam takes another form from the sixth on
        code = 1 if dtype == "float32" else 11
        at = Moment(np.float32(0.1), np.float64(step), array_math, code)

        def formula(of: dict[str, Any], at: Moment = at, numbers: Any = numbers) -> dict[str, Any]:
            new, kept = optimizer.update(
                of["p"], of["g"] * of["g"].dtype.type(0.5), of | numbers, at
            )
            return {**kept, "p": new, "average": average.update(of["average"], new, at)}

        numbers = check(replay, formula, held, slice(3, LENGTH))
        held["g"][:] = np.sin(held["g"] * 9)


def test_results_that_are_other_arrays_old_values() -> None:
    def exchanged(of: dict[str, Any]) -> dict[str, Any]:
        return {"a": of["b"], "b": of["c"] * 1.0, "c": of["a"]}

    def one_for_all(of: dict[str, Any]) -> dict[str, Any]:
        total = of["a"] + of["b"]
        return {"a": total, "b": total, "c": of["c"]}

    for formula in (exchanged, one_for_all):
        check(Replay(SIZE), formula, arrays("a", "b", "c"), slice(0, LENGTH))


def test_old_values_are_read_after_the_new_ones_are_there() -> None:
    def formula(of: dict[str, Any]) -> dict[str, Any]:
        m = 0.5 * of["m"] + of["g"]
        return {"m": m, "p": of["p"] - m * (of["m"] > 1.0) * of["m"]}

    check(Replay(SIZE), formula, arrays("p", "g", "m"), slice(0, LENGTH))


def test_other_numbers_and_other_formulas_by_the_same_memory() -> None:
    replay, held = Replay(SIZE), arrays("p", "g")
    for rate in (0.5, 0.25):
        check(replay, lambda of, r=rate: {"p": of["p"] - r * of["g"]}, held, slice(0, LENGTH))
        check(
            replay,
            lambda of: {"p": np.sqrt(np.abs(of["p"])) + of["g"] * -of["p"]},
            held,
            slice(0, 9),
        )


@pytest.mark.parametrize("seed", range(60))
def test_formulas_at_random(seed: int) -> None:
    draw = random.Random(seed)
    plan = [
        (
            draw.choice([np.add, np.multiply, np.subtract, np.maximum]),
            draw.random(),
            draw.random(),
            draw.random(),
        )
        for _ in range(draw.randint(1, 14))
    ]
    picked = [draw.random() for _ in range(4)]
    names = ["a", "b", "c", "d"][: draw.randint(1, 4)]

    def formula(of: dict[str, Any]) -> dict[str, Any]:
        values = [of[name] for name in names]
        for function, i, j, number in plan:
            x, y = values[int(i * len(values))], values[int(j * len(values))]
            values.append(function(x, np.float32(number) if number < 0.3 else y))
        return {name: values[int(i * len(values))] for name, i in zip(names, picked)}

    check(Replay(SIZE), formula, arrays(*names), slice(0, LENGTH))


@pytest.mark.parametrize("function", [np.sum, np.cumsum, lambda x: np.where(x > 0, x, 0)])
def test_what_is_no_function_of_elements_is_refused(function: Any) -> None:
    with pytest.raises(TypeError):
        Replay(SIZE).update(lambda of: {"p": function(of["p"])}, arrays("p"), slice(0, LENGTH))
