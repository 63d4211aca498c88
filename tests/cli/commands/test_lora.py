"""`onnxgrad lora`: adapters are added, trained in the shell, and written for other programs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from onnxgrad.train.adapters import lora, read_adapters
from onnxgrad.verify.running.session import run as run_model
from tests.cli.conftest import Result
from tests.language_models import LanguageModel
from tests.train.adapters.common import form, moved

Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    onnx.save(form("matmul"), "m.onnx")
    onnx.save(moved(lora(form("matmul"), "W", rank=2, alpha=3.0)), "tuned.onnx")
    return tmp_path


def test_adapters_that_change_nothing_are_proved(run: Run) -> None:
    words = ("--targets", "W", "--rank", 2, "--alpha", 3, "--initial-seed", 5)
    done = run("lora", "m.onnx", *words, "-o", "small.onnx", "--json", "found.json")
    assert done.code == 0 and "1 adapter of rank 2, alpha 3: 26 numbers; 1 → 5 nodes" in done.out
    assert json.loads(Path("found.json").read_text())["proof"]["ok"]
    assert onnx.load("small.onnx") == lora(onnx.load("m.onnx"), "W", rank=2, alpha=3.0, seed=5)


def test_trained_adapters_are_written_in_three_formats_and_merged(run: Run) -> None:
    done = run("lora", "tuned.onnx", "--save", "a.safetensors", "--peft", "peft")
    assert done.code == 2 and "the module of 'W' is unknown" in done.err  # W is no module's weight
    assert run("lora", "tuned.onnx", "--save", "b.safetensors").code == 0
    assert read_adapters("b.safetensors").rank == 2
    feeds = {"x": np.random.default_rng(3).standard_normal((2, 5, 7)).astype(np.float32)}
    tuned, plain = (run_model(onnx.load(f), feeds)["y"] for f in ("tuned.onnx", "m.onnx"))
    assert run("lora", "tuned.onnx", "--merge", "-o", "merged.onnx").code == 0
    assert [t.name for t in onnx.load("merged.onnx").graph.initializer] == ["W"]
    np.testing.assert_allclose(run_model(onnx.load("merged.onnx"), feeds)["y"], tuned, atol=1e-5)
    done = run("lora", "tuned.onnx", "--onnxruntime", "t.onnx_adapter", "-o", "base.onnx")
    assert done.code == 0 and "input W.lora_A: f32[7,2]" in done.out
    session, options = ort.InferenceSession("base.onnx"), ort.RunOptions()
    np.testing.assert_allclose(session.run(None, feeds)[0], plain, atol=1e-6)
    adapter = ort.LoraAdapter()
    adapter.Load("t.onnx_adapter")
    options.add_active_adapter(adapter)
    np.testing.assert_allclose(session.run(None, feeds, options)[0], tuned, atol=1e-5)


def test_a_merge_that_does_not_equal_both_side_by_side_is_not_written(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onnxgrad.jobs.surgery.lora.merge", lambda program: onnx_program("m.onnx"))
    done = run("lora", "tuned.onnx", "--merge", "-o", "merged.onnx")
    assert done.code == 1 and "nothing was written" in done.err and not Path("merged.onnx").exists()


def onnx_program(path: str) -> Any:
    from onnxgrad.ir.load import load

    return load(path)


def test_a_quantised_language_model_from_adapters_to_peft(run: Run) -> None:
    language = LanguageModel("llama", "packed", layers=1)
    onnx.save(language.build(), "llm.onnx")
    rows = language.batch(8)
    np.savez("data.npz", **rows, labels=rows["input_ids"])
    assert run("lora", "llm.onnx", "--targets", "*attn*", "--rank", 2, "-o", "small.onnx").code == 0
    loss = "cross_entropy{output=logits,axis=-1}"
    words = ("--loss", loss, "--wrt", "*.lora_*", "--batch-size", 4, "--epochs", 2, "--threads", 1)
    done = run("fit", "small.onnx", *words, "--data", "data.npz", "-o", "tuned.onnx")
    assert done.code == 0, done.err
    rename = ("--rename", ".attn.=.self_attn.")
    assert run("lora", "tuned.onnx", "--peft", "peft", *rename).code == 0
    config = json.loads(Path("peft/adapter_config.json").read_text())
    assert config["target_modules"][-1] == "model.layers.0.self_attn.o_proj"
    done = run("lora", "tuned.onnx", "--merge", "-o", "merged.onnx")
    assert done.code == 2 and "is quantised and cannot hold what its adapter adds" in done.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("m.onnx", "nothing is requested: --targets adds adapters"),
        ("m.onnx --targets W --rank 2", "--targets makes a model: name its file with -o OUT"),
        ("tuned.onnx --merge", "--merge makes a model: name its file with -o OUT"),
        ("m.onnx --targets W --peft p -o o.onnx", "--targets adds adapters, --peft is for trained ones"),
        ("tuned.onnx --peft p -o o.onnx", "-o: --peft makes no model"),
        ("tuned.onnx --merge --onnxruntime a -o o.onnx", "-o is either the model of --merge or that of"),
        ("m.onnx --targets q* --rank 2 -o o.onnx", "m.onnx: targets 'q*' matches no matrix"),
        ("m.onnx --targets W -o o.onnx", "m.onnx: rank 8 is larger than the smaller side of 'W'"),
        ("m.onnx --save a", "m.onnx: the model has no adapters"),
        ("tuned.onnx --targets W -o o.onnx", "tuned.onnx: the model has adapters already"),
    ],
)  # fmt: skip
def test_what_does_not_go_together(words: str, says: str, run: Run) -> None:
    done = run("lora", *words.split())
    assert done.code == 2 and says in done.err
    assert not Path("o.onnx").exists()
