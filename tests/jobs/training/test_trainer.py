"""From the first batch to the trained model; a run that was broken off ends with the same bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnxgrad.errors import InputError, RunWarning
from onnxgrad.train import SGD, Trainer, features, training_step
from onnxgrad.train.divergence import Diverged
from onnxgrad.train.metrics import accuracy
from onnxgrad.train.run_folder import CHECKPOINT
from onnxgrad.train.schedules import Cosine, ReduceOnPlateau
from onnxgrad.train.step_folder import save_step
from onnxgrad.verify.running.session import run
from tests.train.common import classifier, examples, step, write_model


def trainer(rate: float = 1e-2) -> Trainer:
    return Trainer(step(), rate, threads=1)


def test_a_model_learns_and_comes_back(tmp_path: Path) -> None:
    model = write_model(tmp_path)
    own = trainer()
    held_out = examples(100, seed=2)
    history = own.fit(
        examples(500), epochs=12, validation=held_out, metrics={"accuracy": accuracy()}
    )
    assert len(history.losses) == 12 * 16
    assert history.losses[-1] < 0.2 * history.losses[0]
    assert history.evaluations[-1]["accuracy"] > 0.9
    own.export(model, tmp_path / "trained.onnx")
    logits = np.asarray(run(tmp_path / "trained.onnx", {"x": held_out["x"]})["logits"])
    right = float((logits.argmax(1) == held_out["labels"]).mean())
    assert right == pytest.approx(history.evaluations[-1]["accuracy"])


@pytest.mark.parametrize("broken_off", [1, 16, 23])
def test_a_run_that_was_broken_off_ends_with_the_same_bytes(
    tmp_path: Path, broken_off: int
) -> None:
    data, held_out = examples(500), examples(50, seed=2)
    trainer().fit(
        data, epochs=3, validation=held_out, patience=9, folder=tmp_path / "whole", every=7
    )
    trainer().fit(
        data, steps=broken_off, validation=held_out, patience=9, folder=tmp_path / "broken"
    )
    with pytest.warns(
        RunWarning, match=r"continues with planned length 3 epochs \(was \d+ steps?\)$"
    ):
        trainer().fit(data, epochs=3, validation=held_out, patience=9, folder=tmp_path / "broken")
    whole, broken = ((tmp_path / name / CHECKPOINT).read_bytes() for name in ("whole", "broken"))
    assert whole == broken


def test_the_rate_falls_on_a_plateau_also_after_a_break(tmp_path: Path) -> None:
    data, held_out = examples(96), examples(50, seed=2)
    rate = ReduceOnPlateau(0.5, factor=0.25, patience=0, threshold=0.2)

    def fitted(name: str, epochs: int) -> list[float]:
        own = Trainer(step(SGD()), rate, threads=1)
        history = own.fit(data, epochs=epochs, validation=held_out, folder=tmp_path / name)
        return [e.rate for e in history.events if e.evaluation is None][::3]

    whole = fitted("whole", 8)
    assert whole[0] == 0.5 and 0.5 * 0.25**7 <= whole[-1] < 0.5
    first = fitted("broken", 5)
    with pytest.warns(RunWarning, match="planned length 8 epochs"):
        assert first + fitted("broken", 8) == whole
    files = [(tmp_path / name / CHECKPOINT).read_bytes() for name in ("whole", "broken")]
    assert files[0] == files[1]
    with pytest.warns(RunWarning, match=r"rate reduceonplateau\{lr=0.125"):
        own = Trainer(step(SGD()), ReduceOnPlateau(0.125), threads=1)
        own.fit(data, epochs=9, validation=held_out, folder=tmp_path / "broken")
    assert own.rate_at(1) == 0.125
    with pytest.raises(InputError, match=r"^ReduceOnPlateau needs held-out data: pass val"):
        Trainer(step(SGD()), rate).fit(data)
    with pytest.raises(InputError, match="metric 'f1' is not evaluated: choose from loss"):
        Trainer(step(SGD()), ReduceOnPlateau(1.0, metric="f1")).fit(data, validation=data)


@pytest.mark.parametrize("option", ["patience", "metrics", "every", "keep", 'keep="best"'])
def test_what_would_do_nothing_is_refused(option: str) -> None:
    value = {"accuracy": accuracy("logits", "labels")} if option == "metrics" else 2
    name, value = ("keep", "best") if "best" in option else (option, value)
    with pytest.raises(InputError, match=rf"^{option} .*: pass (validation|folder)$"):
        trainer().fit(examples(64), **{name: value})


def test_epochs_count_from_the_first_and_a_call_that_does_nothing_says_so(tmp_path: Path) -> None:
    own, data = trainer(), examples(64)
    assert repr(own).endswith("; step 0)")
    assert repr(own.fit(data, epochs=2)).startswith("History(4 steps, loss ")
    assert repr(own).startswith("Trainer(TrainingStep(") and "; step 4, loss " in repr(own)
    with pytest.warns(
        UserWarning, match=r"epochs=2 counts from .*, and 2 epochs are done; epochs=4 trains"
    ) as caught:
        assert own.fit(data, epochs=2).losses == []
    assert [warning.filename for warning in caught] == [__file__]
    with pytest.warns(
        UserWarning, match="steps=3 counts from .*, and 4 steps are done; steps=7 trains"
    ):
        assert repr(own.fit(data, steps=3)) == "History(0 steps)"
    assert len(own.fit(data, epochs=3).losses) == 2
    with pytest.raises(InputError, match=r"fit: epochs must be at least 1, not 0"):
        own.fit(data, epochs=0)
    # a run with a folder is started again until it is done
    trainer().fit(data, folder=tmp_path)
    assert trainer().fit(data, folder=tmp_path).losses == []


@pytest.mark.parametrize("by_hand", [1, 3, 5])
def test_steps_by_hand_take_nothing_away_from_an_epoch(by_hand: int) -> None:
    data = examples(96)
    own = trainer()
    for _ in range(by_hand):
        own.step(examples(32, seed=2))
    assert len(own.fit(data, epochs=1).losses) == 3
    own.fit(data, steps=by_hand + 5)
    own.step(examples(32, seed=2))
    assert len(own.fit(data, epochs=2).losses) == 1  # the epoch goes on where `fit` left it


def test_a_model_of_one_batch_size_is_given_batches_of_it() -> None:
    model = classifier()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 4
    own = Trainer(training_step(model, "cross_entropy"), threads=1)
    assert own.task.manifest.fixed_batch == 4 and step().manifest.fixed_batch is None
    assert len(own.fit(examples(10)).losses) == 2  # what fills no batch is left out
    eight = {name: a[:8] for name, a in examples(10).items()}
    assert own.evaluate(examples(10)) == own.evaluate(eight)
    with pytest.raises(InputError, match=r"has shape \[5, 8\], but the step requires \[4, 8\]"):
        own.fit(examples(10), epochs=2, batch_size=5)
    at = features(model, "h2", examples(8))["h2"]
    assert at.shape == (8, 16)


def test_a_step_that_was_saved_is_the_same_step(tmp_path: Path) -> None:
    save_step(step(), tmp_path)
    losses = [
        Trainer(task, 1e-2, threads=1).fit(examples(64), epochs=2).losses
        for task in (tmp_path, step())
    ]
    assert losses[0] == losses[1]


def test_a_loss_that_is_no_number_names_the_first_value_that_is_none() -> None:
    own = Trainer(step(SGD()), 1e30, threads=1)
    data = examples(64)
    own.step(data)
    before = own.parameters
    with pytest.raises(
        Diverged, match=r"step 2: the loss is (nan|inf); the first value that is not finite is 'p'"
    ):
        own.step(data)
    assert all(np.array_equal(value, before[name]) for name, value in own.parameters.items())


def test_the_last_good_state_stays_on_the_disk(tmp_path: Path) -> None:
    own = Trainer(step(SGD()), lambda number: 1e-2 if number < 5 else 1e38, threads=1)
    with pytest.raises(Diverged):
        own.fit(examples(500), epochs=2, folder=tmp_path, every=1)
    again = trainer()
    with pytest.raises(InputError, match=r"belongs to another run: optimiser adamw \(was sgd\)"):
        again.restore(tmp_path / CHECKPOINT)
    last = Trainer(step(SGD()), 1e-2, threads=1)
    last.restore(tmp_path / CHECKPOINT)
    assert last.progress.steps == 5
    assert all(np.isfinite(value).all() for value in last.parameters.values())


def test_training_ends_when_it_gets_no_better(tmp_path: Path) -> None:
    own = Trainer(step(SGD()), 0.0, threads=1)
    history = own.fit(examples(64), epochs=50, validation=examples(32, seed=2), patience=3)
    assert len(history.evaluations) == 4


def test_somebody_else_may_end_it_and_a_log_is_kept(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    trainer().fit(examples(500), epochs=9, callbacks=[lambda event: event.step == 20], log=log)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 21))
    assert {"step", "epoch", "loss", "rate"} == set(lines[0])


@pytest.mark.slow
def test_a_table_has_no_line_twice_after_a_break(tmp_path: Path) -> None:
    log, held_out = tmp_path / "log.csv", examples(20)
    options: Any = {
        "validation": held_out,
        "metrics": ["f1"],
        "folder": tmp_path / "run",
        "log": log,
    }
    own = trainer()
    with pytest.raises(ZeroDivisionError):
        own.fit(
            examples(96), epochs=2, every=2, callbacks=[lambda e: 1 // (e.step != 5) > 1], **options
        )
    assert "\n5," in log.read_text()
    trainer().fit(examples(96), epochs=2, every=2, **options)
    first, *rows = [line.split(",") for line in log.read_text().splitlines()]
    assert [row[0] for row in rows] == ["1", "2", "3", "3", "4", "5", "6", "6"]
    assert first[-2:] == ["held_out_loss", "held_out_f1"] and rows[3][2] == "" != rows[3][-1]
    with pytest.raises(InputError, match="its columns are step"):
        trainer().fit(examples(96), validation=held_out, log=log)


def test_a_rate_may_depend_on_the_step() -> None:
    rates: list[float] = []
    own = Trainer(step(SGD()), lambda number: 0.1 / number, threads=1)
    own.fit(examples(64), epochs=2, callbacks=[lambda event: rates.append(event.rate)])
    assert rates == [0.1, 0.05, 0.1 / 3, 0.025]


@pytest.mark.parametrize("rate", [float("nan"), float("inf")])
def test_a_rate_that_is_no_number(rate: float) -> None:
    with pytest.raises(InputError, match="learning rate must be finite"):
        Trainer(step(), rate)


def split(data: dict[str, Any], size: int) -> list[dict[str, Any]]:
    count = len(next(iter(data.values())))
    return [{k: a[i : i + size] for k, a in data.items()} for i in range(0, count, size)]


@pytest.mark.parametrize("engine", ["graph", "blocks"])
def test_micro_batches_give_the_curve_of_the_batch(engine: Any) -> None:
    data = examples(96)
    one = Trainer(step(clip_norm=0.5), 0.01, threads=1, engine=engine)
    several = Trainer(step(clip_norm=0.5, accumulate=4), 0.01, threads=1, engine=engine)
    expected = one.fit(split(data, 32), epochs=2)
    found = several.fit(split(data, 8), epochs=2)
    assert [e.step for e in found.events] == [1, 2, 3, 4, 5, 6]
    np.testing.assert_allclose(found.losses, expected.losses, rtol=1e-5)
    for name, value in one.parameters.items():
        np.testing.assert_allclose(several.parameters[name], value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("engine", ["graph", "blocks"])
def test_a_run_broken_off_between_micro_batches_ends_with_the_same_bytes(
    tmp_path: Path, engine: Any
) -> None:
    def own() -> Trainer:
        return Trainer(step(accumulate=4, average=0.9), 0.01, threads=1, engine=engine)

    whole, first, rest = own(), own(), own()
    batches = split(examples(88), 8)  # 11 micro-batches: two and three quarters of a step
    whole.fit(batches, epochs=3)
    first.fit(batches, epochs=1)
    assert (first.progress.steps, first.progress.micro) == (2, 3)
    first.save(tmp_path / "a")
    rest.restore(tmp_path / "a")
    rest.fit(batches, epochs=3)
    for name, trainer in (("whole", whole), ("rest", rest)):
        trainer.save(tmp_path / name)
    assert (tmp_path / "whole").read_bytes() == (tmp_path / "rest").read_bytes()


@pytest.mark.parametrize("engine", ["graph", "blocks"])
def test_a_loss_that_is_no_number_ends_sums_too(engine: Any) -> None:
    own = Trainer(step(accumulate=3), 0.01, threads=1, engine=engine)
    data = examples(8)
    before = own.parameters
    own.step(data)
    with pytest.raises(Diverged, match="step 1: the loss is nan"):
        own.step({**data, "x": data["x"] * np.float32(np.nan)})
    assert own.progress.micro == 0
    assert not any(v.any() for k, v in own._engine.values.items() if k.endswith(".accumulated"))
    assert all(np.array_equal(value, before[name]) for name, value in own.parameters.items())


@pytest.mark.parametrize("engine", ["graph", "blocks"])
def test_a_norm_that_is_no_number_ends_training(engine: Any) -> None:
    own = Trainer(step(SGD(), clip_norm=1.0), 0.01, threads=1, engine=engine)
    data = examples(8)
    before = own.parameters
    with pytest.raises(Diverged, match=r"step 1: the loss is .*, but the norm of its gradients is"):
        own.step({**data, "x": data["x"] * np.float32(1e30)})
    assert all(np.array_equal(value, before[name]) for name, value in own.parameters.items())


@pytest.mark.parametrize("engine", ["graph", "blocks"])
@pytest.mark.parametrize("options", [{"clip_norm": 1e-3}, {"metrics": ["gradient_norm"]}])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_norm_of_the_gradients_is_told(
    engine: Any, options: dict[str, Any], accumulate: int, tmp_path: Path
) -> None:
    task = step(SGD(), **options, accumulate=accumulate)
    own = Trainer(task, 0.5, threads=1, engine=engine)
    before, log = own.parameters, tmp_path / "log"
    batches = split(examples(8), 8 // accumulate)
    (event,) = own.fit(batches, steps=1, log=log).events
    moved = sum(((own.parameters[k] - v) ** 2).sum() for k, v in before.items()) ** 0.5
    assert event.gradient_norm is not None and event.gradient_norm > 0.1
    size = min(event.gradient_norm, options.get("clip_norm", np.inf))
    assert moved == pytest.approx(0.5 * size, rel=1e-3)
    assert json.loads(log.read_text())["gradient_norm"] == event.gradient_norm


@pytest.mark.parametrize("engine", ["graph", "blocks"])
def test_a_schedule_inside_is_the_one_beside(engine: Any) -> None:
    schedule = Cosine(0.0625, T_max=6)
    inside = Trainer(step(SGD(), schedule=schedule), threads=1, engine=engine)
    beside = Trainer(step(SGD()), schedule, threads=1, engine=engine)
    found, expected = (t.fit(examples(96), epochs=2) for t in (inside, beside))
    np.testing.assert_allclose(found.losses, expected.losses, rtol=1e-6)
    assert [e.rate for e in found.events] == [schedule(n) for n in range(1, 7)]
    with pytest.raises(InputError, match="has its schedule inside"):
        Trainer(step(schedule=schedule), 0.1)


def test_an_overflow_leaves_the_step_out_and_training_goes_on() -> None:
    own = Trainer(step(SGD(), clip_norm=1.0, loss_scale=2.0**100), 0.01, threads=1)
    data = examples(8)
    before = own.parameters
    own.step({**data, "x": data["x"] * np.float32(1e15)})
    assert all(np.array_equal(value, before[name]) for name, value in own.parameters.items())
    own.step(data)
    assert not np.array_equal(own.parameters["w1"], before["w1"])
    assert own._engine.values["loss.skipped"] == 1
    assert own.progress.steps == 2


def test_without_states_training_goes_on_after_a_bad_batch() -> None:
    own = Trainer(step(SGD()), 1e-2, threads=1, engine="graph")
    data = examples(64)
    with pytest.raises(Diverged):
        own.step({**data, "x": data["x"] * np.inf})
    assert np.isfinite(own.step(data))
