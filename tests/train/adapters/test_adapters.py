"""Adapters alone are a small file, which fits the model that they were made for and no other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxgrad
from onnxgrad.errors import InputError
from onnxgrad.ir.storage import safetensors_file
from onnxgrad.train import MSE, AdamW, CrossEntropy, Trainer, training_step
from onnxgrad.train.adapters import (
    Adapters,
    adapters_of,
    load_adapters,
    lora,
    merge,
    read_adapters,
    save_adapters,
)
from onnxgrad.verify.running.session import run
from tests.helpers import ROOT
from tests.train.adapters.common import FORMS, feeds_of, form, moved
from tests.train.common import classifier, examples


def trained(model: onnx.ModelProto, seed: int, **options: Any) -> Adapters:
    return adapters_of(moved(lora(model, **{"targets": "W", "rank": 2, **options}), seed))


@pytest.mark.parametrize("name", FORMS)
def test_saved_and_loaded_again(name: str, tmp_path: Path) -> None:
    model = form(name)
    after = moved(lora(model, "W", rank=2, alpha=5.0))
    save_adapters(after, tmp_path / "a.safetensors")
    again = load_adapters(model, tmp_path / "a.safetensors")
    feeds = feeds_of(model)
    np.testing.assert_array_equal(run(again, feeds)["y"], run(after, feeds)["y"])
    found = read_adapters(tmp_path / "a.safetensors")
    assert (found.rank, found.alpha, found.targets) == (2, 5.0, ("W",))
    save_adapters(again, tmp_path / "b.safetensors")
    files = [(tmp_path / f"{n}.safetensors").read_bytes() for n in "ab"]
    assert files[0] == files[1]


def test_the_file_is_small(tmp_path: Path) -> None:
    path = ROOT / "models" / "gpt2.onnx"
    adapted = lora(path, "*.attn.c_attn.weight", rank=1)
    save_adapters(adapted, tmp_path / "a.safetensors")
    numbers = sum(v.nbytes for v in adapters_of(adapted).values.values())
    assert numbers == 12 * (24 + 72) * 4
    size = (tmp_path / "a.safetensors").stat().st_size
    assert size < numbers + 6000 < path.stat().st_size / 10


def test_what_training_made_of_them(tmp_path: Path) -> None:
    model = lora(classifier(), "w*", rank=2)
    trainer = Trainer(training_step(model, CrossEntropy(), wrt="*.lora_*"), 1e-2)
    for _ in range(5):
        trainer.step(examples(16))
    save_adapters(model, tmp_path / "a.safetensors", trainer.parameters)
    save_adapters(trainer.export(model), tmp_path / "b.safetensors")
    files = [(tmp_path / f"{n}.safetensors").read_bytes() for n in "ab"]
    assert files[0] == files[1]
    feeds = {"x": examples(4)["x"]}
    one, other = (
        run(f(classifier(), tmp_path / "a.safetensors"), feeds)["logits"]
        for f in (load_adapters, merge)
    )
    np.testing.assert_allclose(one, other, atol=1e-6)
    with pytest.raises(InputError, match=r"'w1' \[8, 16\] is not part of the model's adapters"):
        save_adapters(model, tmp_path / "c", {"w1": np.zeros((8, 16), np.float32)})


# ---- several -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMS)
def test_several_are_chosen_by_an_input(name: str, tmp_path: Path) -> None:
    model, feeds = form(name), feeds_of(form(name))
    several = {
        "a": trained(model, 1, alpha=4.0),
        "b": trained(model, 2, rank=3, alpha=9.0),
        "c": trained(model, 3),
    }
    save_adapters(several["b"], tmp_path / "b.safetensors")
    switched = load_adapters(model, {**several, "b": tmp_path / "b.safetensors"})
    assert [v.name for v in switched.graph.input][-1] == "adapter"
    expected = [model, *(load_adapters(model, adapters) for adapters in several.values())]
    results = []
    for i, by_itself in enumerate(expected):
        found = run(switched, {**feeds, "adapter": np.array(i)})["y"]
        alone = run(by_itself, feeds)["y"]
        np.testing.assert_allclose(found, alone, rtol=0, atol=1e-6 * np.abs(alone).max())
        results.append(found)
    assert len({r.tobytes() for r in results}) == 4
    np.testing.assert_array_equal(results[0], run(model, feeds)["y"])


def test_several_beside_different_weights() -> None:
    model, feeds = classifier(), {"x": examples(4)["x"]}
    first, second = trained(model, 1, targets="w1"), trained(model, 2, targets="w2")
    switched = load_adapters(model, {"one": first, "two": second})
    for i, adapters in enumerate((first, second), 1):
        found = run(switched, {**feeds, "adapter": np.array(i)})["logits"]
        alone = run(load_adapters(model, adapters), feeds)["logits"]
        np.testing.assert_allclose(found, alone, atol=1e-5)
    note = json.loads(next(e.value for e in switched.metadata_props if e.key == "onnxgrad.lora"))
    assert (note["names"], note["input"]) == (["one", "two"], "adapter")
    with pytest.raises(InputError, match="holds 2 adapters to choose from"):
        merge(switched)
    with pytest.raises(InputError, match="no adapters given"):
        load_adapters(model, {})


def test_the_gradient_of_stacked_adapters_is_right() -> None:
    model = form("matmul")
    switched = load_adapters(model, {"a": trained(model, 1), "b": trained(model, 2)})
    feeds = {**feeds_of(model), "adapter": np.array(2)}
    report = onnxgrad.check_gradient(switched, "*.lora_*", "y", inputs=feeds, tolerance=1e-4)
    assert report.ok, str(report)


def test_training_the_chosen_one_leaves_the_others_and_none_as_they_are() -> None:
    model = form("matmul")
    switched = load_adapters(model, {"a": trained(model, 1), "b": trained(model, 2)})
    trainer = Trainer(training_step(switched, MSE(), AdamW(weight_decay=0.0), wrt="*.lora_*"), 1e-2)
    feeds = feeds_of(model)
    batch = {**feeds, "target": run(model, feeds)["y"] + 1}
    before = trainer.parameters
    for which in (0, 2):
        trainer.step({**batch, "adapter": np.array(which)})
    for name, now in trainer.parameters.items():
        changed = [bool((x != y).any()) for x, y in zip(before[name], now, strict=True)]
        assert changed == [False, False, True]


# ---- refusals ------------------------------------------------------------------------------------


def test_adapters_of_another_model() -> None:
    model, other = form("matmul"), form("matmul")
    other.graph.initializer[0].raw_data = bytes(7 * 6 * 4)
    with pytest.raises(InputError, match="for another model than this one"):
        load_adapters(other, trained(model, 1))
    with pytest.raises(InputError, match="for another model than this one"):
        load_adapters(model, {"a": trained(model, 1), "b": trained(other, 1)})


def test_files_that_are_no_adapters(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    with pytest.raises(InputError, match="cannot be read"):
        read_adapters(path)
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(InputError, match="is not a safetensors file"):
        read_adapters(path)
    safetensors_file.write(path, {"w": np.zeros(2, np.float32)})
    with pytest.raises(InputError, match="holds no adapters"):
        read_adapters(path)
    safetensors_file.write(path, {}, {"lora": '{"rank": 0}'})
    with pytest.raises(InputError, match="does not describe its adapters"):
        read_adapters(path)
    with pytest.raises(InputError, match="the model has no adapters"):
        save_adapters(classifier(), path)
    with pytest.raises(InputError, match="cannot be written"):
        save_adapters(lora(classifier(), "w1", rank=2), tmp_path / "no" / "where")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"W.lora_B": None}, "the adapter of 'W' is incomplete"),
        ({"W.lora_B": (3, 6)}, r"the adapter of 'W' is \[7, 2\] and \[3, 6\], not of rank 2"),
        ({"W.lora_A": (9, 2)}, "is for 9 to 6 features, not for 7 to 6"),
        ({"V.lora_A": (7, 2)}, "'V' fits no weight here"),
    ],
)
def test_adapters_that_do_not_fit(change: dict[str, Any], words: str) -> None:
    model = form("matmul")
    found = trained(model, 1)
    values = {
        **found.values,
        **{k: None if s is None else np.zeros(s, np.float32) for k, s in change.items()},
    }
    whole: Any = {k: v for k, v in values.items() if v is not None}
    broken = Adapters(found.rank, found.alpha, found.targets, found.base, whole)
    with pytest.raises(InputError, match=words):
        load_adapters(model, broken)


def test_adapters_that_another_tool_folded() -> None:
    model = moved(lora(classifier(), "w1", rank=2))
    first = next(t for t in model.graph.initializer if t.name == "w1.lora_A")
    first.name = "folded"
    for node in model.graph.node:
        node.input[:] = ["folded" if i == "w1.lora_A" else i for i in node.input]
    for function in (adapters_of, merge):
        with pytest.raises(
            InputError, match=r"'w1.lora_A' is not an initializer of the model any more"
        ):
            function(model)


def test_a_note_that_is_damaged() -> None:
    model = lora(classifier(), "w1", rank=2)
    for text, words in (("{", "is damaged"), ("{}", "does not describe its adapters")):
        model.metadata_props[-1].value = text
        with pytest.raises(InputError, match=words):
            adapters_of(model)
