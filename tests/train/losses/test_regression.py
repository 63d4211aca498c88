"""Squared, absolute, Huber's and the smooth absolute loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxgrad.errors import InputError
from onnxgrad.train.losses import L1, MSE, Huber, Loss, SmoothL1
from tests.train.losses.common import check, found, labels_of, through, with_loss

Y = 2 * np.random.default_rng(0).standard_normal((3, 4))
T = np.random.default_rng(1).standard_normal((3, 4))


def huber(d: np.ndarray, delta: float) -> Any:
    return np.where(abs(d) <= delta, d * d / 2, delta * (abs(d) - delta / 2))


@pytest.mark.parametrize(
    ("loss", "each"),
    [
        (MSE(), lambda d: d * d),
        (L1(), abs),
        (Huber(), lambda d: huber(d, 1.0)),
        (Huber(delta=0.3), lambda d: huber(d, 0.3)),
        (SmoothL1(), lambda d: huber(d, 1.0)),
        (SmoothL1(beta=0.25), lambda d: huber(d, 0.25) / 0.25),
        (SmoothL1(beta=0), abs),
    ],
)
def test_by_the_formula(loss: Loss, each: Any) -> None:
    check(loss, lambda y, target: each(y - target).mean(), {"y": Y}, {"target": T})
    total = type(loss)(**{**loss.__dict__, "reduction": "sum"})
    check(total, lambda y, target: each(y - target).sum(), {"y": Y}, {"target": T})


@pytest.mark.parametrize("loss", [MSE(), L1(), Huber(), SmoothL1(), SmoothL1(beta=0)])
def test_nothing_moves_where_all_is_right(loss: Loss) -> None:
    value, gradient = found(loss, {"y": Y}, {"target": Y})
    assert value == 0.0
    assert not gradient["y"].any()


@pytest.mark.parametrize("loss", [Huber(), SmoothL1()])
def test_where_the_pieces_meet_the_slope_is_one(loss: Loss) -> None:
    _, gradient = found(
        type(loss)(reduction="sum"), {"y": [1.0, -1.0, 1e200]}, {"target": np.zeros(3)}
    )
    assert gradient["y"].tolist() == [1.0, -1.0, 1.0]


def test_the_target_is_of_the_outputs_shape() -> None:
    assert labels_of(with_loss(through({"y": ["N", "M", 3]}), MSE(target="t"))) == {
        "t": "f64[N,M,3]"
    }
    assert labels_of(with_loss(through({"y": []}), MSE())) == {"target": "f64[]"}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Huber(delta=0), "huber: delta must be a finite number above 0, not 0"),
        (lambda: Huber(delta=float("nan")), "huber: delta must be a number, not nan"),
        (lambda: SmoothL1(beta=-1), "smooth_l1: beta must be a finite number, at least 0, not -1"),
        (lambda: SmoothL1(beta=1e300), "smooth_l1: beta must be a finite number"),
        (lambda: MSE(reduction="none"), "mse: reduction must be one of mean, sum"),
    ],
)
def test_options_out_of_range(make: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        make()
