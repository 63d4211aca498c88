"""The share of right answers, of labels in each form that they come in; what has none is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxgrad.errors import InputError
from onnxgrad.train import MSE, SGD, Trainer, training_step
from onnxgrad.train.metrics import accuracy
from tests.train.common import classifier, examples, step

SCORES = np.float32([[1, 2, 0], [3, 1, 0], [0, 0, 1], [0, 5, 0]])
RIGHT = np.array([1, 0, 1, 1])  # three of four


@pytest.mark.parametrize(
    "labels",
    [
        RIGHT, RIGHT.astype(np.int32), RIGHT.astype(np.float32), RIGHT[:, None],
        np.eye(3, dtype=np.float32)[RIGHT], np.eye(3, dtype=np.int64)[RIGHT],
        0.1 + 0.7 * np.eye(3)[RIGHT],
    ],
)  # fmt: skip
def test_labels_of_each_form(labels: Any) -> None:
    assert accuracy()({"logits": SCORES}, {"labels": labels}) == (0.75, 4)


def test_classes_along_another_axis_and_labels_that_are_ignored() -> None:
    scores = np.stack([SCORES, SCORES])  # (2, 4, 3)
    labels = np.stack([RIGHT, np.where(RIGHT == 0, -100, RIGHT)])
    expected = (5 / 7, 7)
    assert accuracy("z", "y", axis=-1)({"z": scores}, {"y": labels}) == expected
    assert accuracy("z", "y")({"z": scores.transpose(0, 2, 1)}, {"y": labels}) == expected


@pytest.mark.parametrize(
    ("scores", "labels", "words"),
    [
        (SCORES[:, :1], RIGHT, r"'logits', \[4, 1\]: it needs scores of several classes"),
        (SCORES[:, 0], RIGHT, r"'logits', \[4\]: it needs scores of several classes along axis 1"),
        (SCORES, RIGHT[:3], r"'labels' has shape \[3\], the scores \[4, 3\]"),
        (SCORES, np.ones((4, 3)), "'labels' names several classes at once, or none"),
        (SCORES[:3], np.ones((4, 3)), r"'labels' has shape \[4, 3\], the scores \[3, 3\]"),
    ],
)
def test_what_has_no_accuracy(scores: Any, labels: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        accuracy()({"logits": scores}, {"labels": labels})


def test_what_is_not_there() -> None:
    with pytest.raises(InputError, match="the metric reads 'labels', and there are y"):
        accuracy()({"logits": SCORES}, {"y": RIGHT})


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
