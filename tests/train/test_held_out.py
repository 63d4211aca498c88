"""A share of the examples is held out: which, of which classes, and the same after a resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnxgrad import Trainer, fit
from onnxgrad.errors import InputError, RunWarning
from onnxgrad.train.held_out import split
from tests.train.common import classifier, examples, step


def rows(count: int, share: float, seed: int = 0, labels: Any = None) -> tuple[Any, Any]:
    data = {"x": np.arange(count), "labels": np.arange(count) / 2 if labels is None else labels}
    parts = split(data, share, seed, ["x", "labels"], ["labels"])
    return tuple(np.asarray(part["x"]) for part in parts)  # type: ignore[return-value]


@pytest.mark.parametrize("share", [0.001, 0.2, 0.5, 0.999])
@pytest.mark.parametrize("classes", [0, 1, 3, 40])
def test_every_example_is_trained_or_held_out(share: float, classes: int) -> None:
    rng = np.random.default_rng(classes)
    labels = rng.integers(0, classes, 40) ** 2 if classes else None
    trained, held = rows(40, share, labels=labels)
    assert np.array_equal(np.sort(np.concatenate([trained, held])), np.arange(40))
    assert len(held) == min(max(round(40 * share), 1), 39)
    assert np.array_equal(rows(40, share, labels=labels)[1], held)
    if labels is not None:
        for label, size in zip(*np.unique(labels, return_counts=True), strict=True):
            assert abs((labels[held] == label).sum() - size * len(held) / 40) < 1
    if 0.1 < share < 0.9:
        assert not np.array_equal(rows(40, share, 1, labels)[1], held)


def test_a_rare_class_stays_in_training() -> None:
    labels = np.array([0] * 30 + [1] * 2 + [2], np.uint8)[:, None]
    for seed in range(20):
        trained, held = rows(33, 0.3, seed, labels)
        assert sorted({*labels[trained, 0]}) == [0, 1, 2] and len(held) == 10


@pytest.mark.filterwarnings("ignore:.*planned length:onnxgrad.errors.RunWarning")
def test_held_out_examples_are_kept_across_a_resume(tmp_path: Path) -> None:
    """As the same arrays passed apart, also if the seed of the order is another one by then."""
    data = {**examples(80), "w": np.arange(80)}

    def seen(values: Any, arrays: Any) -> tuple[float, int]:
        return float(np.sum(arrays["w"])), 1

    def run(folder: str, epochs: int, seed: int = 3, share: Any = 0.25, given: Any = data) -> Any:
        how: Any = {"epochs": epochs, "seed": seed, "validation": share, "metrics": {"w": seen}}
        trainer = Trainer(step(), threads=1)
        return trainer, trainer.fit(given, folder=tmp_path / folder, **how)

    train, held = split(data, 0.25, 3, ["x", "labels"], ["labels"])
    assert [*train] == ["x", "labels"] and [*held] == ["x", "labels", "w"]
    apart, known = run("apart", 2, share=held, given=train)
    whole, history = run("whole", 2)
    assert history.evaluations == known.evaluations and history.losses == known.losses
    run("broken", 1)
    resumed, rest = run("broken", 2)
    assert rest.evaluations == history.evaluations[1:]
    for name, array in whole.parameters.items():
        assert np.array_equal(resumed.parameters[name], array)
        assert np.array_equal(apart.parameters[name], array)
    with pytest.warns(RunWarning, match="seed 4"):
        third = run("broken", 3, seed=4)[1]
    assert third.last["w"] == history.last["w"] and third.losses
    with pytest.raises(InputError, match=r"another run: share held out 0\.5 \(was 0\.25\)"):
        run("broken", 4, share=0.5)


def test_a_share_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file whose name is a number is a file; the model of `fit` is that of `Trainer.fit`."""
    monkeypatch.chdir(tmp_path)
    np.savez("data.npz", **examples(40))
    found = fit(classifier(), "data.npz", "cross_entropy", validation="0.25", report=True)
    trainer = Trainer(step(), threads=1)
    assert found.last == trainer.fit("data.npz", validation=0.25).last
    assert found.steps == trainer.progress.steps == 1
    np.savez("0.25", **examples(7))
    Path("0.25.npz").rename("0.25")
    one, two = (
        Trainer(step(), threads=1).fit("data.npz", validation=v) for v in ("0.25", examples(7))
    )
    assert one.last == two.last != found.last


def test_a_wrong_label_is_named_by_its_row_in_the_data() -> None:
    data = examples(40)
    data["labels"][29] = 9
    with pytest.raises(InputError, match=r"the label 9 at \[29\]"):
        Trainer(step(), threads=1).fit(data, validation=0.5)


@pytest.mark.parametrize(
    ("data", "share", "words"),
    [
        (examples(8), 1.0, "a number strictly between 0 and 1, not 1.0"),
        (examples(8), "0", "a number strictly between 0 and 1, not 0"),
        (examples(8), True, "a number strictly between 0 and 1, not True"),
        (examples(1), 0.5, "no share of 1 example can be held out"),
        ([examples(8)], 0.5, "needs data that is arrays by name, not list"),
        ({"x": np.zeros((4, 8)), "labels": np.zeros(3)}, 0.5, "the same number of examples"),
        (
            {"x": examples(8)["x"], "label": np.zeros(8)},
            0.5,
            "has 'label', which nothing reads: rename it",
        ),
    ],
)
def test_no_share(data: Any, share: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        Trainer(step(), threads=1).fit(data, validation=share)
