"""Metrics by name: their formulas, over any division into batches, by texts and from the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxgrad
from onnxgrad.cli.app import main
from onnxgrad.errors import InputError
from onnxgrad.train import MSE, SGD, SequenceCrossEntropy, Trainer, training_step
from onnxgrad.train.metrics import (
    F1,
    METRICS,
    R2,
    Accuracy,
    Confusion,
    IoU,
    Perplexity,
    PrAuc,
    Precision,
    Recall,
    RocAuc,
    Score,
    TopK,
    metrics_from,
)
from tests.helpers import parse
from tests.train.common import classifier, examples, step, write_model

RNG = np.random.default_rng(3)
SCORES, LABELS = RNG.normal(size=(23, 4)), RNG.integers(0, 4, 23)
COUNTS = [
    [float(((SCORES.argmax(1) == c) & (c == LABELS)).sum()) for c in range(4)],
    [float(((SCORES.argmax(1) == c) & (c != LABELS)).sum()) for c in range(4)],
    [float(((SCORES.argmax(1) != c) & (c == LABELS)).sum()) for c in range(4)],
]


def found(metric: Score, scores: Any, labels: Any, cut: int = 9) -> Any:
    """The metric of two batches."""
    parts = [
        metric.of({"y": s, "loss": np.zeros(())}, {metric.answers: t})
        for s, t in ((scores[:cut], labels[:cut]), (scores[cut:], labels[cut:]))
    ]
    sums = metric.added(*parts)
    return sums.tolist() if isinstance(metric, Confusion) else metric.value(sums)


@pytest.mark.parametrize("average", ["macro", "micro", "weighted"])
@pytest.mark.parametrize("metric", [F1, IoU])
def test_classes_are_counted(metric: Any, average: Any) -> None:
    tp, fp, fn = (np.array(c) for c in COUNTS)
    weights = {"macro": np.ones(4), "weighted": tp + fn, "micro": np.ones(1)}[average]
    if average == "micro":
        tp, fp, fn = (c.sum(keepdims=True) for c in (tp, fp, fn))
    each = 2 * tp / (2 * tp + fp + fn) if metric is F1 else tp / (tp + fp + fn)
    expected = pytest.approx((each * weights).sum() / weights.sum(), rel=1e-12)
    for cut in (0, 1, 9, 23):
        assert found(metric(average=average), SCORES, LABELS, cut) == expected
    # the classes may be along another axis, and labels may be ignored
    more = np.concatenate([SCORES, SCORES[:3]])
    labels = np.concatenate([LABELS, [7, 7, 7]])
    image, truth = more.reshape(2, 13, 4).transpose(2, 0, 1)[None], labels.reshape(1, 2, 13)
    assert found(metric(average=average, ignore_index=7), image, truth, 1) == expected
    last = metric(average=average, ignore_index=7, axis=-1)
    assert found(last, more.reshape(2, 13, 4), truth[0], 1) == expected


def test_classes_that_do_not_occur_do_not_count() -> None:
    scores = np.eye(5)[[0, 0, 1]]
    assert found(F1(), scores, np.array([0, 0, 1]), 1) == 1.0
    assert found(IoU(), scores, np.array([0, 1, 1]), 1) == pytest.approx((1 / 2 + 1 / 2) / 2)
    assert np.isnan(F1().value(np.zeros((3, 5))))


def test_a_threshold_finds_several_classes_or_one() -> None:
    truth = np.array([[1, 0], [1, 1], [0, 1], [0, 0]])
    scores = np.array([[2.0, -1.0], [-0.5, 0.1], [1.0, 3.0], [-1.0, -1.0]])
    # class 0: 1 right, 1 too many, 1 missed; class 1: 2 right
    assert found(F1(threshold=0.0), scores, truth, 1) == pytest.approx((2 / 4 + 1) / 2)
    assert found(F1(threshold=0.0, average="micro"), scores, truth, 1) == pytest.approx(6 / 8)
    assert found(IoU(threshold=0.0), scores[:, 0], truth[:, 0], 2) == pytest.approx(1 / 3)
    assert found(IoU(threshold=0.0), scores[:, :1], truth[:, 0], 2) == pytest.approx(1 / 3)
    assert found(F1(threshold=0.5), scores[:, 0], truth[:, 0], 2) == pytest.approx(2 / 4)


@pytest.mark.parametrize("k", [1, 2, 4])
def test_the_right_class_is_among_the_k_highest(k: int) -> None:
    best = np.argsort(-SCORES, axis=1)[:, :k]
    expected = float((best == LABELS[:, None]).any(1).mean())
    assert found(TopK(k=k), SCORES, LABELS) == pytest.approx(expected)
    assert found(TopK(k=k), SCORES, np.where(LABELS == 2, 4, LABELS)) <= expected
    assert found(TopK(k=k), np.full((23, 4), np.nan), LABELS) == 0


@pytest.mark.parametrize("shift", [0, 1, 2])
def test_perplexity_is_of_the_labels_that_count(shift: int) -> None:
    scores, labels = RNG.normal(size=(5, 7, 6)), RNG.integers(0, 6, (5, 7))
    labels[2, 4:] = -100
    lost = []
    for b, i in np.ndindex(5, 7 - shift):
        if (t := labels[b, i + shift]) >= 0:
            p = np.exp(scores[b, i]) / np.exp(scores[b, i]).sum()
            lost.append(-np.log(p[t]))
    expected = pytest.approx(np.exp(np.mean(lost)), rel=1e-12)
    for cut in (0, 2, 4):
        assert found(Perplexity(shift=shift), scores, labels, cut) == expected


@pytest.mark.parametrize("shift", [0, 1, 2])
def test_perplexity_shifts_as_the_loss_does(shift: int) -> None:
    model = parse("""g (int64[N, 5] x) => (float[N, 5, 4] logits) {
        table = Constant <value = float[3, 4] {1, 0, 2, 0, 0, 1, 0, 3, 2, 2, 0, 1}> ()
        e = Gather (table, x)  logits = Add (e, b) }""")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(4, np.float32), "b"))
    own = Trainer(training_step(model, SequenceCrossEntropy(shift=shift)))
    data = {"x": np.arange(30).reshape(6, 5) % 3, "labels": np.arange(30).reshape(6, 5) % 4}
    found = own.evaluate(data, metrics=["perplexity", "perplexity{shift=3}"])
    assert found["perplexity"] == pytest.approx(np.exp(found["loss"]), rel=1e-6)
    assert abs(found["perplexity{shift=3}"] - found["perplexity"]) > 0.01


@pytest.mark.parametrize("shape", [(31,), (31, 3), (31, 2, 2)])
def test_r2_keeps_its_digits_far_from_zero(shape: tuple[int, ...]) -> None:
    t = RNG.normal(size=shape) + 1e6
    y = t + 0.4 * RNG.normal(size=shape)
    spread, errors = ((t - t.mean(0)) ** 2).sum(0), ((t - y) ** 2).sum(0)
    for cut in (0, 1, 15, 31):
        assert found(R2(), y, t, cut) == pytest.approx(np.mean(1 - errors / spread), rel=1e-9)
    assert found(R2(), np.ones(4), np.ones(4), 2) == 1.0
    assert found(R2(), np.zeros(4), np.ones(4), 2) == 0.0


# one score per example with ties, at thresholds -0.5, 0 and 0.5; expected values of scikit-learn
LOGITS = np.array([2.0, -1.0, 0.5, 0.5, -0.3, 0.0, 1.2, -2.0, 0.5, -0.3])
TRUTH = np.array([1, 0, 1, 0, 1, 0, 1, 0, 0, 1])
BINARY: dict[type[Score], tuple[Any, Any, Any]] = {
    Accuracy: (0.7, 0.6, 0.7),
    F1: (10 / 13, 0.6, 4 / 7),
    Precision: (0.625, 0.6, 1.0),
    Recall: (1.0, 0.6, 0.4),
    IoU: (0.625, 3 / 7, 0.4),
    Confusion: ([[2, 3], [0, 5]], [[3, 2], [2, 3]], [[5, 0], [3, 2]]),
}


@pytest.mark.parametrize("shape", [(10,), (10, 1)])
@pytest.mark.parametrize("metric", BINARY)
def test_one_score_per_example(metric: Any, shape: tuple[int, ...]) -> None:
    for threshold, expected in zip((-0.5, 0.0, 0.5), BINARY[metric]):
        score, more = metric(threshold=threshold), metric(threshold=threshold, ignore_index=7)
        for cut in (0, 1, 4):
            for labels in (TRUTH, TRUTH == 1, TRUTH.reshape(10, 1), TRUTH.astype(np.float32)):
                assert found(score, LOGITS.reshape(shape), labels, cut) == approx(expected)
        ignored = np.concatenate([LOGITS, [9.0, -9.0]])
        assert found(more, ignored, np.concatenate([TRUTH, [7, 7]]), 3) == approx(expected)
    with pytest.raises(InputError, match="one score per label needs threshold, 0 for logits or"):
        found(metric(), LOGITS.reshape(shape), TRUTH)


def approx(expected: Any) -> Any:
    return expected if isinstance(expected, list) else pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("shape", [(10,), (10, 1), (10, 2)])
def test_areas_under_curves(shape: tuple[int, ...]) -> None:
    scores, labels = LOGITS.reshape(-1, 1), TRUTH
    if shape == (10, 2):  # two classes, whose scores differ by LOGITS
        scores = np.concatenate([0 * scores + 3, scores + 3], 1)
    scores = scores.reshape(shape)
    for cut in (0, 1, 4):
        assert found(RocAuc(), scores, labels, cut) == pytest.approx(0.72, rel=1e-12)
        assert found(PrAuc(), scores, labels, cut) == pytest.approx(0.77, rel=1e-12)
    more, ones = np.concatenate([scores, scores[:2]]), np.concatenate([labels, [7, 7]])
    assert found(RocAuc(ignore_index=7), more, ones) == pytest.approx(0.72)
    for metric in (RocAuc(), PrAuc()):
        assert np.isnan(found(metric, scores, np.ones(10)))
        assert np.isnan(found(metric, scores * np.nan, labels))
        with pytest.raises(InputError, match="'labels' must be 0 and 1"):
            found(metric, scores, 2 * labels)
        wide = LABELS[:, None].repeat(3, 1)
        with pytest.raises(InputError, match=r"shape \[9, 4\], or indices .* axis, not \[9, 3\]"):
            found(metric, SCORES, wide)
        with pytest.raises(InputError, match="'labels' must be indices below 4"):
            found(metric, SCORES, LABELS + 1)


def test_areas_of_several_classes_are_those_of_each_against_the_rest() -> None:
    """The numbers are scikit-learn's: roc_auc_score(t, p, multi_class="ovr") and
    average_precision_score(one hot, p).
    """
    rng = np.random.default_rng(7)
    z, t = np.round(rng.normal(size=(30, 4)), 2), rng.integers(0, 4, 30)
    z[np.arange(30), t] += 0.5
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    expected = {RocAuc: 0.6389903846153846, PrAuc: 0.4217699708766433}
    for metric, value in expected.items():
        for scores in (z, p, np.log(p), (z + 1e3).astype(np.float64)):
            for labels in (t, t[:, None], t.astype(np.uint8)):
                assert found(metric(), scores, labels, 13) == pytest.approx(value, rel=1e-9)
        more = np.concatenate([z, -z[:3]]), np.concatenate([t, [-100] * 3])
        assert found(metric(), *more) == pytest.approx(value, rel=1e-9)
        words = z.reshape(5, 6, 4), t.reshape(5, 6)
        assert found(metric(), *words, 2) == pytest.approx(value, rel=1e-9)
        assert np.isnan(found(metric(), z, np.where(t == 3, 2, t)))  # class 3 does not occur


def test_areas_are_those_of_the_definition() -> None:
    rng = np.random.default_rng(11)
    for size in (2, 5, 60):
        z, t = rng.integers(0, 7, (size, 3)) / 4, rng.integers(0, 2, (size, 3))
        t[0], t[1] = 0, 1
        roc, pr = [], []
        for s, yes in zip(z.T, t.T == 1):
            pairs = np.sign(s[yes][:, None] - s[~yes][None])
            roc.append((1 + pairs.mean()) / 2)
            pr.append(np.mean([yes[s >= x].mean() for x in s[yes]]))
        assert found(RocAuc(), z, t, 2) == pytest.approx(np.mean(roc), rel=1e-12)
        assert found(PrAuc(), z, t, 2) == pytest.approx(np.mean(pr), rel=1e-12)


def test_precision_and_recall_of_classes() -> None:
    right, predicted = [0, 1, 2, 2, 1, 0, 0, 0, 1, 2, 1, 0], [0, 2, 1, 0, 0, 1, 0, 0, 2, 2, 2, 2]
    scores, labels = np.eye(4)[predicted], np.array(right)  # class 3 does not occur
    expected: dict[Any, Any] = {
        "macro": (4 / 15, 14 / 45), "micro": (1 / 3, 1 / 3), "weighted": (0.3, 1 / 3),
    }  # fmt: skip
    for average, (precision, recall) in expected.items():
        for cut in (0, 5):
            assert found(Precision(average=average), scores, labels, cut) == approx(precision)
            assert found(Recall(average=average), scores, labels, cut) == approx(recall)
    table = [[3, 1, 1, 0], [1, 0, 3, 0], [1, 1, 1, 0], [0, 0, 0, 0]]
    assert found_table(scores, labels) == table
    never = np.eye(2)[[0, 0, 0]]
    assert found(Precision(), never, np.array([0, 1, 1])) == pytest.approx((1 / 3 + 0) / 2)
    assert found(Recall(), never, np.array([0, 0, 0])) == 1.0
    with pytest.raises(InputError, match="several scores per label: leave threshold out"):
        found(Confusion(threshold=0.0), never, never)


def found_table(scores: Any, labels: Any) -> Any:
    return Confusion().of({"y": scores}, {"labels": labels}).tolist()


@pytest.mark.parametrize("name", METRICS)
def test_labels_of_every_dtype(name: str) -> None:
    metric: Any = METRICS[name](k=2) if name == "top_k" else METRICS[name]()
    single = name in ("r2", "roc_auc", "pr_auc")
    scores = LOGITS if single else np.stack([-LOGITS, LOGITS, 0.5 - LOGITS], 1)
    labels = TRUTH
    if name == "perplexity":
        scores, labels = scores[:, None].repeat(3, 1), labels[:, None].repeat(3, 1)
    expected = approx(found(metric, scores, labels, 4))
    for dtype in (np.uint8, np.uint16, np.uint64, np.int8, np.bool_, np.float32):
        assert found(metric, scores, labels.astype(dtype), 4) == expected


BINARY_NAMES = ["accuracy", "f1", "precision", "recall", "iou", "roc_auc", "pr_auc"]


def logit_model(two: bool = False) -> onnx.ModelProto:
    """A model of one logit y, and its probability p as a second output."""
    more = ", float[N, 1] p" if two else ""
    last = "p = Sigmoid (y)" if two else ""
    model = parse(f"g (float[N, 3] x) => (float[N, 1] y{more}) {{ y = MatMul (x, w) {last} }}")
    weights = np.float32([[1.0], [-0.5], [0.25]])
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    return model


@pytest.mark.parametrize("target", ["labels", "churn"])
def test_the_loss_gives_target_and_threshold(target: str) -> None:
    text = "bce_with_logits" + ("" if target == "labels" else "{target=churn}")
    own = Trainer(training_step(logit_model(), text, SGD()), threads=1)
    x = RNG.normal(size=(40, 3)).astype(np.float32)
    t = (x[:, :1] + 0.5 * RNG.normal(size=(40, 1)) > 0).astype(np.float32)
    data = {"x": x, target: t}
    z = x @ np.float32([[1.0], [-0.5], [0.25]])
    tp, fp, fn = ((z > 0) & (t == 1)).sum(), ((z > 0) & (t == 0)).sum(), ((z <= 0) & (t == 1)).sum()
    expected = {
        "accuracy": ((z > 0) == (t == 1)).mean(), "f1": 2 * tp / (2 * tp + fp + fn),
        "precision": tp / (tp + fp), "recall": tp / (tp + fn), "iou": tp / (tp + fp + fn),
        "roc_auc": np.mean(z[t == 1][:, None] > z[t == 0][None]),
        "pr_auc": np.mean([(t[z >= s] == 1).mean() for s in z[t == 1]]),
    }  # fmt: skip
    for size in (40, 7):
        measured = own.evaluate(data, batch_size=size, metrics=BINARY_NAMES)
        assert {k: measured[k] for k in expected} == pytest.approx(expected, rel=1e-6)
    with pytest.raises(InputError, match="confusion is a table, not a number: `fit` reports it"):
        own.evaluate(data, metrics=["confusion"])
    table = Confusion(target=target, threshold=0).of(own.predict(data), data).tolist()
    assert table == [[40 - tp - fp - fn, fp], [fn, tp]]
    done = onnxgrad.fit(
        logit_model(), data, loss=text, rate=0.0, validation=data, measure=["confusion"],
        report=True,
    )  # fmt: skip
    assert done.confusion == {"confusion": table}


def test_a_threshold_is_not_guessed_for_probabilities() -> None:
    step = training_step(logit_model(two=True), "bce_with_logits{output=y}", SGD())
    own, data = Trainer(step, threads=1), {"x": np.eye(3, dtype=np.float32)}
    data["labels"] = np.float32([[1], [0], [0]])
    with pytest.raises(InputError, match="one score per label needs threshold"):
        own.evaluate(data, metrics=["accuracy{output=p}"])
    names = ["accuracy{output=p,threshold=0.5}", "accuracy{output=y}"]
    assert [*own.evaluate(data, metrics=names).values()][1:] == pytest.approx([2 / 3] * 2)
    several = training_step(logit_model(), "mse{target=a} + l1{target=b}", SGD())
    with pytest.raises(InputError, match="r2 needs target=: the loss reads a, b"):
        Trainer(several).evaluate({"x": data["x"], "a": data["labels"], "b": data["labels"]},
                                  metrics="r2")  # fmt: skip


@pytest.mark.parametrize("keep", ["last", "best"])
def test_the_report_of_a_binary_classifier(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], keep: str
) -> None:
    onnx.save(logit_model(), tmp_path / "one.onnx")
    for name in ("data", "held"):
        x = RNG.normal(size=(40, 3)).astype(np.float32)
        np.savez(tmp_path / f"{name}.npz", x=x, labels=x[:, 2] > 0)
    paths = {name: str(tmp_path / f"{name}.npz") for name in ("data", "held")}
    order = ["fit", str(tmp_path / "one.onnx"), "--loss", "bce_with_logits", "--rate", "0.3"]
    order += ["--data", paths["data"], "--measure", "confusion", "--measure", "accuracy"]
    report, scores = tmp_path / "report.json", str(tmp_path / "scores.npz")
    more = ["--keep", "best", "--patience", "1"] if keep == "best" else []
    more += ["--predict", f"{paths['held']}={scores}", "--json", str(report)]
    assert main([*order, "--validation", paths["held"], "--epochs", "4", *more]) == 0
    table = json.loads(report.read_text())["confusion"]["confusion"]
    y, held = np.load(scores)["y"][:, 0] > 0, np.load(paths["held"])["labels"]
    assert table == [[int(((held == i) & (y == j)).sum()) for j in (0, 1)] for i in (0, 1)]
    out = capsys.readouterr().out
    assert "held-out confusion" in out and "held-out accuracy" in out
    row = next(line.split() for line in out.splitlines() if line.startswith("label 1"))
    assert row[2:] == [str(n) for n in table[1]]
    share = [*order, "--validation", "0.25", "--epochs", "1", "--json", str(report)]
    assert main(share) == 0
    assert np.sum(json.loads(report.read_text())["confusion"]["confusion"]) == 10
    capsys.readouterr()
    assert main(order) == 2
    assert "needs held-out data: pass --validation NPZ" in capsys.readouterr().err


def test_names_are_texts() -> None:
    assert set(METRICS) == {
        "accuracy", "confusion", "f1", "iou", "perplexity", "pr_auc", "precision", "r2", "recall",
        "roc_auc", "top_k",
    }  # fmt: skip
    by_text = metrics_from(["f1{average=micro}", "top_k{k=2}"])
    assert by_text == {"f1{average=micro}": F1(average="micro"), "top_k{k=2}": TopK(k=2)}
    assert metrics_from({"a": "accuracy{output=z}"}) == {"a": Accuracy("z")}
    own, data = Trainer(step(), threads=1), examples(50)
    names = ["accuracy", "f1{average=micro}", "top_k{k=3}", "iou"]
    whole, parts = (own.evaluate(data, batch_size=n, metrics=names) for n in (50, 7))
    assert parts == pytest.approx(whole, rel=1e-6) and list(parts) == ["loss", *names]
    assert parts["f1{average=micro}"] == pytest.approx(parts["accuracy"])
    assert parts["top_k{k=3}"] == 1.0
    model = training_step(classifier(), MSE(target="t"), SGD())
    scores = {"x": data["x"], "t": RNG.normal(size=(50, 3)).astype(np.float32)}
    assert Trainer(model).evaluate(scores, metrics={"r": "r2{target=t}"})["r"] < 1


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        ("f2", "unknown metric 'f2'"),
        ("f1{average=mean}", "f1: average must be one of macro, micro, weighted"),
        ("top_k{k=0}", "top_k: k must be at least 1, not 0"),
        ("top_k", "top_k: k is 5, but there are only 3 classes"),
        ("accuracy{output=z}", "the metric reads 'z', but the values are logits, loss"),
        ("r2{target=t}", "the metric reads 't', but the values are x, labels"),
        ("r2{target=labels}", r"r2: 'labels' has shape \[8\], the output \[8, 3\]"),
        ("perplexity", r"perplexity: scores \[8, 3\] need labels \[8\]|shift"),
        ("f1{threshold=0}", r"with a threshold 'labels' must be 0 and 1 in the scores' shape"),
        ({"f": 3}, "metric 'f' must be a function or text, not 3"),
        ([3], "metrics must be a table or a list or text"),
    ],
)
def test_what_is_no_metric(metrics: Any, words: str) -> None:
    if metrics == "perplexity":
        metrics = "perplexity{target=x}"
    with pytest.raises(InputError, match=words):
        Trainer(step()).evaluate(examples(8), metrics=metrics)


@pytest.mark.slow
def test_the_command_measures_held_out_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(write_model(tmp_path))
    for name, seed in (("data", 1), ("held", 2)):
        np.savez(tmp_path / f"{name}.npz", **examples(64, seed), aside=np.arange(64) % 3)
    report, order = tmp_path / "report.json", ["fit", model, "--loss", "cross_entropy"]
    order += ["--data", str(tmp_path / "data.npz"), "--json", str(report)]
    held = ["--validation", str(tmp_path / "held.npz"), "--accuracy", "logits=labels"]
    measures = ["--measure", "f1{average=micro}", "--measure", "accuracy{target=aside}"]
    assert main([*order, *held, *measures]) == 0
    assert "does not read 'aside'" in capsys.readouterr().err  # but as a label
    (evaluation,) = json.loads(report.read_text())["evaluations"]
    assert list(evaluation) == ["loss", "accuracy", "f1{average=micro}", "accuracy{target=aside}"]
    assert evaluation["f1{average=micro}"] == pytest.approx(evaluation["accuracy"])
    assert main([*order, "--measure", "f1"]) == 2
    assert main([*order, *held, "--measure", "f2"]) == 2
    told = capsys.readouterr().err.splitlines()
    assert "--accuracy or --measure needs held-out data: pass --validation NPZ" in told[-2]
    assert "unknown metric 'f2': choose from accuracy, confusion, f1" in told[-1]
