"""The likelihood of labels at its edges: no label, no class, scores as large as they get."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import onnxgrad
from onnxgrad.errors import InputError
from onnxgrad.train.losses import BCEWithLogits, CrossEntropy, KLDiv, SequenceCrossEntropy
from onnxgrad.verify.reference.evaluate import reference
from onnxgrad.verify.running.session import run
from tests.train.losses.common import check, found, labels_of, log_softmax, through, with_loss

RNG = np.random.default_rng(0)
Z = 2 * RNG.standard_normal((4, 3))
WEIGHT = [0.5, 1.0, 2.0]


@pytest.mark.parametrize(
    "loss", [CrossEntropy(), CrossEntropy(label_smoothing=0.1), CrossEntropy(weight=WEIGHT)]
)
@pytest.mark.parametrize("label", [-1, 3, 1 << 40])
def test_a_label_that_is_no_class_makes_the_loss_nan_and_moves_nothing(
    loss: CrossEntropy, label: int
) -> None:
    value, gradient = found(loss, {"z": Z}, {"labels": np.array([0, 1, label, 2])})
    assert np.isnan(value)
    assert not gradient["z"].any()


@pytest.mark.parametrize(
    "loss", [CrossEntropy(), CrossEntropy(label_smoothing=0.1), CrossEntropy(weight=WEIGHT)]
)
def test_no_label_at_all_is_nan_without_a_gradient_as_in_pytorch(loss: CrossEntropy) -> None:
    value, gradient = found(loss, {"z": Z}, {"labels": np.full(4, -100)})
    assert np.isnan(value)
    assert not gradient["z"].any()
    total = CrossEntropy(weight=loss.weight, label_smoothing=loss.label_smoothing, reduction="sum")
    assert found(total, {"z": Z}, {"labels": np.full(4, -100)})[0] == 0.0


def test_large_scores_do_not_overflow() -> None:
    z = np.array([[1e4, 0.0, -1e4], [3e38, 0.0, 0.0]], np.float32)
    graph = onnxgrad.gradient(
        with_loss(through({"z": ["N", 3]}, TensorProto.FLOAT), CrossEntropy()), "z_in"
    )
    for labels, expected in (([2, 0], 1e4), ([0, 0], 0.0)):
        value, gradient = run(graph, {"z_in": z, "labels": np.array(labels)}).values()
        np.testing.assert_allclose(value, expected)
        assert np.isfinite(gradient).all()


def test_a_class_that_cannot_be() -> None:
    z = np.array([[0.0, -np.inf, 1.0], [2.0, 1.0, -np.inf]])
    value, gradient = found(CrossEntropy(), {"z": z}, {"labels": np.array([2, 0])})
    np.testing.assert_allclose(value, np.log1p(np.exp(-1)))
    p = 1 / (1 + np.exp(1))
    np.testing.assert_allclose(gradient["z"], [[p / 2, 0, -p / 2], [-p / 2, p / 2, 0]])


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("weight", [None, WEIGHT])
@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 2), (2, 3, 2, 2)])
def test_by_the_formula_with_axes_behind_the_classes(
    shape: tuple[int, ...], weight: Any, smoothing: float, reduction: Any
) -> None:
    w = np.array(weight or np.ones(3))

    def formula(z: np.ndarray, labels: np.ndarray) -> float:
        rows, right = np.moveaxis(log_softmax(z, 1), 1, -1).reshape(-1, 3), labels.reshape(-1)
        rows, right = rows[right != 1], right[right != 1]
        sharp = -(w[right] * rows[range(len(right)), right]).sum()
        total = (1 - smoothing) * sharp - smoothing / 3 * (w * rows).sum()
        return float(total / w[right].sum() if reduction == "mean" else total)

    loss = CrossEntropy(
        weight=weight, label_smoothing=smoothing, reduction=reduction, ignore_index=1
    )
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 3, (shape[0], *shape[2:]))
    labels.reshape(-1)[:2] = 1, 2
    check(loss, formula, {"z": rng.standard_normal(shape)}, {"labels": labels})


def test_the_gradient_is_softmax_minus_onehot() -> None:
    labels = np.array([0, 2, 1, 1])
    value, gradient = found(CrossEntropy(), {"z": Z}, {"labels": labels})
    log_p = log_softmax(Z)
    np.testing.assert_allclose(value, -log_p[range(4), labels].mean(), rtol=1e-12)
    np.testing.assert_allclose(gradient["z"], (np.exp(log_p) - np.eye(3)[labels]) / 4, atol=1e-14)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("smoothing", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("weight", [None, WEIGHT])
def test_by_the_formula(weight: Any, smoothing: float, reduction: Any) -> None:
    w = np.array(weight or np.ones(3))

    def formula(z: np.ndarray, labels: np.ndarray) -> float:
        log_p, kept = log_softmax(z), labels != -7
        right = w[labels[kept]]
        sharp = -(right * log_p[kept, labels[kept]]).sum()
        uniform = -(w * log_p[kept]).sum() / 3
        total = (1 - smoothing) * sharp + smoothing * uniform
        return float(total / right.sum() if reduction == "mean" else total)

    loss = CrossEntropy(
        weight=weight, label_smoothing=smoothing, reduction=reduction, ignore_index=-7
    )
    check(loss, formula, {"z": Z}, {"labels": np.array([0, 2, -7, 1])})


@pytest.mark.parametrize("axis", [0, 1, -1, 2])
def test_classes_on_any_axis(axis: int) -> None:
    z = RNG.standard_normal((2, 3, 4))
    labels = RNG.integers(0, 2, np.delete(z.shape, axis))

    def formula(z: np.ndarray, labels: np.ndarray) -> float:
        return float(
            -np.take_along_axis(log_softmax(z, axis), np.expand_dims(labels, axis), axis).mean()
        )

    check(CrossEntropy(axis=axis), formula, {"z": z}, {"labels": labels})
    sizes = np.delete(np.array(["a", "b", "c"]), axis)
    graph = with_loss(through({"z": ["a", "b", "c"]}), CrossEntropy(axis=axis))
    assert labels_of(graph) == {"labels": f"i64[{','.join(sizes)}]"}


def test_one_vector_of_scores() -> None:
    value, _ = found(CrossEntropy(), {"z": Z[0]}, {"labels": np.array(2)})
    np.testing.assert_allclose(value, -log_softmax(Z[0])[2])


def test_distributions() -> None:
    p = RNG.dirichlet(np.ones(3), 4)

    def formula(z: np.ndarray, labels: np.ndarray) -> float:
        return float(-((0.9 * labels + 0.1 / 3) * np.array(WEIGHT) * log_softmax(z)).sum() / 4)

    loss = CrossEntropy(probabilities=True, weight=WEIGHT, label_smoothing=0.1)
    check(loss, formula, {"z": Z}, {"labels": p})
    assert labels_of(with_loss(through({"z": ["N", 3]}), loss)) == {"labels": "f64[N,3]"}


@pytest.mark.parametrize("opset", [13, 15, 17, 18, 21])
def test_every_opset(opset: int) -> None:
    labels = np.array([0, -100, 1, 2])
    value, gradient = found(
        CrossEntropy(label_smoothing=0.1), {"z": Z}, {"labels": labels}, opset=opset
    )
    expected = found(
        CrossEntropy(label_smoothing=0.1), {"z": Z}, {"labels": labels}, symbolic=False
    )
    np.testing.assert_allclose(value, expected[0])
    np.testing.assert_allclose(gradient["z"], expected[1]["z"])


def test_a_language_model_is_scored_on_its_next_tokens() -> None:
    z, labels = RNG.standard_normal((2, 4, 5)), RNG.integers(0, 5, (2, 4))
    labels[1, 2:] = -100

    def formula(z: np.ndarray, labels: np.ndarray, shift: int = 1) -> float:
        log_p, t = log_softmax(z)[:, : 4 - shift], labels[:, shift:]
        return float(-np.array([log_p[n, s, t[n, s]] for n, s in np.argwhere(t >= 0)]).mean())

    check(SequenceCrossEntropy(), formula, {"z": z}, {"labels": labels})
    check(
        SequenceCrossEntropy(shift=0),
        lambda z, labels: formula(z, labels, 0),
        {"z": z},
        {"labels": labels},
    )
    graph = with_loss(through({"z": ["B", "S", 5]}), SequenceCrossEntropy())
    assert labels_of(graph) == {"labels": "i64[B,S]"}
    assert np.isnan(found(SequenceCrossEntropy(shift=4), {"z": z}, {"labels": labels})[0])
    value, gradient = found(SequenceCrossEntropy(shift=9), {"z": z}, {"labels": labels})
    assert np.isnan(value) and not gradient["z"].any()


def test_labels_of_32_bits() -> None:
    graph = through({"z": [4, 3]})
    graph.graph.input.append(helper.make_tensor_value_info("labels", TensorProto.INT32, [4]))
    for loss in (CrossEntropy(), CrossEntropy(label_smoothing=0.1, weight=WEIGHT)):
        found_ = reference(
            with_loss(graph, loss), {"z_in": Z, "labels": np.array([0, 1, 2, -100], np.int32)}
        )
        expected = found(loss, {"z": Z}, {"labels": np.array([0, 1, 2, -100])})[0]
        np.testing.assert_allclose(*found_.values(), expected)


def test_inputs_of_32_bits_on_demand() -> None:
    graph = with_loss(through({"z": ["B", "S", 5]}), SequenceCrossEntropy(target_dtype="int32"))
    assert labels_of(graph) == {"labels": "i32[B,S]"}
    z, labels = RNG.standard_normal((2, 4, 5)), RNG.integers(0, 5, (2, 4))
    expected = found(SequenceCrossEntropy(), {"z": z}, {"labels": labels})[0]
    np.testing.assert_allclose(
        *run(graph, {"z_in": z, "labels": labels.astype(np.int32)}).values(), expected
    )
    with pytest.raises(InputError, match="target_dtype must be one of int64, int32"):
        CrossEntropy(target_dtype="int8")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: CrossEntropy(label_smoothing=1.5), "label_smoothing must be from 0 to 1, not 1.5"),
        (
            lambda: CrossEntropy(label_smoothing=float("nan")),
            "label_smoothing must be a number",
        ),
        (lambda: CrossEntropy(reduction="none"), "reduction must be one of mean, sum, not 'none'"),  # type: ignore[arg-type]
        (lambda: CrossEntropy(weight=[1, float("inf")]), "weight must be finite numbers"),
        (lambda: CrossEntropy(ignore_index=0.5), "ignore_index must be a whole number"),  # type: ignore[arg-type]
        (lambda: SequenceCrossEntropy(shift=-1), "shift must be from 0 to"),
        (lambda: CrossEntropy(probabilities=1), "probabilities must be true or false"),  # type: ignore[arg-type]
    ],
)
def test_options_out_of_range(make: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        make()


def test_scores_that_do_not_fit() -> None:
    with pytest.raises(InputError, match=r"one number per class, 3 of them, not an array .2."):
        with_loss(through({"z": ["N", 3]}), CrossEntropy(weight=[1, 2]))
    words = r"\[N,S,5\]: the size of axis 1 is open.*CrossEntropy\(axis=-1\).*\(axis=-2: axis 1"
    with pytest.raises(InputError, match=words):
        with_loss(through({"z": ["N", "S", 5]}), CrossEntropy())
    with pytest.raises(InputError, match=r"with an axis 2"):
        with_loss(through({"z": ["N", 3]}), CrossEntropy(axis=2))
    with pytest.raises(InputError, match=r"with an axis 1"):
        with_loss(through({"z": []}), CrossEntropy())
    with pytest.raises(InputError, match=r"needs scores .B, S, V."):
        with_loss(through({"z": [3]}), SequenceCrossEntropy())


T = RNG.random((4, 3))
P = np.where(T < 0.4, 0.0, T)


@pytest.mark.parametrize("weight", [None, 0.5, [1.0, 2.0, 3.0], RNG.random((4, 1))])
@pytest.mark.parametrize("pos_weight", [None, 3.0, [0.5, 1.0, 2.0]])
def test_probabilities_by_the_formula(weight: Any, pos_weight: Any) -> None:
    w, p = (np.array(1.0 if v is None else v) for v in (weight, pos_weight))

    def formula(z: np.ndarray, labels: np.ndarray) -> float:
        s = 1 / (1 + np.exp(-z))
        return float(-(w * (p * labels * np.log(s) + (1 - labels) * np.log(1 - s))).mean())

    check(BCEWithLogits(weight=weight, pos_weight=pos_weight), formula, {"z": Z}, {"labels": T})


def test_the_gradient_is_the_probability_minus_the_label_also_at_zero_and_far_out() -> None:
    z = np.array([0.0, 1000.0, -1000.0, 1000.0, -40.0])
    t = np.array([1.0, 1.0, 1.0, 0.0, 0.0])
    value, gradient = found(BCEWithLogits(reduction="sum"), {"z": z}, {"labels": t})
    np.testing.assert_allclose(value, np.log(2) + 2000, rtol=1e-14)
    np.testing.assert_allclose(gradient["z"], [-0.5, 0.0, -1.0, 1.0, np.exp(-40)], atol=1e-17)


@pytest.mark.parametrize(("z", "t"), [(-15.0, 0.0), (15.0, 1.0), (-30.0, 0.0)])
def test_float32_keeps_the_last_digits_of_what_is_nearly_right(z: float, t: float) -> None:
    graph = onnxgrad.gradient(
        with_loss(through({"z": ["N"]}, TensorProto.FLOAT), BCEWithLogits()), "z_in"
    )
    feeds = {"z_in": np.array([z], np.float32), "labels": np.array([t], np.float32)}
    value, gradient = run(graph, feeds).values()
    np.testing.assert_allclose(value, np.exp(-abs(z)), rtol=1e-6)
    # as good as onnxruntime's Sigmoid
    np.testing.assert_allclose(gradient, [-np.sign(z) * np.exp(-abs(z))], atol=1e-7)


@pytest.mark.parametrize("reduction", ["mean", "sum", "batchmean"])
def test_divergence(reduction: Any) -> None:
    share = {"mean": 1 / 12, "sum": 1.0, "batchmean": 1 / 4}[reduction]

    def formula(y: np.ndarray, target: np.ndarray) -> float:
        return float(share * (target * (np.log(np.where(target == 0, 1, target)) - y)).sum())

    check(KLDiv(reduction=reduction), formula, {"y": Z}, {"target": P})
    check(
        KLDiv(reduction=reduction, log_target=True),
        lambda y, target: float(share * (np.exp(target) * (target - y)).sum()),
        {"y": Z},
        {"target": np.log(T)},
    )


def test_what_does_not_fit() -> None:
    with pytest.raises(
        InputError,
        match=r"pos_weight is an array \(2,\), which does not broadcast to 'z', f64.N,3.",
    ):
        with_loss(through({"z": ["N", 3]}), BCEWithLogits(pos_weight=[1, 2]))
    with pytest.raises(InputError, match=r"weight is an array \(1, 3\)"):
        with_loss(through({"z": [3]}), BCEWithLogits(weight=[[1, 2, 3]]))
    with pytest.raises(InputError, match=r"weight is an array \(2, 3\)"):
        with_loss(through({"z": [4, 3]}), BCEWithLogits(weight=np.ones((2, 3))))
    with pytest.raises(InputError, match="a batchmean needs a batch"):
        with_loss(through({"z": []}), KLDiv(reduction="batchmean"))
    with pytest.raises(InputError, match="weight must be finite numbers, not 'much'"):
        BCEWithLogits(weight="much")
    with pytest.raises(InputError, match="reduction must be one of mean, sum, batchmean"):
        KLDiv(reduction="none")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="log_target must be true or false"):
        KLDiv(log_target=1)  # type: ignore[arg-type]
