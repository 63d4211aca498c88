"""Every example once in each epoch, in an order that the seed and the epoch decide."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnxgrad import Trainer
from onnxgrad.errors import InputError, RunWarning
from onnxgrad.train.data import as_data
from tests.train.common import examples, step

ARRAYS: dict[str, Any] = {"x": np.arange(10), "y": np.arange(10) * 2}


def seen(
    data: Any, epoch: int = 0, size: int = 4, seed: int | None = 0, *, whole: bool = False
) -> list[list[int]]:
    return [batch["x"].tolist() for batch in as_data(data, size, seed, whole=whole).epoch(epoch)]


def test_every_example_once_in_each_epoch() -> None:
    for epoch in range(3):
        batches = seen(ARRAYS, epoch)
        assert [len(b) for b in batches] == [4, 4, 2]
        assert sorted([x for b in batches for x in b]) == list(range(10))
    assert seen(ARRAYS, 0) == seen(ARRAYS, 0) != seen(ARRAYS, 1)
    assert seen(ARRAYS, seed=1) != seen(ARRAYS, seed=0)


def test_without_a_seed_the_order_stays_and_arrays_stay_together() -> None:
    assert [x for b in seen(ARRAYS, seed=None) for x in b] == list(range(10))
    assert all((b["y"] == 2 * b["x"]).all() for b in as_data(ARRAYS, 3, 5).epoch(1))


def test_whole_batches_only() -> None:
    assert [len(b) for b in seen(ARRAYS, whole=True)] == [4, 4]


def test_files_lists_and_functions(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", **ARRAYS)
    assert seen(str(tmp_path / "data.npz")) == seen(ARRAYS)
    batches = [{"x": np.array([1])}, {"x": np.array([2])}]
    assert seen(batches, 0) == seen(batches, 1) == seen(lambda: iter(batches)) == [[1], [2]]


def test_batches_that_are_tuples() -> None:
    """As a DataLoader gives them, whose default is a list of tensors."""
    whole = examples(64)
    own = [{k: a[i : i + 16] for k, a in whole.items()} for i in range(0, 64, 16)]
    named = Trainer(step(), threads=1).fit(own, validation=own).evaluations
    for kind in (tuple, list):
        unnamed = [kind(batch.values()) for batch in own]
        trainer = Trainer(step(), threads=1)
        again = trainer.fit(unnamed, validation=unnamed, names=["x", "labels"])
        assert again.evaluations == named
        assert trainer.evaluate(unnamed, names=["x", "labels"])["loss"] == named[0]["loss"]
        with pytest.raises(InputError, match="or a tuple of them with names=, not"):
            Trainer(step(), threads=1).fit(unnamed)
        with pytest.raises(InputError, match=r"has 2 arrays, and names= has 1: x$"):
            Trainer(step(), threads=1).fit(unnamed, names=["x"])


@pytest.mark.torch
def test_a_loader_of_torch() -> None:
    torch = pytest.importorskip("torch")
    data = {name: torch.from_numpy(a) for name, a in examples(64).items()}
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data.values()), 16)
    losses = Trainer(step(), threads=1).fit(loader, names=list(data)).losses
    alone = Trainer(step(), threads=1).fit(examples(64), batch_size=16, seed=None).losses
    assert losses == alone


def test_integers_are_scaled() -> None:
    """Images of uint8 become floats where a scale is given, in training and held-out data alike."""
    data = examples(64)
    images = np.random.default_rng(0).integers(0, 256, data["x"].shape).astype(np.uint8)
    scale, floats = {"x": 1 / 255}, images * np.float32(1 / 255)
    other, own = data | {"x": images}, data | {"x": floats}
    trainer = Trainer(step(), threads=1)
    scaled = trainer.fit(other, validation=other, scale=scale)
    assert scaled.losses == Trainer(step(), threads=1).fit(own, validation=own).losses
    assert scaled.evaluations[0]["loss"] == trainer.evaluate(own)["loss"]
    with pytest.raises(
        InputError, match=r"uint8, but the step requires float32: scale=\{'x': NUMBER\}"
    ):
        trainer.fit(other, epochs=2)
    with pytest.raises(InputError, match="scale: 'x' of the data is float32; only integers"):
        trainer.fit(own, epochs=2, scale=scale)
    for name in ("labels", "X"):
        with pytest.raises(InputError, match=f"scale: '{name}' is not an input of floats"):
            trainer.fit(other, epochs=2, scale={name: 2.0})
    data["labels"][7] = 9
    with pytest.raises(InputError, match=r"'labels' of the data has the label 9 at \[7\]"):
        trainer.fit(data | {"x": images}, epochs=2, scale=scale)


def test_arrays_of_a_file_that_nothing_reads_are_left_out(tmp_path: Path) -> None:
    path = str(tmp_path / "data.npz")
    np.savez(path, **examples(40), more=np.zeros(40))
    with pytest.warns(
        RunWarning, match=r"data.npz: the step does not read 'more'; it reads x, labels"
    ):
        losses = Trainer(step(), threads=1).fit(path).losses
    assert losses == Trainer(step(), threads=1).fit(examples(40)).losses
    with pytest.warns(RunWarning, match="the step does not read 'more'"):
        Trainer(step(), threads=1).evaluate(path)
    np.savez(path, x=examples(40)["x"], label=np.zeros(40))
    with pytest.raises(
        InputError, match=r"lacks 'labels', .* has 'label', which nothing reads: rename it"
    ):
        Trainer(step(), threads=1).fit(path)


def test_a_batch_is_a_dict() -> None:
    with pytest.raises(InputError, match=r"a batch is a dict of arrays .*, not ndarray"):
        list(as_data((np.zeros(3), np.zeros(3)), 4, None).epoch(0))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("data", "size", "words"),
    [
        ({}, 4, "not none"),
        ({"x": np.zeros(3), "y": np.zeros(4)}, 4, "not x: 3, y: 4"),
        ({"x": np.array(1.0)}, 4, "number of examples"),
        (ARRAYS, 0, "at least 1"),
        ({"x": np.zeros(0)}, 4, "no examples"),
        (iter([]), 4, "an iterator ends with its first epoch"),
        ("nowhere.npz", 4, "cannot be read"),
    ],
)
def test_what_is_no_data(data: Any, size: int, words: str) -> None:
    with pytest.raises(InputError, match=words):
        as_data(data, size, None)


def test_fewer_examples_than_a_batch_that_must_be_whole() -> None:
    with pytest.raises(InputError, match="not enough for a batch of 16"):
        as_data(ARRAYS, 16, None, whole=True)


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04 broken"])
def test_a_file_that_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "data.npz").write_bytes(content)
    with pytest.raises(InputError, match=r"data\.npz"):
        as_data(tmp_path / "data.npz", 4, None)


def test_a_single_array(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros(3))
    with pytest.raises(InputError, match="one array without a name"):
        as_data(tmp_path / "x.npy", 4, None)


def test_a_folder_of_arrays_is_mapped(tmp_path: Path) -> None:
    for name, array in ARRAYS.items():
        np.save(tmp_path / f"{name}.npy", array)
    found: Any = as_data(str(tmp_path), 4, 0)
    assert seen(str(tmp_path)) == seen(ARRAYS)
    assert all(isinstance(a.base, np.memmap) for a in found.arrays.values())
    assert found.facts(0, {}) == as_data(ARRAYS, 4, 0).facts(0, {})
    (tmp_path / "z.npy").write_bytes(b"no array")
    with pytest.raises(InputError, match=r"z\.npy: cannot be read"):
        as_data(tmp_path, 4, 0)
    (tmp_path / "z.npy").unlink()
    np.save(tmp_path / "z.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(InputError, match=r"z\.npy: cannot be read"):
        as_data(tmp_path, 4, 0)


def test_a_wrong_label_is_named_by_its_row_in_the_data() -> None:
    data = examples(64)
    data["labels"][41] = 9
    own = Trainer(step(), threads=1)
    for run in (own.fit, own.evaluate):
        with pytest.raises(
            InputError, match=r"'labels' of the data has the label 9 at \[41\]: lab"
        ):
            run(data, batch_size=16)  # type: ignore[operator]
    with pytest.raises(InputError, match=r"'labels' of the batch has the label 9 at \[1\]"):
        own.step({name: a[40:50] for name, a in data.items()})
