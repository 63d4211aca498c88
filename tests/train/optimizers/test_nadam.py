"""NAdam, with decay of either kind: PyTorch's numbers after 20 steps."""

from __future__ import annotations

import pytest

from onnxgrad.train.optimizers import NAdam, Optimizer
from tests.train.optimizers.problem import Recorded, assert_follows, assert_recorded

# fmt: off
RECORDED: list[Recorded] = [
    (NAdam(), 0.0625, [1.099041161428, -0.9632975732444, 1.105154922072, 0.4949553197374, -0.1976828620048, 0.1331424342775, 0.4618699599124, -0.9167218044294, 0.7409575364239]),
    (NAdam(betas=(0.8, 0.9), momentum_decay=0.1, weight_decay=0.1), 0.0625, [0.9271052934048, -0.8611441214814, 0.7647767118651, 0.1186179272372, -0.2258788993028, -0.0386205204674, 0.5027815388908, -0.6023368790367, 0.8637565781275]),
    (NAdam(weight_decay=0.2, decoupled_weight_decay=True, maximize=True), 0.00390625, [0.2269810188145, -0.1287201417856, 0.7186471386949, 0.569568816764, -0.6606226750126, 0.9548118557155, 0.02969661825669, -0.3245066143172, 0.7598774191054]),
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
