"""A run knows itself: each option of training either makes another run, which is refused, or is said
in one line, or changes nothing; none can be forgotten.
"""

from __future__ import annotations

import shutil
import warnings
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx.numpy_helper import from_array

from onnxgrad.errors import InputError, RunWarning
from onnxgrad.jobs.training.declarations import (
    FitOptions,
    RunOptions,
    TrainerOptions,
)
from onnxgrad.jobs.training.step_declarations import StepOptions
from onnxgrad.train import SGD, AdamW, Trainer, training_step
from onnxgrad.train.run_folder import CHECKPOINT
from onnxgrad.train.schedules import Cosine
from tests.helpers import parse
from tests.train.common import examples

TEXT = """g (float[N,8] x) => (float[N,3] logits) {
    n = BatchNormalization (x, s, t, m, v)  d = Dropout (n)  h = MatMul (d, w1)  a = Add (h, b)
    r = Relu (a)  e = MatMul (r, w2)  f = MatMul (e, w3)  u = Mul (r, r)
    k = Add (f, b)  logits = Add (k, u)
}"""
SIZES = {
    "s": (8,), "t": (8,), "m": (8,), "v": (8,), "w1": (8, 3), "b": (3,), "w2": (3, 3), "w3": (3, 3)
}  # fmt: skip


def network() -> Any:
    """With everything that an option of steps can change: w2 and w3 are equal, b has two uses."""
    model, rng = parse(TEXT, opset=17), np.random.default_rng(0)
    for name, shape in SIZES.items():
        value = 1 + 0.1 * rng.standard_normal(shape)
        value = np.eye(3) if name in ("w2", "w3") else value
        model.graph.initializer.append(from_array(value.astype(np.float32), name))
    return model


MODEL = network()
DATA: dict[str, Any] = {**examples(64), "w": np.linspace(0.5, 1.5, 64, dtype=np.float32)}
OTHER = {**DATA, "x": DATA["x"] + np.float32(1)}
PLAIN = {k: DATA[k] for k in ("x", "labels")}
IMAGES = {**PLAIN, "x": (DATA["x"] * 9 + 99).clip(0, 255).astype(np.uint8)}
ANCHORED = "cross_entropy + 0.1*proximal_penalty{params=w1}"
ONES = {"w1.anchor": np.ones((8, 3), np.float32)}
BATCHES = [(DATA["w"][:16], DATA["x"][:16], DATA["labels"][:16])] * 4
BEGUN: dict[str, Any] = {
    "loss": "cross_entropy{sample_weight=w}", "optimizer": AdamW(), "rate": 1e-2, "data": DATA,
    "batch_size": 16, "seed": 0,
}  # fmt: skip
# by option: another value, and what both runs have beside
Changes = dict[str, tuple[Any, dict[str, Any]]]
ANOTHER_RUN: Changes = {
    "loss": ("cross_entropy{sample_weight=w,label_smoothing=0.1}", {}),
    "optimizer": (SGD(), {}),
    "wrt": (["w*"], {}),
    "tie": (["w2=w3"], {}),
    "untie": (["b"], {}),
    "average": (0.9, {}),
    "loss_scale": (8.0, {}),
    "batch_norm": ("train", {}),
    "inputs_at": (["n"], {}),
    "standardize": (["x"], {}),
    "accumulate_by": ("batches", {"accumulate": 2}),  # another state: labels are counted
}
OF_AN_EPOCH: Changes = {
    "data": (OTHER, {}),
    "names": (["labels", "x", "w"], {"data": BATCHES, "names": ["w", "x", "labels"]}),
    "constants": (ONES, {"data": PLAIN, "loss": ANCHORED, "constants": {"w1.anchor": 0 * DATA["x"][:8, :3]}}),
    "scale": ({"x": 0.5}, {"data": IMAGES, "loss": "cross_entropy", "scale": {"x": 1.0}}),
    "augment": ({"x": "noise"}, {}),
    "batch_size": (8, {}),
    "seed": (1, {}),
    "shuffle": (False, {}),
}  # fmt: skip
SAID: Changes = {
    "rate": (0.5, {}),
    "schedule": (Cosine(0.1, T_max=9), {"rate": None}),
    "groups": ([("b*", {"weight_decay": 0.0})], {}),
    "clip_norm": (1.0, {}),
    "clip_value": (1.0, {}),
    "accumulate": (2, {}),
    "dropout": (0.5, {}),
    "autocast": ("bfloat16", {}),
    "ste": (True, {}),
    "stop": (["u"], {}),
    "epochs": (3, {}),
    "steps": (5, {}),
    "validation": (OTHER, {"validation": DATA}),
}
# changes what is measured, stored or shown, or how it is computed
FREE: Changes = {
    "checkpoint": (["a"], {}),
    "form": ("small", {}),
    "init": ("kaiming", {}),  # a resumed run has the weights of its checkpoint
    "metrics": (["logits"], {}),
    "threads": (2, {}),
    "engine": ("graph", {}),
    "patience": (9, {"validation": DATA}),
    "every": (1, {}),
    "keep": (2, {}),
    "force": (True, {}),
}
# not of the numbers: files, limits and where it runs
OTHERS = {
    "provider", "data_parallel", "folder", "log", "timeout", "max_memory", "accuracy", "measure",
    "predict", "plot", "callbacks", "keep_training_mode", "original",
}  # fmt: skip


