"""CTC against the sum over all paths through time."""

from __future__ import annotations

from itertools import groupby, product
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

import onnxgrad
from onnxgrad.errors import InputError
from onnxgrad.train.losses import CTC
from onnxgrad.verify.running.session import run
from tests.train.losses.common import check, found, labels_of, log_softmax, through, with_loss

Z = np.random.default_rng(0).standard_normal((4, 3, 3))
FEEDS = {
    "labels": np.array([[1, 2], [1, 1], [2, -5]]),
    "input_lengths": np.array([4, 3, 2]),
    "target_lengths": np.array([2, 2, 1]),
}


def paths(z: np.ndarray, labels: np.ndarray, steps: int, blank: int) -> Any:
    """-log of the probability of all paths that say the labels, repetitions and blanks left out."""
    log_p, total = log_softmax(z), 0.0
    for path in product(range(z.shape[1]), repeat=steps):
        if [c for c, _ in groupby(path) if c != blank] == list(labels):
            total += np.exp(sum(log_p[t, c] for t, c in enumerate(path)))
    with np.errstate(divide="ignore"):
        return -np.log(total)


def each(
    z: np.ndarray, labels: Any, input_lengths: Any, target_lengths: Any, blank: int = 0
) -> np.ndarray:
    rows = range(z.shape[1])
    return np.array(
        [paths(z[:, n], labels[n, : target_lengths[n]], input_lengths[n], blank) for n in rows]
    )


def test_the_sum_over_all_paths() -> None:
    def mean(z: np.ndarray, **given: Any) -> float:
        return float((each(z, **given) / given["target_lengths"]).mean())

    check(CTC(), mean, {"z": Z}, FEEDS)
    check(CTC(reduction="sum"), lambda z, **given: each(z, **given).sum(), {"z": Z}, FEEDS)
    check(
        CTC(batch_first=True),
        lambda z, **given: mean(z.swapaxes(0, 1), **given),
        {"z": Z.swapaxes(0, 1)},
        FEEDS,
    )


def test_another_blank_and_full_inputs() -> None:
    feeds = {"labels": np.array([[1, 0], [1, 1], [0, 7]]), "target_lengths": np.array([2, 2, 1])}
    loss = CTC(blank=2, input_lengths=None, reduction="sum")
    full = np.full(3, 4)
    check(
        loss,
        lambda z, **given: each(z, input_lengths=full, blank=2, **given).sum(),
        {"z": Z},
        feeds,
    )


def test_no_label_is_blanks_alone() -> None:
    feeds = {**FEEDS, "target_lengths": np.array([0, 0, 0])}
    check(CTC(), lambda z, **given: each(z, **given).mean(), {"z": Z}, feeds)


def test_labels_without_room() -> None:
    feeds = {**FEEDS, "input_lengths": np.array([4, 2, 2])}  # 1, 1 needs a blank between
    assert found(CTC(), {"z": Z}, feeds)[0] == np.inf
    value, gradient = found(CTC(zero_infinity=True), {"z": Z}, feeds)
    possible = each(Z, **feeds) / FEEDS["target_lengths"]
    np.testing.assert_allclose(value, possible[[0, 2]].sum() / 3)
    assert not gradient["z"][:, 1].any()
    np.testing.assert_array_equal(gradient["z"], found(CTC(), {"z": Z}, feeds)[1]["z"])


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("labels", [[1, 3], [1, 1], [2, 0]]),
        ("labels", [[1, -1], [1, 1], [2, 0]]),
        ("input_lengths", [5, 3, 2]),
        ("input_lengths", [4, -1, 2]),
        ("target_lengths", [3, 2, 1]),
        ("target_lengths", [-1, 2, 1]),
    ],
)
def test_what_is_out_of_range_makes_the_loss_nan_and_moves_nothing(name: str, wrong: Any) -> None:
    value, gradient = found(CTC(), {"z": Z}, {**FEEDS, name: np.array(wrong)})
    assert np.isnan(value)
    assert not gradient["z"].any()


def test_log_probabilities_are_scores_too() -> None:
    assert np.isclose(
        found(CTC(), {"z": log_softmax(Z)}, FEEDS)[0], found(CTC(), {"z": Z}, FEEDS)[0], rtol=1e-13
    )


def test_float32_over_many_steps() -> None:
    rng = np.random.default_rng(1)
    z, labels = 3 * rng.standard_normal((300, 2, 20)), rng.integers(1, 20, (2, 40))
    feeds = {
        "labels": labels,
        "input_lengths": np.array([300, 250]),
        "target_lengths": np.array([40, 30]),
    }
    value, gradient = found(CTC(), {"z": z}, feeds)
    graph = onnxgrad.gradient(
        with_loss(through({"z": ["T", "N", 20]}, TensorProto.FLOAT), CTC()), "z_in"
    )
    got = list(run(graph, {"z_in": z.astype(np.float32), **feeds}).values())
    np.testing.assert_allclose(got[0], value, rtol=1e-5)
    # PyTorch's in float32 is off by 9e-6
    np.testing.assert_allclose(got[1], gradient["z"], atol=6e-6)


def test_the_inputs_that_it_adds() -> None:
    graph = with_loss(through({"z": ["T", "N", 5]}), CTC())
    expected = {
        "labels": "i64[N,labels_length]",
        "target_lengths": "i64[N]",
        "input_lengths": "i64[N]",
    }
    assert labels_of(graph) == expected


def test_what_does_not_fit() -> None:
    with pytest.raises(InputError, match=r"ctc of 'z', f64.N,5.: it needs scores \(T, N, C\)"):
        with_loss(through({"z": ["N", 5]}), CTC())
    with pytest.raises(InputError, match="there is no class blank=5"):
        with_loss(through({"z": ["T", "N", 5]}), CTC(blank=5))
    with pytest.raises(InputError, match="blank must be a whole number"):
        CTC(blank=0.5)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="zero_infinity must be true or false"):
        CTC(zero_infinity=1)  # type: ignore[arg-type]
