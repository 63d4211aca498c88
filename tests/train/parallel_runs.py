"""What test_data_parallel runs under mpiexec: `python -m tests.train.parallel_runs NAME FOLDER`."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from onnxgrad import op
from onnxgrad.train import (
    SGD,
    AdamW,
    CrossEntropy,
    Custom,
    L2Penalty,
    SequenceCrossEntropy,
    Trainer,
    TrainingStep,
    training_step,
)
from onnxgrad.train.engines.processes import world
from onnxgrad.train.schedules import Cosine
from tests.train.common import TEXT, classifier, examples, step

LANGUAGE = """
<ir_version: 8, opset_import: ["": 18]>
language (int64[N, S] tokens) => (float[N, S, 5] logits)
{ e = Gather (table, tokens)  h = Tanh (e)  logits = MatMul (h, head) }
"""


def language() -> onnx.ModelProto:
    model = onnx.parser.parse_model(LANGUAGE)
    rng = np.random.default_rng(0)
    for name, shape in (("table", (5, 8)), ("head", (8, 5))):
        value = (0.5 * rng.standard_normal(shape)).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    return model


def padded(count: int = 7, seed: int = 0) -> dict[str, Any]:
    """Sequences of several lengths, the last ones short."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, 5, (count, 12))
    lengths = np.sort(rng.integers(2, 13, count))[::-1]
    return {
        "tokens": tokens,
        "labels": np.where(np.arange(12) < lengths[:, None], tokens, -100),
    }


def half_ignored() -> dict[str, Any]:
    data = examples(8)
    data["labels"][4:] = -100
    return data


def dropping() -> TrainingStep:
    """A step of the classifier with Dropout before its last layer."""
    model = onnx.parser.parse_model(
        TEXT.replace("h2 = Relu (h1)", "r = Relu (h1) h2 = Dropout (r)")
    )
    model.graph.initializer.extend(classifier().graph.initializer)
    return training_step(model, CrossEntropy(), SGD(), dropout="train")


def dropped(_: Path) -> None:
    trainer = Trainer(dropping(), 0.1, threads=1, data_parallel=True, seed=3)
    found = trainer.fit([examples(8, i) for i in range(4)], epochs=1).losses
    if world().leads:
        print(json.dumps(found))


def square(values: dict[str, Any]) -> Any:
    return op.ReduceMean(values["logits"] * values["logits"], keepdims=0)


def of(loss: Any) -> TrainingStep:
    return training_step(classifier(), loss, SGD())


# a step, its batches, the rate
CASES: dict[str, Callable[[], tuple[TrainingStep, Any, float | None]]] = {
    "sgd": lambda: (step(SGD()), [examples(33, i) for i in range(20)], 0.1),
    "adamw": lambda: (step(AdamW()), [examples(33, i) for i in range(20)], 0.01),
    "options": lambda: (
        step(
            AdamW(lr=0.01),
            groups={"b*": {"weight_decay": 0.0}},
            clip_norm=0.1,
            average=0.9,
            accumulate=2,
            schedule=Cosine(0.01, T_max=20),
        ),
        [examples(16, i) for i in range(40)],
        None,
    ),
    "one example": lambda: (step(SGD()), [examples(n) for n in (9, 1, 5)], 0.1),
    "sum": lambda: (of(CrossEntropy(reduction="sum")), [examples(9, i) for i in range(5)], 0.01),
    "penalty": lambda: (
        of(CrossEntropy() + 0.1 * L2Penalty("w*")),
        [examples(9, i) for i in range(5)],
        0.1,
    ),
    "two means": lambda: (
        of(CrossEntropy() + 0.1 * Custom(square, over_batch="mean")),
        [examples(9, i) for i in range(5)],
        0.1,
    ),
    "class weights": lambda: (
        of(CrossEntropy(weight=(1.0, 2.0, 5.0))),
        [examples(9, i) for i in range(5)],
        0.1,
    ),
    "ignored": lambda: (step(SGD()), [examples(8), half_ignored(), examples(7)], 0.1),
    "padded": lambda: (
        training_step(language(), SequenceCrossEntropy(), SGD()),
        [padded(7, i) for i in range(5)],
        0.5,
    ),
}


def losses(name: str, *, parallel: bool) -> list[float]:
    made, batches, rate = CASES[name]()
    trainer = Trainer(made, rate, threads=1, data_parallel=parallel)
    return trainer.fit(batches, epochs=1).losses


def every_case(_: Path) -> None:
    found = {name: losses(name, parallel=True) for name in CASES}
    if world().leads:
        print(json.dumps(found))


def fit(
    folder: Path, batches: Callable[[], Iterator[Any]], loss: Any = None, **options: Any
) -> None:
    made = of(loss or CrossEntropy())
    if world().rank:  # the leader's values hold
        made.initial["w1"][:] = 7  # type: ignore[index]
    with world().together():
        trainer = Trainer(made, 0.1, threads=1, data_parallel=True)
    history = trainer.fit(batches, folder=folder, every=2, **options)
    if world().leads:
        print(json.dumps(history.losses))


def broken(kind: str) -> Callable[[], Iterator[Any]]:
    """Batches of which the sixth cannot be trained on."""

    def batches() -> Iterator[Any]:
        for i in range(20):
            data = examples(33, i)
            if i == 5 and world().rank == 1 and kind == "raise":
                raise ValueError("no disk")
            if i == 5 and world().rank == 1 and kind == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if i == 5 and kind == "nan":
                data["x"][0, 0] = np.nan
            if i == 5 and kind == "label":
                data["labels"][-1] = 7
            yield data

    return batches


def whole() -> Iterator[Any]:
    yield from (examples(33, i) for i in range(20))


def other_step(_: Path) -> None:
    with world().together():
        Trainer(step(SGD() if world().leads else SGD(momentum=0.9)), data_parallel=True)


RUNS: dict[str, Callable[[Path], None]] = {
    "every case": every_case,
    "other step": other_step,
    "dropout": dropped,
    "whole": lambda folder: fit(folder, whole, log=folder / "log"),
    "first half": lambda folder: fit(folder, whole, steps=9, log=folder / "log"),
    "function": lambda folder: fit(folder, whole, square),
    "two means": lambda folder: fit(
        folder, lambda: iter([half_ignored()]), CrossEntropy() + Custom(square, over_batch="mean")
    ),
    **{
        kind: lambda folder, kind=kind: fit(folder, broken(kind))  # type: ignore[misc]
        for kind in ("raise", "kill", "nan", "label")
    },
}

if __name__ == "__main__":
    RUNS[sys.argv[1]](Path(sys.argv[2]))
