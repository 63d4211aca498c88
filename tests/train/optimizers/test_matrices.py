"""Optimisers of matrices after 20 steps of a small problem: PyTorch's numbers."""

from __future__ import annotations

import numpy as np
import pytest

from onnxgrad.train.optimizers import Adafactor, Optimizer
from tests.train.optimizers.problem import Recorded, assert_follows, assert_recorded, by_graph

# fmt: off
RECORDED: list[Recorded] = [
    (Adafactor(), 0.0625, [1.121160078038, -0.8079276992262, 1.189981847004, 0.402388398727, -0.2117076712632, 0.1529035137213, 0.3557672448192, -0.7318759119389, 0.7357495109639]),
    (Adafactor(beta2_decay=-0.5, eps=(1e-2, 0.5), d=2.0, weight_decay=0.1), 0.0625, [1.010178695209, -0.7685009425828, 0.9904870887835, 0.2817264054779, -0.1858250910048, 0.03206768813144, 0.3938581053781, -0.7196239979878, 0.8536464100392]),
    (Adafactor(maximize=True), 0.00390625, [0.2466537759275, -0.1637249801478, 0.7247107360659, 0.5165036939892, -0.6351584890474, 0.9442762713756, 0.07799083746446, -0.3778663537841, 0.7567652830647]),
]
# fmt: on


@pytest.mark.parametrize(("optimizer", "rate", "expected"), RECORDED)
def test_it_follows_pytorch(optimizer: Optimizer, rate: float, expected: list[float]) -> None:
    assert_follows(optimizer, rate, expected)


@pytest.mark.torch
@pytest.mark.parametrize(("optimizer", "rate", "expected"), RECORDED)
def test_the_record_is_what_pytorch_computes(
    optimizer: Optimizer, rate: float, expected: list[float]
) -> None:
    assert_recorded(optimizer, rate, expected)


def test_adafactor_keeps_rows_and_columns() -> None:
    state = Adafactor().state(np.zeros((5, 300, 200), np.float32))
    assert {k: v.shape for k, v in state.items()} == {
        "row_var": (5, 300, 1),
        "col_var": (5, 1, 200),
    }
    states = {f.name: f.shape for f in by_graph(Adafactor(), 2**-6, 1)[1].manifest.of_role("state")}
    assert states == {
        "w.row_var": (3, 1),
        "w.col_var": (1, 2),
        "b.variance": (2,),
        "s.variance": (),
    }
