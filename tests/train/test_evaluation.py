"""Held-out data: batches are weighted by their sizes, and metrics see all of a batch."""

from __future__ import annotations

import numpy as np
import pytest

from onnxgrad.errors import InputError
from onnxgrad.train import MSE, SGD, Trainer, training_step
from onnxgrad.train.metrics import accuracy
from tests.train.common import classifier, examples, step


def test_batches_count_by_their_sizes() -> None:
    own, data = Trainer(step(), threads=1), examples(50)
    metrics = {"accuracy": accuracy()}
    whole = own.evaluate(data, batch_size=50, metrics=metrics)
    parts = own.evaluate(data, batch_size=32, metrics=metrics)
    assert parts == pytest.approx(whole, rel=1e-6)


def test_metrics_read_labels_that_the_loss_does_not_take() -> None:
    data = examples(64)
    labels = data.pop("labels")
    own = Trainer(training_step(classifier(), MSE(target="y"), SGD()), threads=1)
    y = np.eye(3, dtype=np.float32)[labels]
    found = own.evaluate({**data, "y": y, "labels": labels}, metrics={"accuracy": accuracy()})
    same = own.evaluate({**data, "y": y}, metrics={"accuracy": accuracy(target="y")})
    assert found == same and 0 < found["accuracy"] < 1
    for metrics in ({}, {"accuracy": accuracy(target="y")}):
        with pytest.raises(InputError, match="has 'labels', which is no input: it takes x"):
            own.evaluate({**data, "y": y, "labels": labels}, metrics=metrics)


def test_no_batch_at_all() -> None:
    with pytest.raises(InputError, match="gave no batch"):
        Trainer(step(), threads=1).evaluate([])
