"""Weights that are set, averaged and sent as differences; what does not fit is refused in a line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onnxgrad
from onnxgrad import train
from onnxgrad.cli.app import main
from onnxgrad.errors import InputError
from onnxgrad.ir.storage import safetensors_file
from onnxgrad.train import SGD, Adam, Trainer, training_step
from tests.train.common import classifier, examples, step, write_model
from tests.train.update.test_emission import half

DATA = examples(64)


@pytest.mark.slow
def test_fit_stays_near_the_model_that_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a run that goes on; an anchor in the data comes first."""
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path)
    np.savez("data.npz", **DATA)
    order = ["fit", "model.onnx", "--data", "data.npz", "--optimizer", "sgd{lr=0.1}", "-q"]
    order += ["--loss", "cross_entropy + 0.5*proximal_penalty{params=*}", "--folder", "run"]
    assert main([*order, "--epochs", "1"]) == main([*order, "--epochs", "3", "-o", "out.onnx"]) == 0
    loss = train.CrossEntropy() + 0.5 * train.ProximalPenalty("*")
    own = Trainer(training_step(classifier(), loss, SGD(lr=0.1)))
    own.fit(DATA, epochs=3, constants=own.anchors)
    for name, array in own.parameters.items():
        found = onnxgrad.load("out.onnx").main.initializers[name].const
        np.testing.assert_array_equal(found, array)


def test_a_mean_has_the_weights_and_dtypes() -> None:
    rng = np.random.default_rng(0)
    dtypes = ("float64", "float32", "float16", "bfloat16")
    sets: Any = [{d: rng.standard_normal((3, 2)).astype(d) for d in dtypes} for _ in range(3)]
    for values in sets:
        values["count"] = np.array(7)
    found = train.average(sets, [3, 0, 1])
    for dtype in dtypes:
        exact = (3 * sets[0][dtype].astype(float) + sets[2][dtype].astype(float)) / 4
        assert found[dtype].dtype == dtype
        np.testing.assert_array_equal(found[dtype], exact.astype(dtype))
    assert found["count"] == 7
    np.testing.assert_allclose(train.average(sets)["float64"], sum(s["float64"] for s in sets) / 3)


@pytest.mark.parametrize(
    ("values", "weights", "words"),
    [
        ([], None, "values is empty"),
        ([{"a": np.ones(2)}] * 2, [1.0], "2 sets of values, but 1 weights"),
        ([{"a": np.ones(2)}] * 2, [1.0, -1.0], "at least 0 and not all 0"),
        ([{"a": np.ones(2)}] * 2, [0.0, 0.0], "at least 0 and not all 0"),
        ([{"a": np.ones(2)}, {"b": np.ones(2)}], None, r"values\[1\] has 'b', which is unknown"),
        ([{"a": np.ones(2)}, {}], None, r"values\[1\] lacks 'a': float64\[2\]"),
        ([{"a": np.ones(2)}, {"a": np.ones(3)}], None, r"'a' is float64\[3\], not float64\[2\]"),
        ([{"a": np.array(1)}, {"a": np.array(2)}], None, "'a' is int64 and differs: remove it"),
    ],
)
def test_what_has_no_mean(values: Any, weights: Any, words: str) -> None:
    with pytest.raises(InputError, match=f"^average: .*{words}"):
        train.average(values, weights)


@pytest.mark.parametrize("engine", ["blocks", "graph"])
def test_weights_that_are_set_are_those_of_a_trainer_that_has_them(engine: Any) -> None:
    """The states stay, so that both go on alike."""
    one, other = (Trainer(step(SGD(lr=0.1)), engine=engine, threads=1) for _ in range(2))
    one.fit(DATA)
    other.parameters = one.parameters
    assert other.vector.tolist() == one.vector.tolist() and len(one.vector) == 195
    one.fit(DATA, epochs=2, seed=3)
    other.fit(DATA, epochs=1, seed=3)
    one.vector = before = other.vector  # the epochs had other orders
    np.testing.assert_array_equal(one.parameters["w1"].ravel(), before[:128])
    one.weights = {name: 0 * a for name, a in one.weights.items()}
    assert not one.vector.any()


def test_narrow_weights_take_their_masters_along() -> None:
    made = half(optimizer=Adam(lr=1e-3), loss_scale=8.0)
    trainer = Trainer(made, threads=1)
    before = trainer.parameters
    assert trainer.vector.dtype == np.float32
    trainer.vector = trainer.vector * 2
    data = examples(16)
    trainer.step(data | {"x": data["x"].astype(np.float16)})
    for name, a in trainer.parameters.items():
        assert a.dtype == before[name].dtype == np.float16
        np.testing.assert_allclose(a, 2 * before[name], atol=4e-3)


