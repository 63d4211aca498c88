"""Angles and distances between vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxgrad.errors import InputError
from onnxgrad.train.losses import Cosine, CosineEmbedding, TripletMargin
from tests.train.losses.common import check, found, labels_of, through, with_loss

RNG = np.random.default_rng(0)
A, B, C = RNG.standard_normal((3, 4, 3))
SIGNS = np.array([1, -1, -1, 1])


def cos(a: np.ndarray, b: np.ndarray, axis: int = -1) -> Any:
    return (a * b).sum(axis) / np.sqrt((a * a).sum(axis) * (b * b).sum(axis))


@pytest.mark.parametrize("dim", [1, 0, -1, -2])
def test_one_minus_the_cosine(dim: int) -> None:
    check(
        Cosine(dim=dim), lambda y, target: (1 - cos(y, target, dim)).mean(), {"y": A}, {"target": B}
    )


def test_one_vector_and_none_of_any_length() -> None:
    check(Cosine(), lambda y, target: 1 - cos(y, target), {"y": A[0]}, {"target": B[0]})
    value, gradient = found(Cosine(), {"y": np.zeros((1, 3))}, {"target": B[:1]})
    assert value == 1.0
    np.testing.assert_allclose(
        gradient["y"], -B[:1] / np.linalg.norm(B[:1]) / 1e-8
    )  # PyTorch's as well


@pytest.mark.parametrize("margin", [0.0, 0.3, -0.5])
def test_cosine_embedding(margin: float) -> None:
    def formula(a: np.ndarray, b: np.ndarray, labels: np.ndarray) -> float:
        return float(np.where(labels == 1, 1 - cos(a, b), np.maximum(0, cos(a, b) - margin)).mean())

    check(
        CosineEmbedding("a", other="b", margin=margin), formula, {"a": A, "b": B}, {"labels": SIGNS}
    )
    labels = labels_of(with_loss(through({"a": ["N", 3]}), CosineEmbedding()))
    assert labels == {"other": "f64[N,3]", "labels": "i64[N]"}


def test_short_vectors_are_as_short_as_pytorch_has_them() -> None:
    short = {"a": 1e-6 * np.array([3.0, 4.0]), "b": 1e-6 * np.array([4.0, 3.0])}
    value, _ = found(CosineEmbedding("a", other="b"), short, {"labels": np.array(1)})
    np.testing.assert_allclose(value, 1 - 24 / 26, rtol=1e-12)


def test_vectors_of_zeros_have_a_finite_gradient() -> None:
    _, gradient = found(CosineEmbedding(), {"a": np.zeros((4, 3))}, {"other": B, "labels": SIGNS})
    assert np.isfinite(gradient["a"]).all()


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("p", [1.0, 2.0, 2.5, np.inf])
def test_triplets(p: float, swap: bool) -> None:
    def distance(x: np.ndarray, y: np.ndarray) -> Any:
        return np.linalg.norm(x - y + 1e-6, p, axis=-1)

    def formula(anchor: np.ndarray, positive: np.ndarray, negative: np.ndarray) -> float:
        far = distance(anchor, negative)
        far = np.minimum(far, distance(positive, negative)) if swap else far
        return float(np.maximum(0, distance(anchor, positive) - far + 0.5).mean())

    check(
        TripletMargin(p=p, swap=swap, margin=0.5),
        formula,
        {"anchor": A, "positive": B, "negative": C},
        {},
    )


@pytest.mark.parametrize("p", [1.0, 2.0])
def test_triplets_that_are_far_apart_move_nothing(p: float) -> None:
    values = {"anchor": A, "positive": A, "negative": A + 100}
    value, gradient = found(TripletMargin(p=p), values, {})
    assert value == 0.0
    assert not any(g.any() for g in gradient.values())


@pytest.mark.parametrize(
    ("sizes", "loss", "words"),
    [
        (
            {"a": [3], "b": [4]},
            CosineEmbedding("a", other="b"),
            r"'a' is f64.3. and 'b' is f64.4.: they must be alike",
        ),
        ({"a": [2, 3, 4]}, CosineEmbedding(), r"needs vectors, \(N, D\) or \(D\)"),
        ({"a": ["N"]}, Cosine(dim=3), "no axis dim=3"),
        ({"a": ["N"], "b": ["N", 3]}, TripletMargin("a", "b", "b"), "must be alike"),
        ({"a": []}, TripletMargin("a", "a", "a"), "needs vectors along the last axis"),
        ({"a": [3]}, TripletMargin(), "'anchor', which is not a value of the model"),
    ],
)
def test_values_that_do_not_fit(sizes: Any, loss: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        with_loss(through(sizes), loss)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: TripletMargin(p=0.0), "p must be a number above 0"),
        (lambda: TripletMargin(margin=0.0), "margin must be a finite number above 0"),
        (lambda: TripletMargin(swap="no"), "swap must be true or false"),  # type: ignore[arg-type]
        (lambda: CosineEmbedding(margin=float("inf")), "margin must be a finite number"),
        (lambda: Cosine(eps=0.0), "eps must be a finite number above 0"),
        (lambda: Cosine(dim=1.5), "dim must be a whole number"),  # type: ignore[arg-type]
    ],
)
def test_options_out_of_range(make: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        make()
