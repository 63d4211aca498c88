"""Batches cut into parts, and what each of them weighs; steps that several processes cannot train."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxgrad import op
from onnxgrad.errors import InputError
from onnxgrad.train import SGD, Custom, Loss, training_step
from onnxgrad.train.engines.data_parallel import DataParallel, shards
from onnxgrad.train.engines.processes import Ranks
from onnxgrad.train.losses.place import Place
from onnxgrad.train.manifest import Fed, Manifest
from tests.train.common import classifier

X = Fed("x", "batch", "float32", ("N", 2))
LABELS = Fed("labels", "batch", "int64", ("N", "S"), classes=3, ignored=-100, unread=1)


def batch(count: int) -> dict[str, Any]:
    return {"x": np.arange(2.0 * count).reshape(count, 2)}


@pytest.mark.parametrize(
    ("examples", "count", "sizes"), [(7, 2, [4, 3]), (6, 3, [2, 2, 2]), (2, 4, [1, 1, 0, 0])]
)
def test_even_parts(examples: int, count: int, sizes: list[int]) -> None:
    cut = shards(batch(examples), [X])
    parts = cut.bounds(count)
    assert [p.stop - p.start for p in parts] == sizes
    together = np.concatenate([cut.part(p)["x"] for p in parts])
    np.testing.assert_array_equal(together, batch(examples)["x"])
    for over_batch in ("mean", "labels", "mixed", "constant"):
        shares = cut.shares(parts, over_batch)  # type: ignore[arg-type]
        np.testing.assert_allclose(shares, np.asarray(sizes) / examples)
    np.testing.assert_array_equal(cut.shares(parts, "sum"), np.asarray(sizes) > 0)


def test_labels_that_count() -> None:
    labels = np.array([[0, 1, 2], [1, 1, -100], [2, -100, -100], [2, -100, -100]])
    cut = shards({**batch(4), "labels": labels}, [X, LABELS])
    np.testing.assert_allclose(cut.shares(cut.bounds(4), "labels"), [2 / 3, 1 / 3, 0, 0])
    with pytest.raises(InputError, match="'labels' has labels that are ignored"):
        cut.shares(cut.bounds(4), "mixed")


def test_where_nothing_counts_examples_do() -> None:
    cut = shards({**batch(3), "labels": np.full((3, 2), -100)}, [X, LABELS])
    np.testing.assert_allclose(cut.shares(cut.bounds(3), "labels"), 1 / 3)


def test_what_has_no_examples_goes_into_every_part() -> None:
    mask, factor = Fed("mask", "batch", "float32", (3, 3)), Fed("factor", "batch", "float32", ())
    given = {**batch(4), "mask": np.ones((3, 3)), "factor": np.float32(2)}
    cut = shards(given, [X, mask, factor])
    part = cut.part(cut.bounds(2)[1])
    assert {name: a.shape for name, a in part.items()} == {
        "x": (2, 2),
        "mask": (3, 3),
        "factor": (),
    }


@pytest.mark.parametrize(
    ("given", "inputs", "words"),
    [
        ({}, [X], "lacks 'x'"),
        ({**batch(3), "y": np.ones(3)}, [X], "'y', which is not an input"),
        ({**batch(3), "labels": np.ones((2, 2))}, [X, LABELS], r"differ \(x: 3, labels: 2\)"),
        (batch(3), [Fed("x", "batch", "float32", (3, 2))], "no examples to distribute"),
    ],
)
def test_batches_that_cannot_be_cut(given: Any, inputs: list[Fed], words: str) -> None:
    with pytest.raises(InputError, match=words):
        shards(given, inputs)


def alone() -> Ranks:
    class Comm:
        size, rank = 1, 0

        def allgather(self, value: Any) -> list[Any]:
            return [value]

    return Ranks(Comm())


def mean(values: dict[str, Any]) -> Any:
    return op.ReduceMean(values["logits"], keepdims=0)


class Largest(Loss):
    """A class of the user's that declares nothing."""

    def emit(self, place: Place) -> Any:
        return op.ReduceMax(place.own["logits"], keepdims=0)


@pytest.mark.parametrize("loss", [mean, Custom(mean), Largest(), 0.5 * Custom(mean)])
def test_a_loss_that_declares_nothing(loss: Any) -> None:
    made = training_step(classifier(), loss, SGD())
    assert Manifest.from_json(made.manifest.to_json()).over_batch is None
    with pytest.raises(
        InputError, match=r'declare it, as in Custom\(f, over_batch="mean"\)$'
    ) as error:
        DataParallel(made, ranks=alone())
    assert "\n" not in str(error.value)


def test_a_declaration_is_in_the_manifest() -> None:
    made = training_step(classifier(), Custom(mean, over_batch="mean"), SGD())
    assert Manifest.from_json(made.manifest.to_json()).over_batch == "mean"
