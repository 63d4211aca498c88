"""Adagrad, RMSprop and Adadelta, with their options: PyTorch's numbers after 20 steps."""

from __future__ import annotations

import pytest

from onnxgrad.train.optimizers import Adadelta, Adagrad, Optimizer, RMSprop
from tests.train.optimizers.problem import Recorded, assert_follows, assert_recorded

# fmt: off
RECORDED: list[Recorded] = [
    (Adagrad(), 0.0625, [0.7135219564522, -0.6073463111362, 1.128695997025, 0.6319218625894, -0.3040891581744, 0.514665371751, 0.4222614837602, -0.7481429806283, 0.6075980911421]),
    (Adagrad(lr_decay=0.05, weight_decay=0.1, initial_accumulator_value=0.2, eps=1e-3), 0.0625, [0.5817421125374, -0.4927857667982, 0.9057662018434, 0.4581845003596, -0.3638159124902, 0.5969841387725, 0.3727825375594, -0.6403286061013, 0.5563689572052]),
    (Adagrad(maximize=True), 0.00390625, [0.269886400381, -0.1699342686381, 0.7699605467999, 0.5325922096398, -0.6305416188573, 0.9302430259619, 0.06984647550865, -0.3696524154848, 0.7307593785947]),
    (RMSprop(), 0.0625, [1.121972922196, -0.8988358715711, 1.055764941434, -0.7113729218071, -0.1901312697017, -0.7890270657197, 0.3109266876158, 0.2845954974514, 0.6868311518293]),
    (RMSprop(alpha=0.9, centered=True, momentum=0.5, weight_decay=0.1), 0.0625, [0.6823636896997, -0.5512412832996, 0.6059611932636, -0.5323252850463, -0.1162325257611, -0.5923589159227, 0.3829556773186, 0.3736858946091, 1.167192831505]),
    (RMSprop(centered=True, eps=1e-2, maximize=True), 0.00390625, [-0.04768061362006, 0.1442040156447, 0.5226586381765, 0.8381038061782, -0.9760508645136, 1.265834939783, -0.2403975403454, -0.04445982873783, 1.093862318607]),
    (Adadelta(), 0.0625, [0.3043500596564, -0.2043517555595, 0.8043517517346, 0.4957758304472, -0.595667401044, 0.8956552204108, 0.1043479121488, -0.4043402216594, 0.69567726223]),
    (Adadelta(rho=0.5, eps=1e-3, weight_decay=0.1), 0.0625, [0.3965058352893, -0.2972444133655, 0.873188633931, 0.4401756591548, -0.5068994275399, 0.8033723966499, 0.1963213406193, -0.4938101227561, 0.6100293484827]),
    (Adadelta(maximize=True), 0.00390625, [0.2997269870741, -0.199726992991, 0.7997270399286, 0.5002729590102, -0.6002730813501, 0.9002730370533, 0.09972697839722, -0.3997269469776, 0.7002731237078]),
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
