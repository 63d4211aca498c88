"""Inputs are standardised inside of the model: by the training part alone, and in its file too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from onnxgrad import Trainer, fit, training_step
from onnxgrad.errors import InputError
from onnxgrad.ir.load import load
from onnxgrad.train import read_step, save_step
from onnxgrad.train.engines.session import open_session
from onnxgrad.train.held_out import split
from tests.helpers import parse
from tests.train.common import classifier, examples


def raw(count: int = 60) -> dict[str, Any]:
    """Examples whose features have other scales; one is constant."""
    found = examples(count)
    found["x"] = found["x"] * 10.0 ** np.arange(-4, 4, dtype=np.float32) + np.float32(3)
    found["x"][:, 5] = 0.1
    return found


def made(model: Any = None, **options: Any) -> Any:
    how = {"loss": "cross_entropy", "standardize": ["x"], **options}
    return training_step(classifier() if model is None else model, **how)


def test_equal_to_standardised_data(tmp_path: Path) -> None:
    """As scikit-learn's StandardScaler before training, fitted on the part that is trained."""
    data = raw()
    train, held = split(data, 0.25, 0, ["x", "labels"], ["labels"])
    rows = np.asarray(train["x"]).astype(np.float64)
    mean, deviation = rows.mean(0), rows.std(0)
    mean[5], deviation[5] = rows[0, 5], 1
    parts = [
        {
            "x": ((np.asarray(p["x"]) - mean) / deviation).astype(np.float32),
            "labels": p["labels"][:],
        }
        for p in (train, held)
    ]
    known = Trainer(made(standardize=()), threads=1)
    wanted = known.fit(parts[0], validation=parts[1], epochs=3, batch_size=16)
    trainer = Trainer(made(), threads=1)
    found = trainer.fit(data, validation=0.25, epochs=3, batch_size=16)
    np.testing.assert_allclose(found.losses, wanted.losses, rtol=1e-4)
    np.testing.assert_allclose(found.last["loss"], wanted.last["loss"], rtol=1e-4)
    np.testing.assert_allclose(trainer.weights["x.mean"], mean, rtol=1e-6)
    np.testing.assert_allclose(trainer.weights["x.deviation"], deviation, rtol=1e-6)
    assert sorted(trainer.parameters) == ["b1", "b2", "w1", "w2"]
    # the file takes raw inputs, as predictions do
    logits = trainer.predict(data)["logits"]
    given = classifier()
    written = trainer.export(given)
    assert isinstance(written, onnx.ModelProto) and given == classifier()
    np.testing.assert_allclose(
        open_session(load(written), "cpu", 1).run(None, {"x": data["x"]})[0], logits, rtol=1e-5
    )
    trainer.export(given, tmp_path / "out.onnx")
    assert onnx.load(tmp_path / "out.onnx") == written
    again = training_step(written, "cross_entropy").manifest.of_role("parameter")
    assert sorted(fed.name for fed in again) == ["b1", "b2", "w1", "w2"]
    with pytest.raises(InputError, match=r"has a value 'x\.mean': if 'x' is standardised there"):
        made(written)


@pytest.mark.filterwarnings("ignore:.*planned length:onnxgrad.errors.RunWarning")
def test_a_step_in_a_folder_and_a_resumed_run(tmp_path: Path) -> None:
    data = raw()
    save_step(made(), tmp_path / "step")
    whole, broken = (tmp_path / name for name in ("whole", "broken"))
    runs = [(whole, 3), (broken, 1), (broken, 3)]
    for folder, epochs in runs:
        trainer = Trainer(read_step(tmp_path / "step"), threads=1)
        trainer.fit(data, validation=0.25, epochs=epochs, folder=folder)
    one, two = ((f / "checkpoint.safetensors").read_bytes() for f in (whole, broken))
    assert one == two
    given: Any = {"data": data, "validation": 0.25, "epochs": 3}
    model = fit(classifier(), loss="cross_entropy", standardize="x", **given)
    folder = fit(str(tmp_path / "step"), original=classifier(), **given)
    assert folder.graph == model.graph == trainer.export(classifier()).graph


def test_channels_batches_and_integers() -> None:
    """Axis 1 by default; batches of a function, and integers that are scaled."""
    text = "g (float[N,3,4,4] x, float s) => (float[N,48] y) { f = Flatten (x)  y = Mul (f, w) }"
    model = parse(text, opset=17)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(48, np.float32), "w"))
    images = np.random.default_rng(0).integers(0, 256, (10, 3, 4, 4)).astype(np.uint8)
    batches = [
        {"x": part, "target": np.zeros((len(part), 48), np.float32), "s": np.float32(1)}
        for part in np.split(images, [1, 7])
    ]
    for name, axes in (("x", (0, 2, 3)), ("x=-1", (0, 1, 2))):
        trainer = Trainer(training_step(model, "mse{output=y}", standardize=name), threads=1)
        trainer.fit(lambda: iter(batches), scale={"x": 1 / 255})
        floats = images / 255
        for key, value in (("mean", floats.mean(axes)), ("deviation", floats.std(axes))):
            held = trainer.weights[f"x.{key}"]
            assert held.shape == ((3, 1, 1) if name == "x" else (4,))
            np.testing.assert_allclose(held.reshape(-1), value, rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"standardize": "y"}, "'y' is not an input of the model"),
        ({"standardize": "x=2"}, r"without a fixed size along axis 2: choose another axis, x=AXIS"),
        ({"standardize": "x=0"}, "without a fixed size along axis 0"),
        ({"standardize": "x", "inputs_at": "h"}, "inputs_at: the inputs are not part of the step"),
        ({"standardize": "x", "wrt": ["x.mean"]}, "x.mean"),
    ],
)
def test_what_cannot_be_standardised(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        made(**options)


def test_values_that_are_not_finite() -> None:
    data = raw()
    data["x"][3, 3] = np.nan
    with pytest.raises(InputError, match="'x' of the data has values that are not finite"):
        Trainer(made(), threads=1).fit(data)
