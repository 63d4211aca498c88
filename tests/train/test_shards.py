"""Batches cut into parts, and what each of them weighs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxgrad.errors import InputError
from onnxgrad.train.manifest import Fed
from onnxgrad.train.shards import shards

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
    np.testing.assert_allclose(cut.shares(parts), np.asarray(sizes) / examples)


def test_labels_that_count() -> None:
    labels = np.array([[0, 1, 2], [1, 1, -100], [2, -100, -100], [2, -100, -100]])
    cut = shards({**batch(4), "labels": labels}, [X, LABELS])
    assert cut.ignores()
    np.testing.assert_allclose(cut.shares(cut.bounds(4)), [2 / 3, 1 / 3, 0, 0])


def test_where_nothing_counts_examples_do() -> None:
    cut = shards({**batch(3), "labels": np.full((3, 2), -100)}, [X, LABELS])
    np.testing.assert_allclose(cut.shares(cut.bounds(3)), 1 / 3)


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
        ({**batch(3), "y": np.ones(3)}, [X], "'y', which is no input"),
        ({**batch(3), "labels": np.ones((2, 2))}, [X, LABELS], r"differ \(x: 3, labels: 2\)"),
        (batch(3), [Fed("x", "batch", "float32", (3, 2))], "no examples to share out"),
    ],
)
def test_batches_that_cannot_be_cut(given: Any, inputs: list[Fed], words: str) -> None:
    with pytest.raises(InputError, match=words):
        shards(given, inputs)
