"""Adapters that PEFT wrote give what PyTorch computed with them, and ours are written in the same form.

tests/data/peft is by scripts/make_peft_example.py.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from onnxgrad.errors import InputError
from onnxgrad.train import MSE, AdamW, Trainer, safetensors_file, training_step
from onnxgrad.train.adapters import adapters_of, load_adapters, lora, merge, read_peft, save_peft
from onnxgrad.verify.running.session import run
from tests.helpers import DATA_DIR, ROOT
from tests.train.adapters.common import form, moved, with_weights

FOLDER = DATA_DIR / "peft"
TEXT = """(int64[2,5] ids) => (float[2,3,5] y) {
  h = Gather (emb.weight, ids)
  t = Transpose (net.0.weight)  a = MatMul (h, t)  b = Add (a, net.0.bias)
  u = Transpose (net.1.weight)  c = MatMul (b, u)
  d = Transpose <perm = [0, 2, 1]> (c)  y = Conv (d, conv.weight, conv.bias)
}"""


def example() -> tuple[onnx.ModelProto, dict[str, Any]]:
    stored = dict(np.load(FOLDER / "values.npz"))
    weights = {k: v for k, v in stored.items() if k.endswith(("weight", "bias"))}
    text = TEXT
    for name in weights:  # the text format knows no dots
        text = text.replace(name, name.replace(".", "_"))
    model = with_weights(text, **{name.replace(".", "_"): v for name, v in weights.items()})
    for name in weights:
        for node in model.graph.node:
            node.input[:] = [name if i == name.replace(".", "_") else i for i in node.input]
    for tensor, name in zip(model.graph.initializer, weights, strict=True):
        tensor.name = name
    return model, stored


def test_what_peft_wrote_gives_what_pytorch_computed() -> None:
    model, stored = example()
    feeds = {"ids": stored["ids"]}
    np.testing.assert_allclose(run(model, feeds)["y"], stored["before"], atol=1e-6)
    adapters = read_peft(FOLDER, model)
    size = np.abs(stored["after"]).max()
    assert np.abs(stored["after"] - stored["before"]).max() > 0.5 * size
    for after in (load_adapters(model, adapters), merge(model, adapters)):
        np.testing.assert_allclose(
            run(after, feeds)["y"], stored["after"], rtol=0, atol=1e-6 * size
        )


def test_training_follows_peft() -> None:
    model, stored = example()
    adapted = load_adapters(model, read_peft(FOLDER, model))
    trainer = Trainer(training_step(adapted, MSE(), AdamW(), wrt="*.lora_*"), 1e-2)
    batch = {"ids": stored["ids"], "target": stored["before"]}
    losses = [trainer.step(batch) for _ in stored["losses"]]
    np.testing.assert_allclose(losses, stored["losses"], rtol=1e-6)
    assert losses[-1] < 0.8 * losses[0]


def test_written_again_it_is_what_peft_wrote(tmp_path: Path) -> None:
    model, _ = example()
    save_peft(load_adapters(model, read_peft(FOLDER, model)), tmp_path)
    ours, theirs = (
        safetensors_file.read(f / "adapter_model.safetensors")[0] for f in (tmp_path, FOLDER)
    )
    assert ours.keys() == theirs.keys()
    for name, array in theirs.items():
        np.testing.assert_array_equal(ours[name], array, err_msg=name)
    ours, theirs = (json.loads((f / "adapter_config.json").read_text()) for f in (tmp_path, FOLDER))
    assert set(ours) <= set(theirs)
    for key in ("peft_type", "r", "lora_alpha", "bias"):
        assert ours[key] == theirs[key]
    assert sorted(ours["target_modules"]) == sorted(theirs["target_modules"])


def test_modules_that_an_exporter_noted(tmp_path: Path) -> None:
    path = ROOT / "models" / "bert.onnx"
    model = lora(path, "*.layer.0.attention.self.query,*.word_embeddings", rank=2)
    save_peft(model, tmp_path)
    arrays, _ = safetensors_file.read(tmp_path / "adapter_model.safetensors")
    assert sorted(arrays) == [
        "base_model.model.model.embeddings.word_embeddings.lora_embedding_A",
        "base_model.model.model.embeddings.word_embeddings.lora_embedding_B",
        "base_model.model.model.encoder.layer.0.attention.self.query.lora_A.weight",
        "base_model.model.model.encoder.layer.0.attention.self.query.lora_B.weight",
    ]
    again = read_peft(tmp_path, path)
    for name, array in adapters_of(model).values.items():
        np.testing.assert_array_equal(again.values[name], array)


def test_a_prefix_of_the_model_is_found() -> None:
    model, _ = example()
    plain = read_peft(FOLDER, model)
    for node in model.graph.node:
        node.input[:] = [f"model.{i}" if "." in i else i for i in node.input]
    for tensor in model.graph.initializer:
        tensor.name = f"model.{tensor.name}"
    assert sorted(read_peft(FOLDER, model).values) == sorted(f"model.{k}" for k in plain.values)


def test_rank_stabilised_adapters(tmp_path: Path) -> None:
    """alpha / sqrt(r)"""
    model, _ = example()
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    change(tmp_path, use_rslora=True)
    np.testing.assert_allclose(read_peft(tmp_path, model).scale, 6 / np.sqrt(2))


def change(folder: Path, **settings: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"use_dora": True}, "use_dora=True is not known here"),
        ({"bias": "all"}, "bias='all' is not known here"),
        ({"rank_pattern": {"emb": 4}}, "rank_pattern="),
        ({"modules_to_save": ["head"]}, "modules_to_save="),
        ({"init_lora_weights": "pissa"}, "init_lora_weights='pissa'"),
        ({"peft_type": "IA3"}, "is no configuration of LoRA"),
        ({"r": "8"}, "must be numbers above 0"),
        ({"r": 3}, "not of rank 3"),
    ],
)
def test_what_is_not_known_is_refused(tmp_path: Path, settings: Any, words: str) -> None:
    model, _ = example()
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    change(tmp_path, **settings)
    with pytest.raises(InputError) as error:
        load_adapters(model, read_peft(tmp_path, model))
    assert words in str(error.value)


def test_folders_and_modules_that_do_not_fit(tmp_path: Path) -> None:
    model, _ = example()
    with pytest.raises(InputError, match="cannot be read"):
        read_peft(tmp_path, model)
    with pytest.raises(InputError, match="is 0 matrices of the model"):
        read_peft(FOLDER, form("matmul"))
    for name in ("other", "base_model.model.emb.lora_magnitude_vector"):
        shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
        safetensors_file.write(
            tmp_path / "adapter_model.safetensors", {name: np.ones((2, 2), np.float32)}
        )
        with pytest.raises(InputError, match=f"'{name}' is no matrix of an adapter"):
            read_peft(tmp_path, model)
    with pytest.raises(InputError, match="nothing says of which module 'W' is"):
        save_peft(moved(lora(form("matmul"), "W", rank=2)), tmp_path)


def test_a_table_that_is_a_factor_too(tmp_path: Path) -> None:
    """PEFT adapts the lookup alone, and we would move both."""
    model = form("tied")
    for node in model.graph.node:
        node.input[:] = ["emb.weight" if i == "W" else i for i in node.input]
    model.graph.initializer[0].name = "emb.weight"
    with pytest.raises(InputError, match="is a table and a factor of products"):
        save_peft(lora(model, "*", rank=2), tmp_path)
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    values = {f"base_model.model.emb.lora_embedding_{c}": np.ones((2, 2), np.float32) for c in "AB"}
    safetensors_file.write(tmp_path / "adapter_model.safetensors", values)
    with pytest.raises(InputError, match="is a table and a factor of products"):
        read_peft(tmp_path, model)