def names(*declarations: Any) -> set[str]:
    return {field.name for d in declarations for field in fields(d)}


def test_no_option_is_forgotten() -> None:
    known = [*ANOTHER_RUN, *OF_AN_EPOCH, *SAID, *FREE, *OTHERS]
    assert names(FitOptions, StepOptions, TrainerOptions, RunOptions) == set(known)
    assert len(known) == len(set(known))


def run(folder: Path, until: int, **given: Any) -> Trainer:
    """Train in a folder with all of these options; four steps are an epoch."""
    options = {**BEGUN, **given}
    if not options.pop("shuffle", True):
        options["seed"] = None
    made = {k: options.pop(k) for k in names(StepOptions) & options.keys()}
    own = {k: options.pop(k) for k in ("rate", "engine", "threads") if k in options}
    if made.get("inputs_at"):
        options["data"] = {**options["data"], "n": options["data"]["x"]}
        del options["data"]["x"]
    length = {} if "epochs" in options else {"steps": until}
    trainer = Trainer(training_step(MODEL, **made), **{"threads": 1, **own})
    trainer.fit(**{**length, **options}, folder=folder)
    return trainer


def begun(folder: Path, change: Changes, option: str) -> Any:
    """Two steps of a run without the change; returns the other value and what is beside."""
    value, beside = change[option]
    run(folder, 2, **beside)
    return value, beside


@pytest.mark.slow
@pytest.mark.parametrize("option", [*ANOTHER_RUN, *OF_AN_EPOCH])
def test_another_run_is_refused(option: str, tmp_path: Path) -> None:
    changes = {**ANOTHER_RUN, **OF_AN_EPOCH}
    value, beside = begun(tmp_path, changes, option)
    before = (tmp_path / CHECKPOINT).read_bytes()
    with pytest.raises(InputError) as refused:
        run(tmp_path, 4, **{**beside, option: value})
    middle = ", in the middle of epoch 1" if option in OF_AN_EPOCH else ""
    assert f"belongs to another run{middle}: " in str(refused.value)
    assert (tmp_path / CHECKPOINT).read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize("option", SAID)
def test_another_value_is_said_and_obeyed(option: str, tmp_path: Path) -> None:
    value, beside = begun(tmp_path, SAID, option)
    with pytest.warns(RunWarning, match=" continues with ") as told:
        run(tmp_path, 4, **{**beside, option: value})
    (line,) = told
    words = {"epochs": "length 3 epochs", "steps": "length 5 steps", "validation": "held-out data"}
    assert words.get(option, option.replace("_", " ")) in str(line.message)


@pytest.mark.slow
@pytest.mark.parametrize("option", FREE)
def test_the_rest_changes_no_number(option: str, tmp_path: Path) -> None:
    value, beside = begun(tmp_path / "a", FREE, option)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", category=RunWarning, message=f".*{option}")
        warnings.filterwarnings("ignore", category=RunWarning, message=".*length")
        one, two = (
            run(tmp_path / "a", 4, **beside),
            run(tmp_path / "b", 4, **beside, **{option: value}),
        )
    for name, array in one.parameters.items():
        np.testing.assert_allclose(two.parameters[name], array, rtol=1e-5, atol=1e-6)
