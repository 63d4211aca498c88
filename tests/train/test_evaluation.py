"""The share of right answers, of labels in each form that they come in; what has none is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from onnxgrad.cli.app import main
from onnxgrad.errors import InputError, RunWarning
from onnxgrad.train import MSE, SGD, Trainer, training_step
from onnxgrad.train.metrics import accuracy
from onnxgrad.verify.running.session import run
from tests.helpers import parse, stored_arrays
from tests.train.common import classifier, examples, step, write_model

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
        (
            SCORES[:, :1],
            RIGHT,
            r"logits has shape \[4, 1\], and must have scores of several classes",
        ),
        (
            SCORES[:, 0],
            RIGHT,
            r"logits has shape \[4\], and must have scores of several classes along axis 1",
        ),
        (SCORES, RIGHT[:3], r"'labels' has shape \[3\], the scores \[4, 3\]"),
        (SCORES, np.ones((4, 3)), "'labels' marks several classes of one example, or none"),
        (
            SCORES.reshape(1, 4, 3),
            RIGHT[None],
            r"'labels' has shape \[1, 4\], the scores \[1, 4, 3\]: the classes are along axis=-1",
        ),
        (SCORES[:3], np.ones((4, 3)), r"'labels' has shape \[4, 3\], the scores \[3, 3\]"),
    ],
)
def test_what_has_no_accuracy(scores: Any, labels: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        accuracy()({"logits": scores}, {"labels": labels})


def test_what_is_not_there() -> None:
    with pytest.raises(InputError, match="the metric reads 'labels', but the values are y"):
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
    of_labels = {"accuracy": accuracy(target="labels")}
    found = own.evaluate({**data, "y": y, "labels": labels}, metrics=of_labels)
    same = own.evaluate({**data, "y": y}, metrics={"accuracy": accuracy()})
    assert found == same and 0 < found["accuracy"] < 1
    for metrics in ({}, {"accuracy": accuracy(target="y")}):
        with pytest.raises(
            InputError, match="has 'labels', which is not an input; the inputs are x"
        ):
            own.evaluate({**data, "y": y, "labels": labels}, metrics=metrics)


def test_no_batch_at_all() -> None:
    with pytest.raises(InputError, match="has no batches"):
        Trainer(step(), threads=1).evaluate([])


# ---- predictions ---------------------------------------------------------------------------------


def test_predictions_are_the_outputs_of_the_exported_model(tmp_path: Path) -> None:
    own, data, rest = Trainer(step(average=0.9), threads=1), examples(64), examples(50, seed=5)
    own.fit(data, validation=rest, keep="best", epochs=3)
    for options in ({}, {"weights": "last"}, {"averaged": True}):
        trained = own.export(classifier(), **options)
        expected = run(trained, {"x": rest["x"]})["logits"]
        for given in (rest, {"x": rest["x"]}, [{"x": rest["x"][:9]}, {"x": rest["x"][9:]}]):
            found = own.predict(given, **options)
            assert list(found) == ["logits"]
            np.testing.assert_allclose(found["logits"], expected, rtol=1e-5, atol=1e-6)
    np.savez(tmp_path / "x.npz", x=rest["x"], aside=np.ones(50))
    with pytest.warns(RunWarning, match="the step does not read 'aside'; it reads x"):
        assert own.predict(tmp_path / "x.npz", batch_size=7)["logits"].shape == (50, 3)
    with pytest.raises(InputError, match="has 'aside', which is not an input; the inputs are x: "):
        own.predict({"x": rest["x"], "aside": np.ones(50)})
    with pytest.raises(InputError, match="the batch lacks 'x'"):
        own.predict({"labels": rest["labels"]})


def test_a_model_of_one_batch_size_predicts_for_any_number() -> None:
    model = classifier()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 4
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 4
    own, x = Trainer(training_step(model, "cross_entropy"), threads=1), examples(10)["x"]
    expected = Trainer(step(), threads=1).predict({"x": x})["logits"]
    np.testing.assert_allclose(own.predict({"x": x})["logits"], expected, rtol=1e-6)


def test_what_cannot_be_predicted() -> None:
    text = "g (float[N,3] x) => (float[N,3] y, float m) { y = Mul (x, w) m = ReduceMean <keepdims=0> (y) }"
    model = parse(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(3, np.float32), "w"))
    own = Trainer(training_step(model, MSE("y"), SGD(), "w"), threads=1)
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    assert own.predict({"x": x})["m"] == x.mean()
    with pytest.raises(
        InputError, match=r"'m' has no row for each example: .* batch_size of all 4"
    ):
        own.predict({"x": x}, batch_size=2)
    del model.graph.output[0]
    with pytest.raises(InputError, match="only output of the model is the loss"):
        Trainer(training_step(model, "m", SGD(), "w"), threads=1).predict({"x": x})


def test_the_command_predicts_after_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path)
    np.savez("data.npz", **examples(64))
    np.savez("new.npz", x=examples(40, seed=4)["x"])
    np.savez("other.npz", x=np.ones((3, 7), np.float32))
    words = ["fit", "model.onnx", "--loss", "cross_entropy", "--data", "data.npz", "--predict"]
    assert main([*words, "new.npz=scores.npz", "-o", "trained.onnx"]) == 0
    assert "scores.npz" in capsys.readouterr().out
    expected = run("trained.onnx", {"x": stored_arrays("new.npz")["x"]})["logits"]
    np.testing.assert_allclose(
        stored_arrays("scores.npz")["logits"], expected, rtol=1e-5, atol=1e-6
    )
    for text, told in (
        ("new.npz", "write NPZ=NPZ, such as --predict new.npz=scores.npz"),
        ("new.npz=new.npz", "new.npz"),
        ("new.npz=data.npz", "data.npz"),
        ("gone.npz=scores.npz", "gone.npz"),
        (
            "other.npz=scores.npz",
            "other.npz: 'x' of the batch has shape [1, 7], but the step requires",
        ),
    ):
        before = Path("new.npz").read_bytes()
        assert main([*words, text, "--log", "log.jsonl"]) == 2 and not Path("log.jsonl").exists()
        (line,) = capsys.readouterr().err.splitlines()
        assert told in line and Path("new.npz").read_bytes() == before