@pytest.mark.parametrize("engine", ["blocks", "graph"])
def test_states_are_averaged_from_files_too(engine: Any, tmp_path: Path) -> None:
    one, two, mean = (Trainer(step(Adam()), engine=engine, threads=1) for _ in range(3))
    paths = [tmp_path / "one", tmp_path / "two"]
    for i, (trainer, path) in enumerate(zip((one, two), paths, strict=True)):
        trainer.fit(examples(64, seed=i))
        trainer.save(path)
    mean.state = train.average([str(paths[0]), two.state], [1, 3])
    expected = train.average(paths, [1, 3])
    assert sorted(mean.state) == sorted(expected) and "w1.exp_avg" in expected
    for name, a in mean.state.items():
        np.testing.assert_array_equal(a, expected[name])
    with pytest.raises(InputError, match=r"state lacks 'w1.exp_avg'"):
        mean.state = mean.parameters
    with pytest.raises(InputError, match="none: cannot be read"):
        train.average([tmp_path / "none"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda own: {}, r"parameters lacks 'w1': float32\[8, 16\]"),
        (
            lambda own: own | {"w3": own["w1"]},
            "parameters has 'w3', which is unknown",
        ),
        (lambda own: own | {"w1": own["w1"].T}, r"'w1' is float32\[16, 8\], not float32\[8, 16\]"),
        (lambda own: own | {"b1": own["b1"].astype("f8")}, "'b1' is float64"),
    ],
)
def test_weights_that_do_not_fit(change: Any, words: str) -> None:
    trainer = Trainer(step(), threads=1)
    before = trainer.vector
    with pytest.raises(InputError, match=words):
        trainer.parameters = change(trainer.parameters)
    with pytest.raises(InputError, match=r"vector must be float32\[195\], not float64\[195\]"):
        trainer.vector = before.astype(np.float64)
    assert trainer.vector.tolist() == before.tolist()


def test_deltas_travel_as_files(tmp_path: Path) -> None:
    server, *clients = (Trainer(step(SGD(lr=0.1)), threads=1) for _ in range(3))
    before, paths = server.parameters, [tmp_path / "a", tmp_path / "b"]
    for i, (client, path) in enumerate(zip(clients, paths, strict=True)):
        client.fit(examples(64, seed=i))
        client.delta(before, examples=10 * (i + 1)).save(path)
    server.apply([paths[0], train.read_delta(paths[1])], rate=0.5)
    mean = train.average([c.parameters for c in clients], [10, 20])
    for name, a in server.parameters.items():
        np.testing.assert_allclose(a, (before[name] + mean[name]) / 2, atol=1e-7)
    with pytest.raises(InputError, match="before lacks 'w1'"):
        clients[0].delta({})
    clients[0].save(tmp_path / "c")
    with pytest.raises(InputError, match="c is not a delta"):
        server.apply([tmp_path / "c"])
    with pytest.raises(InputError, match=r"^deltas\[1\] belongs to another model"):
        server.apply([paths[0], train.Delta(before, 1, "other")])
    with pytest.raises(InputError, match="values is empty"):
        server.apply([])
    safetensors_file.write(
        tmp_path / "d", {}, {"delta": server.task.manifest.model, "examples": "1"}
    )
    with pytest.raises(InputError, match="deltas lacks 'w1'"):
        server.apply([tmp_path / "d"])


@pytest.mark.parametrize("engine", ["blocks", "graph"])
def test_the_proximal_penalty_pulls_to_the_anchors(engine: Any) -> None:
    loss = train.CrossEntropy() + 2.0 * train.ProximalPenalty("w*")
    made = training_step(classifier(), loss, SGD(lr=0.1))
    assert made.manifest.fixed_batch is None
    own, plain = (Trainer(s, engine=engine, threads=1) for s in (made, step(SGD(lr=0.1))))
    batch, anchors = examples(16), own.anchors
    assert sorted(anchors) == ["w1.anchor", "w2.anchor"]
    before, moved = own.parameters, {k: a + 1 for k, a in anchors.items()}
    own.step({**batch, **moved})
    plain.step(batch)
    for name, a in plain.parameters.items():  # the gradient of the penalty is 2 (w - anchor) = -2
        expected = a + (0.2 if name in ("w1", "w2") else 0)
        np.testing.assert_allclose(own.parameters[name], expected, atol=1e-6)
    own.parameters = before
    held_out = own.evaluate(batch, constants=moved)["loss"]
    size = sum(a.size for a in anchors.values())
    assert held_out == pytest.approx(
        own.evaluate(batch, constants=anchors)["loss"] + size, rel=1e-5
    )
    own = Trainer(made, engine=engine, threads=1)
    losses = own.fit(DATA, constants=anchors, validation=DATA).losses
    with pytest.raises(InputError, match=r"lacks 'w1.anchor'.*, with constants=trainer.anchors$"):
        own.fit(DATA, epochs=2)
    with pytest.raises(InputError, match="constants: the data has 'x' already"):
        own.fit(DATA, epochs=2, constants={**anchors, "x": DATA["x"]})
    assert len(losses) == 2


def test_a_penalty_of_frozen_weights_is_refused() -> None:
    with pytest.raises(InputError, match="'w2' is not trained: leave it out of the proximal"):
        training_step(classifier(), "cross_entropy + proximal_penalty{params=w*}", SGD(), "w1")
