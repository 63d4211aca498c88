"""Two models are told apart by their weights, wherever these lie; one model is one wherever."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxgrad.errors import InputError
from onnxgrad.train import Trainer, save_step, training_step
from onnxgrad.train.digest import digest
from tests.train.common import classifier


def outside(folder: Path, scale: float) -> Path:
    """The classifier with its weights in an external file, multiplied."""
    folder.mkdir()
    model = classifier()
    for t in model.graph.initializer:
        t.CopyFrom(
            onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(t) * np.float32(scale), t.name)
        )
    onnx.save(model, folder / "m.onnx", save_as_external_data=True, location="w", size_threshold=0)
    return folder / "m.onnx"


def test_where_weights_lie_is_no_difference_and_what_they_are_is(tmp_path: Path) -> None:
    one, two = outside(tmp_path / "a", 1.0), outside(tmp_path / "b", 2.0)
    assert one.read_bytes() == two.read_bytes()
    assert digest(one) == digest(classifier()) != digest(two)


def test_a_checkpoint_is_not_taken_for_a_model_with_other_external_weights(tmp_path: Path) -> None:
    one, two = (outside(tmp_path / name, scale) for name, scale in (("a", 1.0), ("b", 2.0)))
    steps = [training_step(path, "cross_entropy") for path in (one, two)]
    save_step(steps[0], tmp_path / "step")
    Trainer(tmp_path / "step", threads=1).save(tmp_path / "checkpoint")
    with pytest.raises(InputError, match="of another model"):
        Trainer(steps[1], threads=1).restore(tmp_path / "checkpoint")
