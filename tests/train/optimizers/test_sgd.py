"""SGD, with momentum of either kind, dampening and decay: PyTorch's numbers after 20 steps."""

from __future__ import annotations

import pytest

from onnxgrad.train.optimizers import SGD, Optimizer
from tests.train.optimizers.problem import Recorded, assert_follows, assert_recorded

# fmt: off
RECORDED: list[Recorded] = [
    (SGD(), 0.0625, [0.7663380156755, -0.6827931225365, 0.9274477498582, 0.4968350433374, -0.3450971111825, 0.1769660407259, 0.4873209147565, -0.7251785652768, 0.7555509540136]),
    (SGD(momentum=0.9), 0.0625, [1.561917608895, -1.12960819845, 0.8185586443513, 0.1339267323749, -0.6076642979168, -0.4088001607167, 0.5279322484937, -0.2876747512015, 0.7947405292411]),
    (SGD(momentum=0.8, nesterov=True, weight_decay=0.1), 0.0625, [0.8868638479762, -0.7069055909015, 0.7233065493401, -0.03652747883128, -0.2323229148526, -0.3526706617892, 0.4987459800561, -0.2956006697123, 0.9092424251815]),
    (SGD(momentum=0.9, dampening=0.3), 0.0625, [1.378651174384, -1.032156277217, 0.8122935679163, 0.2485708743441, -0.4732579017442, -0.3283709597714, 0.5310008349837, -0.5034638504862, 0.4509534008995]),
    (SGD(maximize=True, weight_decay=0.5), 0.00390625, [0.2385772138501, -0.136366877601, 0.7557817127161, 0.48666251598, -0.6294679310394, 0.9733534231576, 0.04508002707617, -0.3221626744375, 0.809325126517]),
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
