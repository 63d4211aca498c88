"""`train-step` and `fit` as a user calls them."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxgrad
from onnxgrad.cli.app import main
from onnxgrad.verify.running.session import run
from tests.helpers import MODELS_DIR
from tests.train.common import examples, write_model
from tests.train.parallel_runs import language, padded

BASE = ["--loss", "cross_entropy", "--threads", "1"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model and data in the current folder."""
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path)
    np.savez("data.npz", **examples(500))
    np.savez("held.npz", **examples(100, seed=2))
    return tmp_path


def test_a_model_is_trained(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (folder / "model.onnx").read_bytes()
    words = ["fit", "model.onnx", *BASE, "--data", "data.npz", "--validation", "held.npz"]
    words += ["--epochs", "8", "--rate", "1e-2", "--accuracy", "logits=labels", "-o", "out.onnx"]
    assert main([*words, "--log", "log.jsonl", "--json", "report.json"]) == 0
    shown, said = capsys.readouterr()
    assert "held-out accuracy" in shown and "128 steps in all" in shown
    assert shown.endswith("wrote out.onnx, log.jsonl, report.json\n") and said == ""
    report = json.loads(Path("report.json").read_text())
    assert report["losses"][-1] < 0.5 * report["losses"][0]
    assert report["evaluations"][-1]["accuracy"] > 0.85
    assert len(Path("log.jsonl").read_text().splitlines()) == 128 + 8
    held = examples(100, seed=2)
    logits = np.asarray(run(Path("out.onnx"), {"x": held["x"]})["logits"])
    assert (logits.argmax(1) == held["labels"]).mean() == report["evaluations"][-1]["accuracy"]
    assert (folder / "model.onnx").read_bytes() == before


def test_the_best_weights_are_written_and_both_are_compared(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = np.random.default_rng(3).integers(0, 3, 32)
    np.savez("data.npz", x=examples(32)["x"], labels=labels)
    words = ["fit", "model.onnx", *BASE, "--data", "data.npz", "--validation", "held.npz"]
    words += ["--epochs", "9", "--rate", "0.05", "--json", "report.json", "-o"]
    form = r"{}\.onnx has the {} weights. Held out: best \(step (\d)\): loss ([\d.]+); last "
    for name, options in (("last", []), ("best", ["--keep", "best"])):
        assert main([*words, f"{name}.onnx", *options]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert re.search(form.format(name, name) + r"\(step 9\): loss [\d.]+", shown)
        assert ("--keep best writes the best" in shown) is (name == "last")
        report = json.loads(Path("report.json").read_text())
        assert report["kept"] == name and report["best"]["loss"] < report["last"]["loss"]
        again = ["fit", f"{name}.onnx", *BASE, "--data", "held.npz", "--steps", "1", "-q", "--json"]
        assert main([*again, "first.json"]) == 0
        assert json.loads(Path("first.json").read_text())["losses"]
    both = [(folder / f"{name}.onnx").read_bytes() for name in ("last", "best")]
    assert both[0] != both[1]


def test_an_array_that_nothing_reads_is_a_warning_and_labels_are_shown(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = {"weight": np.ones(64, np.float32), "y": examples(64)["labels"]}
    np.savez("more.npz", **examples(64), **more)
    words = ["fit", "model.onnx", *BASE, "--epochs", "2", "--data"]
    held = ["--validation", "more.npz", "--accuracy", "logits=y"]
    assert main([*words, "more.npz", *held, "-o", "more.onnx"]) == 0
    shown, said = capsys.readouterr()
    assert re.search(r"labels +int64\[N\] +labels, 0 to 2 or -100 \(ignored\)", shown)
    assert re.search(r"x +float32\[N, 8\] +input", shown)
    assert said.splitlines() == [
        f"note: more.npz: the step does not read {unread}; it reads x, labels"
        for unread in ("'weight', 'y'", "'weight'")
    ]
    np.savez("same.npz", **examples(64))
    assert main([*words, "same.npz", "-o", "same.onnx"]) == 0
    assert capsys.readouterr().err == ""
    assert Path("same.onnx").read_bytes() == Path("more.onnx").read_bytes()


def test_a_target_is_a_label_without_classes(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez("target.npz", x=examples(8)["x"], target=np.zeros((8, 3), np.float32))
    words = ["fit", "model.onnx", "--loss", "mse", "--data", "target.npz", "--steps", "1"]
    assert main(words) == 0
    assert re.search(r"target +float32\[.*\] +labels *\n", capsys.readouterr().out)


@pytest.mark.slow
def test_labels_of_a_sequence_are_said_to_move(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(language(), tmp_path / "m.onnx")
    np.savez(tmp_path / "data.npz", **padded())
    words = ["fit", str(tmp_path / "m.onnx"), "--data", str(tmp_path / "data.npz"), "--loss"]
    for loss, text in (
        ("", ", each of the score 1 place before"),
        ("{shift=2}", "score 2 places before"),
    ):
        assert main([*words, f"sequence_cross_entropy{loss}"]) == 0
        assert text in " ".join(capsys.readouterr().out.split())
    assert main([*words, "sequence_cross_entropy{shift=0}"]) == 0
    assert "before" not in capsys.readouterr().out


def test_trained_and_frozen_weights_are_shown_before_training(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["fit", "model.onnx", *BASE, "--data", "data.npz", "--steps", "1", "--wrt", "w2"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    table = r"weights +arrays +elements *\n─+\n *trained +1 +48 *\n *frozen +3 +147 *\n"
    assert re.search(table, shown) and "w1 " not in shown
    assert shown.index("frozen") < shown.index("epoch")
    assert main([*words, "-v"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"w2 +float32\[16, 3\] +trained *\n", shown)
    for name, shape in (("w1", "8, 16"), ("b1", "16"), ("b2", "3")):
        assert re.search(rf"{name} +float32\[{shape}\] +frozen *\n", shown)
    whole = ["fit", "model.onnx", *BASE, "--data", "data.npz", "--steps", "1"]
    assert main(whole) == 0
    assert re.search(r"trained +4 +195 *\n *frozen +0 +0 *\n", capsys.readouterr().out)


def test_what_nobody_keeps_is_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "model.onnx", *BASE, "--data", "data.npz", "--steps", "1"]) == 0
    assert "note: nothing was saved: -o writes the trained model" in capsys.readouterr().out


@pytest.mark.slow
def test_a_limit_of_time_ends_training_and_says_where(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train-step", "model.onnx", "-o", "made", "--loss", "cross_entropy", "-q"]) == 0
    words = ["fit", "made", "--data", "data.npz", "--epochs", "1000000", "--timeout", "1.5", "-q"]
    assert main(words) == 1
    said = capsys.readouterr().err
    assert re.fullmatch(
        r"onnxgrad: made: training ended after step \d+: the work took longer than [\d.]+ s; raise "
        r"the limit with --timeout; nothing was saved: --folder saves checkpoints\n",
        said,
    )
    assert main([*words, "--folder", "run"]) == 1
    assert "; the same command continues from the checkpoint in run\n" in capsys.readouterr().err
    assert any(Path("run").iterdir())


def test_a_step_is_a_folder_that_trains_like_the_model(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train-step", "model.onnx", "-o", "step", "--loss", "cross_entropy"]) == 0
    assert "gradient agrees with finite differences" in capsys.readouterr().out
    names = ["eval.onnx", "manifest.json", "predict.onnx", "state.safetensors", "train.onnx"]
    assert sorted(p.name for p in Path("step").iterdir()) == names
    run_of = ["--data", "data.npz", "--steps", "20", "--threads", "1"]
    for given in (["step", "--original", "model.onnx"], ["model.onnx", "--loss", "cross_entropy"]):
        assert main(["fit", *given, *run_of, "-o", f"{given[0]}.out"]) == 0
    one, two = (onnx.load(f"{name}.out").graph.initializer for name in ("step", "model.onnx"))
    assert list(one) == list(two)


def test_a_value_of_the_model_is_the_target(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loss = "mse{output=logits,target=p}"  # what the bias is added to
    assert main(["train-step", "model.onnx", "-o", "step", "--loss", loss]) == 0
    assert "gradient agrees with finite differences" in capsys.readouterr().out
    manifest = json.loads(Path("step/manifest.json").read_text())
    assert [fed["name"] for fed in manifest["inputs"]["batch"]] == ["x"]


def test_the_frozen_part_runs_once(folder: Path) -> None:
    words = ["fit", "model.onnx", *BASE, "--epochs", "2", "--validation"]
    frozen = ["--wrt", "w2", "--wrt", "b2"]
    assert main([*words, "held.npz", *frozen, "--data", "data.npz", "-o", "whole.onnx"]) == 0
    assert (
        main([*words, "held.npz", "--inputs-at", "h2", "--data", "data.npz", "-o", "a.onnx"]) == 0
    )
    for name in ("data.npz", "held.npz"):
        np.savez(f"kept.{name}", **onnxgrad.train.features("model.onnx", "h2", name))
    kept = ["kept.held.npz", "--inputs-at", "h2", "--data", "kept.data.npz"]
    assert main([*words, *kept, "--accuracy", "logits=labels", "-o", "b.onnx"]) == 0
    assert Path("a.onnx").read_bytes() == Path("b.onnx").read_bytes()
    for one, two in zip(*(onnx.load(f"{n}.onnx").graph.initializer for n in ("a", "whole"))):
        np.testing.assert_allclose(
            *map(onnx.numpy_helper.to_array, (one, two)), rtol=1e-5, atol=1e-7
        )


@pytest.mark.slow
def test_the_step_of_a_real_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = str(MODELS_DIR / "training" / "gpt2.onnx")
    words = ["train-step", source, "-o", str(tmp_path / "step"), "--optimizer", "sgd{momentum=0.9}"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "sgd on 52 weights" in shown and "gradient agrees with finite differences" in shown
    manifest = json.loads((tmp_path / "step" / "manifest.json").read_text())
    assert manifest["optimizer"]["momentum"] == 0.9


def test_a_run_goes_on_where_it_stood(folder: Path) -> None:
    words = ["fit", "model.onnx", *BASE, "--data", "data.npz"]
    assert main([*words, "--epochs", "3", "--folder", "whole"]) == 0
    assert main([*words, "--steps", "19", "--folder", "broken"]) == 0
    assert main([*words, "--epochs", "3", "--folder", "broken"]) == 0
    files = [Path(name, "checkpoint.safetensors").read_bytes() for name in ("whole", "broken")]
    assert files[0] == files[1]


def test_a_schedule_is_the_rate(folder: Path) -> None:
    words = ["fit", "model.onnx", *BASE, "--data", "data.npz", "--steps", "4", "--log", "log.jsonl"]
    assert main([*words, "--rate", "linear{lr=0.1,start_factor=1,end_factor=0,total_iters=4}"]) == 0
    rates = [json.loads(line)["rate"] for line in Path("log.jsonl").read_text().splitlines()]
    np.testing.assert_allclose(rates, [0.1, 0.075, 0.05, 0.025], rtol=1e-6)


def test_one_file_holds_model_and_step(folder: Path) -> None:
    words = ["train-step", "model.onnx", "-o", "both.onnx", "--loss", "cross_entropy"]
    assert main([*words, "--training-info"]) == 0
    model = onnx.load("both.onnx")
    onnx.checker.check_model(model)
    assert len(model.training_info) == 1
    assert main(["train-step", "both.onnx", "--from-training-info", "-o", "step"]) == 0
    run_of = ["--data", "data.npz", "--steps", "5", "--threads", "1", "--json"]
    assert main(["fit", "step", *run_of, "a.json"]) == 0
    assert main(["fit", "model.onnx", "--loss", "cross_entropy", *run_of, "b.json"]) == 0
    losses = [json.loads(Path(name).read_text())["losses"] for name in ("a.json", "b.json")]
    np.testing.assert_allclose(*losses, rtol=1e-5)


def test_the_update_has_options(folder: Path) -> None:
    words = ["train-step", "model.onnx", "-o", "step", "--loss", "cross_entropy", "--no-verify"]
    words += ["--group", "b*=sgd{lr=0.1}", "--clip-norm", "1", "--clip-value", "0.5"]
    words += ["--accumulate", "2", "--average", "0.99"]
    assert main([*words, "--schedule", "cosine{lr=1e-3,T_max=10}"]) == 0
    said = json.loads(Path("step", "manifest.json").read_text())
    assert "step" in said["inputs"] and "learning_rate" not in said["inputs"]
    assert main(["fit", "step", "--data", "data.npz", "--steps", "4", "--threads", "1"]) == 0


def arrays(**changes: Any) -> dict[str, Any]:
    return {k: v for k, v in {**examples(64), **changes}.items() if v is not None}


@pytest.mark.parametrize(
    ("options", "data", "words"),
    [
        ([], {}, "neither a loss"),
        (["--loss", "cross_entropyy"], {}, "did you mean 'cross_entropy'?"),
        (
            ["--loss", "mse"],
            {},
            "lacks 'target', the labels of the loss, and has 'labels', which nothing reads",
        ),
        (BASE, {"labels": np.full(64, 7)}, "the label 7 at"),
        (
            BASE,
            {"labels": np.zeros(64, np.float32)},
            "is float32, but the step requires int64: labels are indices of classes, argmax",
        ),
        (BASE, {"labels": None}, "lacks 'labels'"),
        (BASE, {"labels": np.zeros(10, np.int64)}, "x: 64, labels: 10"),
        (
            BASE,
            {"x": np.zeros((64, 5), np.float32)},
            "has shape [32, 5], but the step requires [N, 8]",
        ),
        (BASE, {"x": np.zeros((0, 8)), "labels": np.zeros(0)}, "the data has no examples"),
        ([*BASE, "--validation", "empty.npz"], {}, "the held-out data has no examples"),
        (["--loss", "cross_entropy{weight=[0,0,0]}"], {}, "the weight of each class is 0"),
        ([*BASE, "--rate", "nan"], {}, "must be finite"),
        ([*BASE, "--rate", "cosinus{lr=1}"], {}, "unknown schedule 'cosinus'"),
        ([*BASE, "--optimizer", "adamm"], {}, "unknown optimiser 'adamm'"),
        ([*BASE, "--group", "b*"], {}, "write GLOB=NAME"),
        ([*BASE, "--loss-scale", "much"], {}, "--loss-scale must be one of dynamic or a number"),
        ([*BASE, "--schedule", "cosine"], {}, "needs the option lr"),
        ([*BASE, "--wrt", "nothing"], {}, "not a value of the model"),
        ([*BASE, "--wrt", "x"], {}, "not a weight"),
        ([*BASE, "-o", "model.onnx"], {}, "output and input are the same file"),
        ([*BASE, "--accuracy", "logits"], {}, "OUTPUT=LABELS"),
        ([*BASE, "--accuracy", "scores=labels", "--validation", "data.npz"], {}, "reads 'scores'"),
    ],
)
def test_what_cannot_be_is_one_line(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    data: dict[str, Any],
    words: str,
) -> None:
    np.savez("data.npz", **arrays(**data))
    np.savez("empty.npz", **examples(0))
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    loss = [] if "--loss" in options else ["--loss", "nothing_of_the_kind"]
    assert main(["fit", "model.onnx", "--data", "data.npz", *loss, *options]) == 2
    said = capsys.readouterr()
    assert words in said.err and said.err.count("\n") == 1
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before


def test_labels_that_teach_nothing_are_noted(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = examples(64)
    words = ["fit", "model.onnx", *BASE, "--batch-size", "16", "--no-shuffle", "--data", "data.npz"]
    for labels, shown, note in (
        (np.full(64, -100), "no label counts in 4 batches, whose loss and gradient are 0", ""),
        (np.where(np.arange(64) < 16, -100, data["labels"]), "no label counts in 1 batch,", ""),
        (np.where(np.arange(64) < 10, -100, 2), "4 steps", "all labels 'labels' of the data are 2, one of 3 classes"),
        (data["labels"], "4 steps", ""),
    ):  # fmt: skip
        np.savez("data.npz", x=data["x"], labels=labels)
        assert main(words) == 0
        found = capsys.readouterr()
        assert shown in " ".join(found.out.split())
        assert note in found.err and ("all labels" in found.err) is bool(note)
        assert ("no label counts" in found.out) is shown.startswith("no label")
    np.savez("held.npz", x=data["x"], labels=np.full(64, -100))
    assert main([*words, "--validation", "held.npz"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "Held out: last (step 4): loss nan" in shown


def test_data_that_is_not_finite_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = examples(64)
    data["x"][50, 3] = np.nan
    np.savez("data.npz", **data)
    assert main(["fit", "model.onnx", *BASE, "--data", "data.npz", "-o", "out.onnx"]) == 1
    said = capsys.readouterr().err
    assert "the loss is nan; 'x' of the data is nan at [50, 3]. The parameters are those" in said
    assert not Path("out.onnx").exists()


def test_a_loss_that_is_no_number_ends_with_1(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["fit", "model.onnx", *BASE, "--data", "data.npz", "--rate", "1e30", "-o", "out.onnx"]
    assert main(words) == 1
    assert "the first value that is not finite is" in capsys.readouterr().err
    assert not Path("out.onnx").exists()


def test_what_stands_in_the_folder_must_be_of_this_step(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["fit", "model.onnx", *BASE, "--data", "data.npz", "--folder", "run"]
    assert main(words) == 0
    kept = Path("run", "checkpoint.safetensors").read_bytes()
    assert main([*words, "--optimizer", "sgd"]) == 2
    assert "run: optimiser sgd (was adamw): choose another --folder" in capsys.readouterr().err
    assert Path("run", "checkpoint.safetensors").read_bytes() == kept
    assert main([*words, "--optimizer", "sgd", "--force", "--epochs", "2"]) == 0
    told = "note: run/checkpoint.safetensors continues with optimiser sgd (was adamw), "
    assert capsys.readouterr().err.startswith(told)


def test_only_files_that_exist_are_listed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["fit", "model.onnx", *BASE, "--data", "data.npz", "--folder", "run", "--log"]
    assert main([*words, "one.jsonl"]) == 0
    assert capsys.readouterr().out.endswith("wrote one.jsonl, run\n")
    assert main([*words, "two.jsonl"]) == 0  # nothing is left to do
    assert capsys.readouterr().out.endswith("wrote run\n") and not Path("two.jsonl").exists()


def test_a_folder_suffices_for_the_result(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without --original, -o writes the model in inference that the step has."""
    assert main(["train-step", "model.onnx", "-o", "step", "--loss", "cross_entropy", "-q"]) == 0
    words = ["fit", "step", "--data", "data.npz", "--predict", "data.npz=found.npz"]
    assert main([*words, "-o", "out.onnx"]) == 0
    assert "wrote" in capsys.readouterr().out
    data, found = np.load("data.npz"), np.load("found.npz")
    made = onnx.load("out.onnx")
    assert [v.name for v in made.graph.input] == ["x"]
    np.testing.assert_allclose(
        run(made, {"x": data["x"]})["logits"], found["logits"], rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("option", ["--log", "--plot", "--json"])
@pytest.mark.parametrize("file", ["model.onnx", "data.npz", "held.npz"])
def test_nothing_is_written_over_model_or_data(
    folder: Path, capsys: pytest.CaptureFixture[str], option: str, file: str
) -> None:
    before = (folder / file).read_bytes()
    words = ["fit", "model.onnx", *BASE, "--data", "data.npz", "--validation", "held.npz"]
    assert main([*words, "--steps", "1", option, file]) == 2
    assert f"{option} {file}: output and input are the same file" in capsys.readouterr().err
    assert (folder / file).read_bytes() == before


def test_a_picture_that_nobody_can_draw_is_refused_before_the_training(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    words = ["fit", "model.onnx", *BASE, "--data", "data.npz", "--log", "log.jsonl"]
    assert main([*words, "--plot", "loss.png", "-o", "out.onnx"]) == 2
    assert "matplotlib is not installed" in capsys.readouterr().err
    assert not Path("log.jsonl").exists() and not Path("out.onnx").exists()


def test_a_test_of_rates_trains_no_model(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["fit", "model.onnx", *BASE, "--data", "data.npz", "--find-lr"]
    for more in (["-o", "out.onnx"], ["--folder", "run"], ["--rate", "0.1"]):
        assert main([*words, *more]) == 2
        assert "--find-lr trains no model: leave out" in capsys.readouterr().err
    before = {p.name for p in Path().iterdir()}
    assert main([*words, "--optimizer", "sgd", "--json", "found.json"]) == 0
    shown = capsys.readouterr().out
    found = json.loads(Path("found.json").read_text())
    rates = [rate for rate, _ in found["losses"]]
    assert rates[0] == pytest.approx(1e-6) and 1e-2 < found["steepest"] < 10
    assert f"falls most at a rate of {found['steepest']:.2g}" in shown
    assert {p.name for p in Path().iterdir()} == before | {"found.json"}


def test_a_test_of_rates_ends_where_the_loss_is_not_finite(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = examples(64)
    np.savez("large.npz", x=1e6 * data["x"], target=np.zeros((64, 3), np.float32))
    words = ["fit", "model.onnx", "--loss", "mse", "--data", "large.npz", "--find-lr"]
    assert main([*words, "--optimizer", "sgd", "--json", "-"]) == 0
    losses = json.loads(capsys.readouterr().out)["losses"]
    assert 0 < len(losses) < 100 and all(np.isfinite(loss) for _, loss in losses)


def test_losses_over_rates_are_a_picture(folder: Path) -> None:
    pytest.importorskip("matplotlib")
    words = ["fit", "model.onnx", *BASE, "--data", "data.npz", "--find-lr", "--plot", "rates.png"]
    assert main(words) == 0
    assert Path("rates.png").read_bytes().startswith(b"\x89PNG")
