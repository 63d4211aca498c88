"""`onnxgrad.fit`: what the command does, for models and arrays in Python."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxgrad
from onnxgrad import LimitReached, train
from onnxgrad.cli.app import main
from onnxgrad.errors import InputError
from onnxgrad.jobs.training.kinds import Scales
from onnxgrad.train import step_folder
from onnxgrad.verify.running.session import run
from tests.train.common import examples, write_model

HOW: dict[str, Any] = {"loss": "cross_entropy", "threads": 1}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path)
    np.savez("data.npz", **examples(100))
    np.savez("held.npz", **examples(50, seed=2))
    return tmp_path


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (["--epochs", "2"], {"epochs": 2}),
        (["--steps", "9", "--no-shuffle"], {"steps": 9, "shuffle": False}),
        (["--inputs-at", "h2"], {"inputs_at": "h2"}),
        (["--rate", "0.3", "--epochs", "3", "--keep", "best"], {"rate": 0.3, "epochs": 3, "keep": "best"}),
    ],
)  # fmt: skip
def test_the_command_and_the_function_write_the_same(
    folder: Path, words: list[str], options: dict[str, Any]
) -> None:
    base = ["--loss", "cross_entropy", "--threads", "1", "--accuracy", "logits=labels"]
    base += ["--data", "data.npz", "--validation", "held.npz", "-q"]
    assert main(["fit", "model.onnx", *base, *words, "-o", "out.onnx"]) == 0
    done = onnxgrad.fit(
        "model.onnx", examples(100), validation="held.npz", accuracy={"logits": "labels"},
        **HOW, **options, report=True,
    )  # fmt: skip
    assert isinstance(done, onnxgrad.Fitted) and isinstance(done.model, onnx.ModelProto)
    assert done.model.graph == onnx.load("out.onnx").graph
    assert done.last["step"] == done.steps and done.best["loss"] <= done.last["loss"]
    assert 0 <= done.history.evaluations[-1]["accuracy"] <= 1
    assert f"{done.steps} steps in all" in str(done) and "| epoch" in done.to_markdown()
    assert done.to_dict()["losses"] == done.history.losses


def test_the_result_has_the_type_of_the_model(folder: Path) -> None:
    proto = onnx.load("model.onnx")
    before = proto.SerializeToString(deterministic=True)
    program = onnxgrad.load("model.onnx")
    given: list[Any] = [proto, program, program.main, Path("model.onnx").read_bytes()]
    found = [onnxgrad.fit(model, examples(64), steps=2, **HOW) for model in given]
    assert [type(f) for f in found] == [*map(type, given[:3]), onnx.ModelProto]
    one, *others = (onnxgrad.load(f).proto.graph.initializer for f in found)
    assert all(list(one) == list(other) for other in others)
    assert list(one) != list(proto.graph.initializer)
    assert proto.SerializeToString(deterministic=True) == before
    assert list(program.proto.graph.initializer) == list(proto.graph.initializer)


def test_the_folder_of_a_step_trains_its_original(folder: Path) -> None:
    step = onnxgrad.training_step("model.onnx", "cross_entropy")
    train.save_step(step, "step")
    of_step = onnxgrad.fit("step", "data.npz", original="model.onnx", steps=4, threads=1)
    assert of_step.graph == onnxgrad.fit("model.onnx", "data.npz", steps=4, **HOW).graph
    with pytest.raises(InputError, match="fit: original= is missing, the model of the step"):
        onnxgrad.fit("step", "data.npz")
    of_steps: dict[str, Any] = {"optimizer": "sgd", "clip_norm": 1.0, "metrics": "logits"}
    for name, value in of_steps.items():
        with pytest.raises(InputError, match=rf"{name}: the folder is a step that has been made"):
            onnxgrad.fit("step", "data.npz", original="model.onnx", **{name: value})
    with pytest.raises(InputError, match=r"original= is the float model .* train with ste=True"):
        onnxgrad.fit("model.onnx", "data.npz", original="model.onnx", **HOW)


def test_a_step_that_averages_is_evaluated_and_written_by_its_averages(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file's outputs are those of the averages that a Trainer has after the same steps."""
    step, held = onnxgrad.training_step("model.onnx", "cross_entropy", average=0.9), examples(50, 2)
    train.save_step(step, "step")
    trainer = onnxgrad.Trainer(step, threads=1, rate=0.05)
    trainer.fit(examples(100), epochs=3)
    wanted = trainer.predict({"x": held["x"]}, averaged=True)["logits"]
    plain = trainer.predict({"x": held["x"]})["logits"]
    assert np.abs(wanted - plain).max() > 0.1
    words = ["--data", "data.npz", "--validation", "held.npz", "--rate", "0.05", "--epochs", "3"]
    words += ["--threads", "1", "--predict", "held.npz=scores.npz", "--json", "report.json", "-o"]
    of_model = ["fit", "model.onnx", "--loss", "cross_entropy", "--average", "0.9"]
    of_folder, into = ["fit", "step"], ["--original", "model.onnx"]
    for start, more in ((of_model, []), (of_folder, into), (of_folder, [])):
        assert main([*start, *words, "out.onnx", *more]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert "out.onnx has the averages of the last weights. Held out: " in shown
        found = run(Path("out.onnx"), {"x": held["x"]})["logits"]
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)
        np.testing.assert_array_equal(np.load("scores.npz")["logits"], wanted)
        report = json.loads(Path("report.json").read_text())
        averaged = trainer.evaluate(held, averaged=True)["loss"]
        assert report["averaged"] and report["last"]["loss"] == pytest.approx(averaged, abs=1e-6)
    done = onnxgrad.fit("model.onnx", examples(100), **HOW, steps=4, report=True)
    assert not done.averaged and "averages" not in str(done)


