"""Adam and AdamW, with amsgrad and decay of either kind: PyTorch's numbers after 20 steps."""

from __future__ import annotations

import pytest

from onnxgrad.train.optimizers import Adam, AdamW, Optimizer
from tests.train.optimizers.problem import Recorded, assert_follows, assert_recorded

# fmt: off
RECORDED: list[Recorded] = [
    (Adam(), 0.0625, [1.354538543527, -1.200288811659, 1.303735005081, 0.810108808252, -0.2061399153401, -0.03048364950279, 0.5033947685941, -0.9726614416293, 0.6547824383933]),
    (Adam(betas=(0.8, 0.5), amsgrad=True, weight_decay=0.1), 0.0625, [1.01823530978, -0.9454106760316, 0.7903336029868, 0.3433106083681, -0.2151846453882, 0.1347549388931, 0.5369779915045, -0.7393032085454, 0.7418735558562]),
    (Adam(maximize=True, eps=1e-3), 0.00390625, [0.2211150549655, -0.1211867679572, 0.7215385637596, 0.5806447092097, -0.6796039817946, 0.9791757532543, 0.02104719662597, -0.3207250229561, 0.7799870943434]),
    (AdamW(), 0.0625, [1.345427735804, -1.19270606556, 1.298136648948, 0.800470664274, -0.2046084275332, -0.0353534957567, 0.5023697251966, -0.9645888314795, 0.6575724515753]),
    (AdamW(betas=(0.8, 0.5), weight_decay=0.2, amsgrad=True), 0.0625, [1.010102242166, -0.8910602331644, 1.137451484557, 0.4750522192791, -0.1889890789035, 0.08155405912697, 0.4604391039873, -0.7541481359362, 0.6827402719756]),
    (AdamW(maximize=True), 0.00390625, [0.2207854917357, -0.1209485868851, 0.7204967049085, 0.5813297968498, -0.6792252562704, 0.978499141675, 0.02087632456061, -0.3203401117622, 0.7794542233259]),
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
