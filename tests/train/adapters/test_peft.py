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
from onnxgrad.ir.storage import safetensors_file
from onnxgrad.train import MSE, AdamW, Trainer, training_step
from onnxgrad.train.adapters import (
    adapters_of,
    load_adapters,
    lora,
    merge,
    read_peft,
    save_adapters,
    save_peft,
)
from onnxgrad.verify.running.session import run
from tests.helpers import DATA_DIR, ROOT, stored_arrays
from tests.language_models import WEIGHTS, LanguageModel, Weights
from tests.train.adapters.common import form, moved, with_weights

FOLDER = DATA_DIR / "peft"
TEXT = """(int64[2,5] ids) => (float[2,3,5] y) {
  h = Gather (emb.weight, ids)
  t = Transpose (net.0.weight)  a = MatMul (h, t)  b = Add (a, net.0.bias)
  u = Transpose (net.1.weight)  c = MatMul (b, u)
  d = Transpose <perm = [0, 2, 1]> (c)  y = Conv (d, conv.weight, conv.bias)
}"""


def example() -> tuple[onnx.ModelProto, dict[str, Any]]:
    stored = stored_arrays(FOLDER / "values.npz")
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


def noted(model: onnx.ModelProto, **modules: str) -> onnx.ModelProto:
    """The model whose nodes, by their outputs, are of these modules, as an exporter notes it."""
    for node in model.graph.node:
        if node.output[0] in modules:
            scopes = ["", "m", modules[node.output[0]], node.op_type]
            node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=str(scopes))
    return model


def split_head() -> onnx.ModelProto:
    """A tied head as an exporter folds it: the table is called as the head, the head is a copy."""
    text = """(int64[2,5] ids) => (float[2,5,6] y) {
        h = Gather (table, ids)  t = MatMul (h, inner)  y = MatMul (t, copy)
    }"""
    rng = np.random.default_rng(0)
    table, inner = (rng.normal(size=s).astype(np.float32) for s in ((6, 4), (4, 4)))
    model = with_weights(text, table=table, inner=inner, copy=np.ascontiguousarray(table.T))
    new = {"table": "m.head.weight", "inner": "m.mid.weight"}
    for node in model.graph.node:
        node.input[:] = [new.get(i, i) for i in node.input]
    for tensor in model.graph.initializer:
        tensor.name = new.get(tensor.name, tensor.name)
    return noted(model, h="m.emb", t="m.mid", y="m.head")


def write_peft(folder: Path, **arrays: np.ndarray[Any, Any]) -> Path:
    """A folder as PEFT writes it, with matrices of rank 2."""
    shutil.copytree(FOLDER, folder, dirs_exist_ok=True)
    values = {
        f"base_model.model.{k}": np.ascontiguousarray(a, np.float32) for k, a in arrays.items()
    }
    safetensors_file.write(folder / "adapter_model.safetensors", values)
    return folder


def pair(module: str, inputs: int, outputs: int, table: bool = False) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    names = (
        ("lora_embedding_A", "lora_embedding_B") if table else ("lora_A.weight", "lora_B.weight")
    )
    sizes = ((2, inputs), (outputs, 2))
    return {f"{module}.{n}": rng.normal(size=s) for n, s in zip(names, sizes, strict=True)}


def test_a_tied_head_that_is_folded_into_its_copy_is_met(tmp_path: Path) -> None:
    """The module that runs a node says more than the name that an exporter gave the weight."""
    model = split_head()
    for module, weight, table in (("head", "copy", False), ("emb", "m.head.weight", True)):
        sizes = (6, 4) if table else (4, 6)
        folder = write_peft(tmp_path / module, **pair(module, *sizes, table=table))
        found = read_peft(folder, model)
        assert found.weights == [weight]
        save_peft(load_adapters(model, found), tmp_path / f"{module}2")
        ours, theirs = (
            safetensors_file.read(f / "adapter_model.safetensors")[0]
            for f in (tmp_path / f"{module}2", folder)
        )
        assert ours.keys() == theirs.keys()
        assert all(np.array_equal(ours[k], a) for k, a in theirs.items())


def test_a_base_weight_beside_an_adapter_is_compared(tmp_path: Path) -> None:
    """PEFT stores the weight of a head that it adapts."""
    model = split_head()
    own = onnx.numpy_helper.to_array(model.graph.initializer[0])
    for name in ("head.base_layer.weight", "emb.weight"):
        folder = write_peft(tmp_path, **pair("head", 4, 6), **{name: own})
        assert read_peft(folder, model).weights == ["copy"]
        folder = write_peft(tmp_path, **pair("head", 4, 6), **{name: own + 1})
        with pytest.raises(InputError, match="of this model: export the model that the adapters"):
            read_peft(folder, model)


