"""Examples change at random: by seed, epoch and row, whatever the batches are, and only in training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxgrad
from onnxgrad.cli.app import main
from onnxgrad.errors import InputError
from onnxgrad.train.augmentation import AUGMENTATIONS, Crop, Flip, Noise, augmented
from onnxgrad.train.data import Arrays, as_data
from tests.helpers import parse

X = np.arange(40 * 2 * 6 * 5, dtype=np.float32).reshape(40, 2, 6, 5) + 1


def epoch(text: Any, number: int = 0, seed: int = 3, size: int = 7, order: Any = 1) -> Any:
    """The changed examples of an epoch, by rows."""
    data = augmented(Arrays({"x": X}, size, order), [("x", text)], seed)
    found = np.zeros_like(X)
    for batch in data.epoch(number):
        found[batch.rows] = batch["x"]  # type: ignore[attr-defined]  # Rows
    return found


@pytest.mark.parametrize("text", AUGMENTATIONS)
def test_seed_epoch_and_row_decide(text: str) -> None:
    first = epoch(text)
    assert first.dtype == np.float32 and not np.array_equal(first, X)
    for size, order in ((7, None), (13, 1), (40, 2)):  # other batches
        assert np.array_equal(epoch(text, size=size, order=order), first)
    assert not np.array_equal(epoch(text, number=1), first)
    assert not np.array_equal(epoch(text, seed=4), first)
    moved = first - X  # rows differ from each other
    assert len({row.tobytes() for row in moved}) > (1 if text == "flip" else 20)


def test_half_of_the_examples_are_flipped() -> None:
    for axis in (-1, -2):
        found = epoch(Flip(axis))
        flipped = np.array([np.array_equal(a, np.flip(x, axis)) for a, x in zip(found, X)])
        same = np.array([np.array_equal(a, x) for a, x in zip(found, X)])
        assert (flipped ^ same).all() and 10 < flipped.sum() < 30


def test_a_crop_is_a_moved_example_beside_zeros() -> None:
    seen = set()
    for found, x in zip(epoch(Crop(pad=2)), X):
        wide = np.pad(x, [(0, 0), (2, 2), (2, 2)])
        places = [
            (i, j) for i in range(5) for j in range(5)
            if np.array_equal(found, wide[:, i : i + 6, j : j + 5])
        ]  # fmt: skip
        seen.update(places)
        assert len(places) == 1
    assert len(seen) > 12 and {i for i, _ in seen} == {j for _, j in seen} == set(range(5))


def test_noise_has_its_deviation() -> None:
    added = epoch(Noise(std=0.5)) - X
    assert abs(added.std() - 0.5) < 0.03 and abs(added.mean()) < 0.03


def test_changes_follow_each_other() -> None:
    """Two of one kind draw by themselves."""
    once = augmented(as_data({"x": X}, 40, None), {"x": "noise"}, 0)
    twice = augmented(as_data({"x": X}, 40, None), [("x", "noise"), ("x", Noise())], 0)
    (a,), (b,) = once.epoch(0), twice.epoch(0)
    added = b["x"] - a["x"]
    assert abs(added.std() - 0.1) < 0.01 and not np.allclose(added, a["x"] - X, atol=1e-3)


@pytest.mark.parametrize(
    ("data", "text", "words"),
    [
        ({"x": X}, "shear", "unknown augmentation 'shear'"),
        ({"x": X}, "crop{pad=0}", "crop: pad must be at least 1"),
        ({"y": X}, "flip", "augment= x=flip: the data must be arrays, 'x' with numbers"),
        ({"x": X[:, 0, 0]}, "crop", "augment= x=crop: .* on 3 axes"),
        ({"x": X.astype(np.uint8)}, "noise", r"\(for noise floats\)"),
        ([{"x": X}], "flip", "augment= x=flip: the data must be arrays"),
    ],
)
def test_what_cannot_be_changed(data: Any, text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        next(augmented(as_data(data, 8, 0), {"x": text}, 0).epoch(0))


def images() -> tuple[onnx.ModelProto, dict[str, Any]]:
    """A model of images, and data."""
    model = parse("g (float[N,1,4,4] x) => (float[N,3] y) { f = Flatten (x)  y = MatMul (f, w) }")
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((16, 3)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    x = rng.standard_normal((24, 1, 4, 4)).astype(np.float32)
    return model, {"x": x, "labels": rng.integers(0, 3, 24)}


def test_training_reads_changed_examples_and_evaluation_the_data(tmp_path: Path) -> None:
    model, data = images()
    how: Any = {"batch_size": 24, "validation": data, "report": True, "threads": 1, "rate": 0.0}
    plain = onnxgrad.fit(model, data, "cross_entropy", "sgd", **how)
    changed = onnxgrad.fit(model, data, "cross_entropy", "sgd", augment={"x": "crop{pad=1}"}, **how)
    assert changed.history.evaluations == plain.history.evaluations
    assert abs(changed.history.losses[0] - plain.history.losses[0]) > 1e-3


def test_a_resumed_run_reads_the_same_examples(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model, data = images()
    onnx.save(model, "m.onnx")
    np.savez("d.npz", **data)
    words = ["fit", "m.onnx", "--loss", "cross_entropy", "--data", "d.npz", "--batch-size", "5"]
    words += ["--augment", "x=flip", "--augment", "x=crop{pad=1}", "--threads", "1"]
    assert main([*words, "--steps", "14", "-o", "whole.onnx"]) == 0
    for steps in ("3", "8", "14"):
        assert main([*words, "--steps", steps, "--folder", "run", "-o", f"{steps}.onnx"]) == 0
    whole, parts = (onnx.load(f"{name}.onnx").graph for name in ("whole", "14"))
    assert whole == parts
    capsys.readouterr()
    assert main([*words, "--augment", "x=noise", "--steps", "16", "--folder", "run"]) == 2
    assert "augment" in capsys.readouterr().err
