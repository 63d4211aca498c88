"""Weights from data: of examples, as an input beside the labels, and of classes, counted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onnxgrad
from onnxgrad import Trainer, training_step
from onnxgrad.cli.app import main
from onnxgrad.errors import InputError
from onnxgrad.train.losses import (
    CTC,
    L1,
    LOSSES,
    MSE,
    BCEWithLogits,
    Cosine,
    CosineEmbedding,
    CrossEntropy,
    Huber,
    KLDiv,
    SequenceCrossEntropy,
    SmoothL1,
    TripletMargin,
    class_weights,
)
from onnxgrad.train.losses.base import OfExamples
from onnxgrad.train.losses.weighting import balanced
from tests.train.common import classifier, examples, write_model
from tests.train.losses.common import check, found, log_softmax

RNG = np.random.default_rng(4)
Z, LABELS, W = RNG.normal(size=(5, 3)), np.array([0, 2, -100, 1, 2]), RNG.uniform(0.1, 2, 5)
CLASSES = [0.5, 1.0, 2.0]


def likelihood(
    z: Any, labels: Any, w: Any, classes: Any = (1, 1, 1), smoothing: float = 0, mean: bool = True
) -> float:
    """Over rows."""
    log_p, c = log_softmax(z), np.array(classes, np.float64)
    total = share = 0.0
    for row, t, factor in zip(log_p, labels, w, strict=True):
        if t != -100:
            target = (1 - smoothing) * np.eye(len(c))[t] * c[t] + smoothing / len(c) * c
            total, share = total - factor * (target * row).sum(), share + c[t]
    return total / share if mean else total


@pytest.mark.parametrize(
    ("classes", "smoothing", "reduction"),
    [
        (CLASSES, 0.1, "mean"),
        (None, 0.0, "mean"),
        *(
            pytest.param(c, s, r, marks=pytest.mark.slow)
            for c in (None, CLASSES)
            for s in (0.0, 0.1)
            for r in ("mean", "sum")
        ),
    ],
)
def test_terms_of_labels_count_by_their_examples(
    classes: Any, smoothing: float, reduction: Any
) -> None:
    loss = CrossEntropy(
        weight=classes, label_smoothing=smoothing, reduction=reduction, sample_weight="w"
    )

    def formula(z: Any, labels: Any, w: Any) -> float:
        return likelihood(z, labels, w, classes or (1, 1, 1), smoothing, reduction == "mean")

    check(loss, formula, {"z": Z}, {"labels": LABELS, "w": W})
    # weights of 1 change nothing
    plain = CrossEntropy(weight=classes, label_smoothing=smoothing, reduction=reduction)
    a, da = found(plain, {"z": Z}, {"labels": LABELS})
    b, db = found(loss, {"z": Z}, {"labels": LABELS, "w": np.ones(5)})
    np.testing.assert_allclose(a, b, rtol=1e-12)
    np.testing.assert_allclose(da["z"], db["z"], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("axis", [1, 2])
def test_every_label_of_an_example_has_its_weight(axis: int) -> None:
    z, labels, w = RNG.normal(size=(2, 3, 3)), RNG.integers(0, 3, (2, 3)), np.array([0.5, 3.0])
    rows = np.moveaxis(z, axis, 2).reshape(6, 3)
    expected = likelihood(rows, labels.ravel(), w.repeat(3))
    loss = CrossEntropy(axis=axis, sample_weight="w")
    np.testing.assert_allclose(found(loss, {"z": z}, {"labels": labels, "w": w})[0], expected)
    p = np.eye(3)[labels] if axis == 2 else np.moveaxis(np.eye(3)[labels], 2, 1)
    same = CrossEntropy(axis=axis, probabilities=True, target="p", sample_weight="w")
    np.testing.assert_allclose(found(same, {"z": z}, {"p": p, "w": w})[0], expected)


@pytest.mark.slow
def test_a_sequence_too() -> None:
    z, labels, w = RNG.normal(size=(2, 4, 3)), RNG.integers(0, 3, (2, 4)), np.array([0.5, 3.0])
    expected = likelihood(z[:, :-1].reshape(6, 3), labels[:, 1:].ravel(), w.repeat(3))
    loss = SequenceCrossEntropy(sample_weight="w")
    np.testing.assert_allclose(found(loss, {"z": z}, {"labels": labels, "w": w})[0], expected)


@pytest.mark.parametrize("loss", [MSE, L1, Huber, SmoothL1])
def test_numbers_count_by_their_examples(loss: Any) -> None:
    y, t, w = RNG.normal(size=(4, 2)), RNG.normal(size=(4, 2)), RNG.uniform(0, 2, 4)
    each = [found(loss(), {"y": y[i : i + 1]}, {"target": t[i : i + 1]})[0] for i in range(4)]
    value, _ = found(loss(sample_weight="w"), {"y": y}, {"target": t, "w": w})
    np.testing.assert_allclose(value, (w * each).mean(), rtol=1e-12)
    value, gradient = found(
        BCEWithLogits(sample_weight="w"), {"y": y}, {"labels": (t > 0) * 1.0, "w": w}
    )
    p = 1 / (1 + np.exp(-y))
    each = -np.log(np.where(t > 0, p, 1 - p))
    np.testing.assert_allclose(value, (w[:, None] * each).mean(), rtol=1e-12)
    np.testing.assert_allclose(gradient["y"], w[:, None] * (p - (t > 0)) / 8, rtol=1e-12)


# arrays by the losses' inputs: outputs of the model, then labels
VECTORS = {name: RNG.normal(size=(4, 3)) for name in ("anchor", "positive", "negative")}
SHARES = np.exp(log_softmax(RNG.normal(size=(4, 3))))
CASES: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "kl_div": (KLDiv(), {"y": log_softmax(Z[:4])}, {"target": SHARES}),
    "kl_div of a batch": (
        KLDiv(reduction="batchmean"), {"y": log_softmax(Z[:4])}, {"target": SHARES}
    ),
    "cosine": (Cosine(), {"y": Z[:4]}, {"target": SHARES}),
    "cosine_embedding": (
        CosineEmbedding(), {"y": Z[:4]}, {"labels": np.array([1, -1, 1, -1]), "other": SHARES}
    ),
    "triplet_margin": (TripletMargin(), VECTORS, {}),
    "ctc": (
        CTC(batch_first=True, input_lengths=None), {"y": RNG.normal(size=(4, 5, 3))},
        {"labels": np.array([[1, 2], [2, 2], [1, 1], [2, 1]]), "target_lengths": np.array([2, 1, 2, 2])},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_terms_of_examples_are_multiplied(name: str) -> None:
    loss, values, labels = CASES[name]
    w = np.array([0.5, 2.0, 0.0, 1.25])

    def of_one(i: int) -> float:
        own = ({k: a[i : i + 1] for k, a in given.items()} for given in (values, labels))
        return found(loss, *own, onnxruntime=False)[0]

    value, _ = found(replace(loss, sample_weight="w"), values, {**labels, "w": w})
    np.testing.assert_allclose(value, np.mean([w[i] * of_one(i) for i in range(4)]), rtol=1e-9)


def test_every_loss_with_labels_takes_weights_of_examples() -> None:
    without = {name for name, cls in LOSSES.items() if not issubclass(cls, OfExamples)}
    assert without == {"output", "l1_penalty", "l2_penalty", "proximal_penalty"}
    for loss in (Cosine(dim=0, sample_weight="w"), Cosine(dim=-2, sample_weight="w")):
        with pytest.raises(InputError, match="with dim=0 no vector belongs to one example alone"):
            found(loss, {"y": Z[:4]}, {"target": SHARES, "w": W[:4]})


def test_no_label_that_counts_is_nan_without_a_gradient() -> None:
    nothing = {"labels": np.full(5, -100), "w": W}
    value, gradient = found(CrossEntropy(sample_weight="w"), {"z": Z}, nothing)
    assert np.isnan(value) and not gradient["z"].any()
    wrong = {"labels": np.array([0, 7, 1, 1, 1]), "w": W}
    value, gradient = found(CrossEntropy(sample_weight="w"), {"z": Z}, wrong)
    assert np.isnan(value) and not gradient["z"].any()


def test_classes_count_alike() -> None:
    labels = np.array([[0, 0, 0, 1], [0, 0, -100, 3]])
    assert class_weights(labels) == pytest.approx([7 / 20, 7 / 4, 1, 7 / 4])
    assert class_weights(labels, 5) == pytest.approx([7 / 25, 7 / 5, 1, 7 / 5, 1])
    assert class_weights(labels[:1], ignore_index=0) == [1.0, 0.5]
    for wrong in (labels * 1.0, np.array([-1, 0]), np.array([-100])):
        with pytest.raises(InputError, match="class weights need labels"):
            class_weights(wrong)


def test_fit_counts_the_classes_and_reads_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path)
    data = examples(64)
    data["labels"][:40] = 0
    w = np.linspace(0, 2, 64, dtype=np.float32)
    np.savez("data.npz", **data, w=w)
    text = "cross_entropy{weight=balanced,sample_weight=w} + 0.1*l2_penalty{params=w*}"
    order = ["fit", "model.onnx", "--optimizer", "sgd{lr=0.1}", "--loss"]
    assert main([*order, text, "--data", "data.npz", "-o", "out.onnx"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "w float32[N] weights of examples" in shown
    numbers = class_weights(data["labels"])
    printed = ", ".join(f"{number:.7g}" for number in numbers)
    assert f"or -100 (ignored), weight=[{printed}]" in shown
    assert main(["train-step", *order[1:], "cross_entropy{weight=balanced}", "-o", "s"]) == 2
    assert "weight=[NUMBER,...], such as the numbers that `onnxgrad fit`" in capsys.readouterr().err
    own_numbers = f"cross_entropy{{weight=[{printed}]}}"
    assert main(["train-step", *order[1:], own_numbers, "-o", "s", "--no-verify"]) == 0
    loss = onnxgrad.train.CrossEntropy(weight=numbers, sample_weight="w")
    own = Trainer(
        training_step(classifier(), loss + 0.1 * onnxgrad.train.L2Penalty("w*"), "sgd{lr=0.1}")
    )
    own.fit({**data, "w": w})
    for name, array in own.parameters.items():
        np.testing.assert_allclose(
            onnxgrad.load("out.onnx").main.initializers[name].const, array, rtol=1e-5
        )
    np.savez("bad.npz", x=data["x"], y=data["labels"])
    for loss_text, file, told in (
        (
            "cross_entropy{weight=balanced}",
            "bad.npz",
            "balanced weights count 'labels', which is not there",
        ),
        ("cross_entropy{weight=equal}", "data.npz", "weight must be finite numbers, not 'equal'"),
        (
            "cross_entropy{sample_weight=v}",
            "data.npz",
            "the inputs are x: float32[N, 8], labels: int64[N], v: float32",
        ),
    ):
        assert main([*order, loss_text, "--data", file]) == 2
        (line,) = [x for x in capsys.readouterr().err.splitlines() if "nothing reads" not in x]
        assert told in line
    with pytest.raises(InputError, match=r"pass weight=train.class_weights"):
        training_step(classifier(), "cross_entropy{weight=balanced}")


@pytest.mark.parametrize("shape", [(40,), (40, 1), (40, 3), (40, 2, 2)])
@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.bool_])
def test_labels_1_and_0_count_alike(shape: tuple[int, ...], dtype: Any) -> None:
    labels = (RNG.uniform(size=shape) < 0.2).astype(dtype)
    made: Any = balanced(BCEWithLogits(pos_weight="balanced"), lambda name: labels)
    weights = np.broadcast_to(made.pos_weight, shape)
    totals = (np.where(labels, weights, 0), labels == 0)
    axes = tuple(i for i in range(len(shape)) if i != 1)
    ones, zeros = (a.sum(axes) for a in totals)
    np.testing.assert_allclose(ones, zeros, rtol=1e-6)


def test_labels_of_one_kind_have_a_weight_of_1() -> None:
    labels = np.array([[0, 1, 0], [0, 1, 1]])
    made: Any = balanced(BCEWithLogits(pos_weight="balanced"), lambda name: labels)
    assert made.pos_weight == [1.0, 1.0, 1.0]
    for wrong in (labels * 2, labels - 1, labels * np.nan):
        with pytest.raises(InputError, match="pos_weight=balanced needs labels from 0 to 1"):
            balanced(made.__class__(pos_weight="balanced"), lambda name, w=wrong: w)


def test_fit_counts_labels_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The numbers that it prints train to the same bytes."""
    write_model(tmp_path)
    model, data = str(tmp_path / "model.onnx"), str(tmp_path / "data.npz")
    arrays = {"x": examples(64)["x"], "y": (RNG.uniform(size=(64, 3)) < [0.1, 0.3, 0.6])}
    np.savez(data, **arrays)
    sizes = arrays["y"].sum(0)
    printed = str([float(f"{n:.7g}") for n in (64 - sizes) / sizes])
    written = []
    for number, weight in enumerate(("balanced", printed)):
        loss, out = f"bce_with_logits{{target=y,pos_weight={weight}}}", tmp_path / f"{number}.onnx"
        assert main(["fit", model, "--data", data, "--loss", loss, "-o", str(out)]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert f"labels, pos_weight={printed}" in shown
        written.append([*onnxgrad.load(out).proto.graph.initializer])
    assert written[0] == written[1]
    with pytest.raises(InputError, match=r"pass the numbers, \(1 - labels\).sum\(0\)"):
        training_step(classifier(), "bce_with_logits{pos_weight=balanced}")