def test_names_that_were_read_are_written_and_a_prefix_leaves(tmp_path: Path) -> None:
    model = split_head()
    read = read_peft(write_peft(tmp_path / "p", **pair("mid", 4, 4)), model)
    assert read.modules == {"m.mid.weight": "mid"}
    adapted = load_adapters(model, read)

    def modules(prefix: str | None = None, of: onnx.ModelProto = adapted) -> list[str]:
        save_peft(of, tmp_path / "o", prefix=prefix)
        return json.loads((tmp_path / "o" / "adapter_config.json").read_text())["target_modules"]

    assert modules() == ["mid"]
    save_adapters(adapted, tmp_path / "own")
    assert modules(of=load_adapters(model, tmp_path / "own")) == ["mid"]
    assert modules("") == ["m.mid"] and modules("m.") == ["mid"]
    ours = lora(model, "*.mid.*", rank=2)
    assert modules(of=ours) == ["m.mid"] and modules("m.", of=ours) == ["mid"]
    with pytest.raises(InputError, match=r"the module 'm\.mid' does not begin with 'net\.'"):
        modules("net.", of=ours)


def test_a_prefix_says_which_module_is_meant(tmp_path: Path) -> None:
    text = "(float[2,4] x) => (float[2,4] y) { a = MatMul (x, first)  y = MatMul (a, second) }"
    model = with_weights(text, first=np.eye(4, dtype="f"), second=np.eye(4, dtype="f"))
    model = noted(model, a="m.mid", y="m.net.mid")
    folder = write_peft(tmp_path, **pair("mid", 4, 4))
    with pytest.raises(
        InputError, match=r"matches 2 matrices .* there are m\.mid, m\.net\.mid; pass"
    ):
        read_peft(folder, model)
    assert read_peft(folder, model, prefix="m.").weights == ["first"]
    assert read_peft(folder, model, prefix="m.net.").weights == ["second"]
    with pytest.raises(InputError, match=r"matches 0 matrices .* there are m\.mid, m\.net\.mid"):
        read_peft(folder, model, prefix="other.")


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
        ({"peft_type": "IA3"}, "is not a configuration of LoRA"),
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
    with pytest.raises(InputError, match="matches 0 matrices of the model"):
        read_peft(FOLDER, form("matmul"))
    for name in ("other", "base_model.model.emb.lora_magnitude_vector"):
        shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
        safetensors_file.write(
            tmp_path / "adapter_model.safetensors", {name: np.ones((2, 2), np.float32)}
        )
        with pytest.raises(InputError, match=f"'{name}' is not a matrix of an adapter"):
            read_peft(tmp_path, model)
    with pytest.raises(InputError, match="the module of 'W' is unknown"):
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


# ---- quantised weights, as onnxruntime-genai names them ------------------------------------------


@pytest.mark.parametrize("weights", WEIGHTS)
def test_modules_of_quantised_weights(weights: Weights, tmp_path: Path) -> None:
    model = LanguageModel("llama", weights).build()
    tuned = moved(lora(model, "*attn*", rank=2))
    save_peft(tuned, tmp_path, rename={".attn.": ".self_attn."})
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["target_modules"][0] == "model.layers.0.self_attn.q_proj"
    found = read_peft(tmp_path, model, rename={".attn.": ".self_attn."})
    held = adapters_of(tuned).values
    assert found.values.keys() == held.keys()
    assert all(np.array_equal(found.values[name], value) for name, value in held.items())
    with pytest.raises(
        InputError, match=r"'model.layers.0.self_attn.._proj' matches 0 matr.*rename="
    ):
        read_peft(tmp_path, model)


@pytest.mark.parametrize(
    "suffix", ["qweight", "MatMul.qweight", "MatMul.weight_Q4", "weight_Q8G32"]
)
def test_names_that_quantisers_give(suffix: str, tmp_path: Path) -> None:
    model = LanguageModel("llama", "packed", layers=1).build()
    for named in (*model.graph.initializer, *model.graph.node):
        named.name = named.name.replace("o_proj.qweight", f"o_proj.{suffix}")
        for i, name in enumerate(getattr(named, "input", ())):
            named.input[i] = name.replace("o_proj.qweight", f"o_proj.{suffix}")
    save_peft(lora(model, "*o_proj*", rank=2), tmp_path)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["target_modules"] == ["model.layers.0.attn.o_proj"]
