"""Where a run stands is what it says, and a run that trains is the one that was begun."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnxgrad import op
from onnxgrad.errors import InputError, RunWarning
from onnxgrad.train import SGD, AdamW, Custom, Sum, Trainer, losses, training_step
from onnxgrad.train.checkpoint import Progress
from onnxgrad.train.run_folder import CHECKPOINT
from onnxgrad.train.schedules import Cosine
from onnxgrad.train.step_folder import save_step
from tests.train.common import classifier, examples, step


def test_what_was_said_comes_back() -> None:
    stands = Progress(steps=7, epoch=2, batches=1, best=0.5, stale=1, seed=3, micro=2, micro_loss=1)
    assert Progress.of(stands.words(), "run") == stands
    for said in ({}, {"progress": "{"}, {"progress": '{"step": 3}'}, {"progress": "3"}):
        with pytest.raises(InputError, match="run has no progress of a training run"):
            Progress.of(said, "run")


def test_a_run_without_a_step() -> None:
    Progress().check_trained(3)
    with pytest.raises(InputError, match="3 micro-batches make a step, but there were 2"):
        Progress(micro=2).check_trained(3)


def test_nothing_left() -> None:
    assert Progress(steps=4, epoch=2).nothing_left(3, None) == ""
    assert "epochs=4 trains" in Progress(steps=4, epoch=2).nothing_left(2, None)
    assert "steps=7 trains" in Progress(steps=4, epoch=2).nothing_left(9, 3)


def mean(values: dict[str, Any]) -> Any:
    return op.ReduceMean(values["logits"], keepdims=0)


def mean_of_squares(values: dict[str, Any]) -> Any:
    return op.ReduceMean(values["logits"] * values["logits"], keepdims=0)


mean_of_squares.__qualname__ = "mean"
BEGUN: dict[str, Any] = {"loss": "cross_entropy", "optimizer": AdamW()}
DATA = examples(64)
MODEL = classifier()
STEPS: dict[str, Any] = {}
OTHER = {**DATA, "x": DATA["x"] + np.float32(1)}


def run(folder: Path, *, steps: int, data: Any = DATA, **given: Any) -> Trainer:
    options = {**BEGUN, **given}
    rate, more = options.pop("rate", 1e-2), {}
    for key in ("batch_size", "seed", "force", "epochs"):
        if key in options:
            more[key] = options.pop(key)
    own = Trainer(made(**options), rate, threads=1)
    own.fit(data, **({"steps": steps or None, "batch_size": 16} | more), folder=folder)
    return own


def made(model: Any = MODEL, **options: Any) -> Any:
    """The step with these options, made once."""
    key = repr((id(model), options))
    if key not in STEPS:
        STEPS[key] = training_step(model, **options)
    return STEPS[key]


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of runs after so many steps, of which four are an epoch."""
    place = tmp_path_factory.mktemp("begun")
    for steps in (2, 4):
        run(place / f"{steps}", steps=steps)
    return place


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"loss": "cross_entropy{label_smoothing=0.1}"},
            "loss cross_entropy{label_smoothing=0.1} (was cross_entropy)",
        ),
        ({"optimizer": SGD()}, "optimiser sgd (was adamw)"),
        ({"groups": [("b*", SGD())]}, "optimiser sgd, adamw (was adamw)"),
        ({"wrt": ["w*"]}, "parameters none (was b1, b2)"),
        ({"batch_size": 8}, "in the middle of epoch 1: batch size 8 (was 16)"),
        ({"seed": 1}, "in the middle of epoch 1: seed 1 (was 0)"),
        ({"seed": None}, "in the middle of epoch 1: seed none (was 0)"),
        ({"data": OTHER}, "in the middle of epoch 1: data: "),
        ({"data": [DATA, DATA]}, "in the middle of epoch 1: data "),
        (
            {"data": {**DATA, "x": DATA["x"].astype(np.float64)}},
            "data: 'x' is float64[64, 8] (was float32[64, 8]): force",
        ),
        (
            {"data": {k: a[:32] for k, a in DATA.items()}},
            "epoch 1: data: 'labels' is int64[32] (was int64[64]) and 'x' is float32[32, 8] (was",
        ),
        ({"data": {**DATA, "x": -DATA["x"]}}, "epoch 1: data: other values in 'x': force"),
    ],
)
def test_another_run_is_refused_by_what_differs(
    tmp_path: Path, begun: Path, change: dict[str, Any], words: str
) -> None:
    shutil.copytree(begun / "2", tmp_path, dirs_exist_ok=True)
    before = (tmp_path / CHECKPOINT).read_bytes()
    with pytest.raises(InputError) as refused:
        run(tmp_path, steps=3, **change)
    assert words in str(refused.value) and "force=True continues" in str(refused.value)
    assert (tmp_path / CHECKPOINT).read_bytes() == before
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RunWarning)
        assert run(tmp_path, steps=3, force=True, **change).progress.steps == 3