@pytest.mark.slow
def test_the_model_of_a_folder_is_proved_before_it_is_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On held-out rows, and on generated ones without a validation."""
    assert main(["train-step", "model.onnx", "--loss", "cross_entropy", "-o", "step"]) == 0
    words = ["fit", "step", "--data", "data.npz", "-o"]
    assert main([*words, "right.onnx"]) == 0
    with_initializers = step_folder.with_initializers

    def wrong(predict: Any, weights: Any, *more: Any) -> Any:
        return with_initializers(predict, {n: a * 1.001 for n, a in weights.items()}, *more)

    monkeypatch.setattr(step_folder, "with_initializers", wrong)
    for number, more in enumerate(([], ["--validation", "held.npz"])):
        assert main([*words, f"wrong{number}.onnx", *more]) == 1
        assert "does not compute what was evaluated" in capsys.readouterr().err
        assert not Path(f"wrong{number}.onnx").exists()


def test_a_limit_of_time_ends_training_here_too(folder: Path) -> None:
    with pytest.raises(LimitReached, match=r"ended after step \d+: .* timeout=; .*: folder= saves"):
        onnxgrad.fit("model.onnx", "data.npz", epochs=10**6, timeout=1.5, **HOW)


def test_a_frozen_part_needs_arrays(folder: Path) -> None:
    with pytest.raises(InputError, match="inputs_at needs data that is arrays by name, not list"):
        onnxgrad.fit("model.onnx", [examples(32)], inputs_at="h2", **HOW)


@pytest.mark.parametrize("text", ["x", "x=", "x=1/0", "x=a"])
def test_a_scale_is_a_number_or_a_fraction(text: str) -> None:
    assert Scales().read("a=b=1/4", "--scale") == ("a=b", 0.25)
    with pytest.raises(
        InputError, match=r"^--scale x.*: write NAME=NUMBER, such as --scale x=1/255$"
    ):
        Scales().read(text, "--scale")


@pytest.mark.parametrize("classes", [2, 3])
def test_a_note_says_why_an_area_is_nan(folder: Path, classes: int) -> None:
    """A class that no held-out label has leaves its area undefined."""
    held = examples(50, seed=2)
    held["labels"] %= classes
    done = onnxgrad.fit(
        "model.onnx", examples(100), validation=held, measure=["roc_auc", "f1"], **HOW, report=True
    )
    assert np.isnan(done.last["roc_auc"]) == (classes < 3) and done.last["f1"] >= 0
    notes = [note for note in done.notes if " is nan: " in note]
    assert (
        notes
        == [
            "roc_auc is nan: the held-out labels are of one class only, or lack a class, or scores are NaN"
        ][: classes < 3]
    )