@pytest.mark.parametrize("steps", [2, 4])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rate": 0.5}, "rate 0.5 (was 0.01)"),
        ({"rate": Cosine(0.1, T_max=9)}, "rate cosine{lr=0.1,T_max=9,eta_min=0.0} (was 0.01)"),
        (
            {"schedule": Cosine(0.1, T_max=9), "rate": None},
            "schedule cosine{lr=0.1,T_max=9,eta_min=",
        ),
        ({"optimizer": AdamW(weight_decay=0.5)}, "weight decay 0.5 (was 0.01)"),
        ({"clip_norm": 1.0}, "clip norm 1 (was none)"),
        ({"accumulate": 2}, "accumulate 2 (was 1)"),
    ],
)
def test_what_may_change_is_obeyed_and_told(
    tmp_path: Path, begun: Path, steps: int, change: dict[str, Any], words: str
) -> None:
    shutil.copytree(begun / f"{steps}", tmp_path, dirs_exist_ok=True)
    with pytest.warns(RunWarning, match="continues with ") as told:
        own = run(tmp_path, steps=6, **change)
    assert own.progress.steps == 6
    (line,) = told
    assert words in str(line.message) and f"length 6 steps (was {steps} steps)" in str(line.message)


@pytest.mark.parametrize(
    "change", [{"batch_size": 8}, {"seed": 1}, {"data": OTHER}, {"data": [DATA, DATA]}]
)
def test_data_may_change_between_epochs(tmp_path: Path, change: dict[str, Any]) -> None:
    run(tmp_path, steps=0, epochs=1)
    key = next(iter(change))
    with pytest.warns(RunWarning, match={"batch_size": "batch size", "data": "data"}.get(key, key)):
        run(tmp_path, steps=0, epochs=2, **change)


def test_a_function_as_loss_is_known_by_its_formula(tmp_path: Path) -> None:
    data = {"x": DATA["x"]}
    run(tmp_path, steps=2, loss=mean, data=data)
    with pytest.raises(InputError, match="formula of the loss"):
        run(tmp_path, steps=3, loss=mean_of_squares, data=data)
    assert str(Sum(((1.0, Custom(mean)), (0.5, losses.L2Penalty("w*"))))) == (
        "function mean + 0.5*l2_penalty{params=w*}"
    )
    weighted = losses.CrossEntropy(weight=np.ones(3))
    assert str(weighted) == "cross_entropy{weight=[1.0, 1.0, 1.0]}"


def test_another_model_is_refused(tmp_path: Path) -> None:
    run(tmp_path, steps=2)
    model = classifier()
    model.graph.initializer[0].raw_data = bytes(8 * 16 * 4)
    with pytest.raises(InputError, match="is of another model"):
        run(tmp_path, steps=3, model=model)
    with pytest.warns(RunWarning):
        run(tmp_path, steps=3, model=model, force=True)


def test_a_step_and_its_folder_are_one_run(tmp_path: Path) -> None:
    task = training_step(MODEL, mean, AdamW())
    save_step(task, tmp_path / "step")
    data = {"x": DATA["x"]}
    trainers = [Trainer(given, threads=1) for given in (task, tmp_path / "step")]
    for trainer in trainers:
        trainer.fit(data, epochs=1, folder=tmp_path / "run")
    first, second = trainers
    assert first.progress.steps == second.progress.steps > 0
    for name, value in first.parameters.items():
        np.testing.assert_array_equal(second.parameters[name], value)


def test_a_run_that_was_not_begun_may_become_any_other(tmp_path: Path) -> None:
    bad = {**DATA, "labels": DATA["labels"] + 5}
    log = tmp_path / "log"
    with pytest.raises(InputError, match="the label"):
        Trainer(step(), threads=1).fit(bad, folder=tmp_path, log=log)
    assert (tmp_path / CHECKPOINT).exists()
    Trainer(step(SGD()), threads=1).fit(DATA, folder=tmp_path, log=log)
    assert len(log.read_text().splitlines()) == 2


def test_no_line_of_a_log_is_there_twice(tmp_path: Path) -> None:
    """The run is killed between a line and the checkpoint behind it, with a line unfinished."""
    log, other = tmp_path / "log", '{"step": 99}\n'
    for lines in (1, 4, 7):
        folder = tmp_path / f"{lines}"
        log.write_text(other)

        def killed(event: Any, at: int = lines, folder: Path = folder) -> None:
            if event.step == at:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            Trainer(step(), threads=1).fit(
                DATA, batch_size=16, epochs=3, callbacks=[killed], folder=folder, every=2, log=log
            )
        with log.open("a") as file:
            file.write('{"step": ')
        Trainer(step(), threads=1).fit(
            DATA, batch_size=16, epochs=3, folder=folder, every=2, log=log
        )
        found = [json.loads(line)["step"] for line in log.read_text().splitlines()]
        assert found == [99, *range(1, 13)], lines


def test_a_file_that_is_not_the_log_of_the_run_stays(tmp_path: Path) -> None:
    log = tmp_path / "log"
    Trainer(step(), threads=1).fit(DATA, batch_size=16, epochs=1, folder=tmp_path, log=log)
    log.write_text("x" * 1000 + "\n" + '{"step": 1}\n' * 9)
    with pytest.warns(RunWarning):
        Trainer(step(), threads=1).fit(DATA, batch_size=16, epochs=2, folder=tmp_path, log=log)
    assert log.read_text().startswith("x" * 1000 + "\n" + '{"step": 1}\n' * 9)
    assert len(log.read_text().splitlines()) == 10 + 4
