"""onnxgrad/train/adapters/onnxruntime_format.py: onnxruntime switches adapters from run to run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from onnxgrad.errors import InputError
from onnxgrad.train import SGD, CrossEntropy, Trainer, training_step
from onnxgrad.train.adapters import adapters_of, lora, save_onnxruntime, with_adapter_inputs
from onnxgrad.verify.running.session import run
from tests.language_models import ARCHITECTURES, Architecture, LanguageModel, Weights
from tests.train.adapters.common import FORMS, feeds_of, form, moved


def answers(
    session: ort.InferenceSession, feeds: dict[str, Any], adapter: Path | None = None
) -> list[np.ndarray[Any, Any]]:
    options = ort.RunOptions()
    if adapter is not None:
        loaded = ort.LoraAdapter()
        loaded.Load(str(adapter))
        options.add_active_adapter(loaded)
    found: list[np.ndarray[Any, Any]] = session.run(None, feeds, options)
    return found


def opened(model: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    return ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def close(found: list[Any], wanted: dict[str, Any]) -> bool:
    pairs = zip(found, wanted.values(), strict=True)
    return all(np.allclose(a, b, rtol=0, atol=3e-6 * np.abs(b).max()) for a, b in pairs)


@pytest.mark.parametrize("name", FORMS)
def test_a_run_with_and_one_without_the_adapter(name: str, tmp_path: Path) -> None:
    original, path = form(name), tmp_path / "a.onnx_adapter"
    tuned = moved(lora(original, "W", rank=2, alpha=3.0))
    save_onnxruntime(tuned, path)
    feeds, session = feeds_of(original), opened(with_adapter_inputs(tuned))
    assert close(answers(session, feeds), run(original, feeds))
    assert close(answers(session, feeds, path), run(tuned, feeds))
    assert close(answers(session, feeds), run(original, feeds))
    assert not close(answers(session, feeds, path), run(original, feeds))


@pytest.mark.parametrize(
    ("architecture", "weights"), [*zip(ARCHITECTURES, ("packed", "int8", "int4"))]
)
def test_a_trained_language_model(
    architecture: Architecture, weights: Weights, tmp_path: Path
) -> None:
    language = LanguageModel(architecture, weights)
    original, batch = language.build(), language.batch()
    small = lora(original, "*attn*", rank=2)
    trainer = Trainer(
        training_step(small, CrossEntropy("logits", axis=-1), SGD(), wrt="*.lora_*"), 0.5
    )
    losses = [trainer.step({**batch, "labels": batch["input_ids"]}) for _ in range(4)]
    assert losses[-1] < losses[0]
    path, base = tmp_path / "tuned.onnx_adapter", with_adapter_inputs(small)
    save_onnxruntime(small, path, trainer.parameters)
    assert base.ir_version >= 4
    stored = ort.AdapterFormat.read_adapter(str(path)).get_parameters()
    held = {t.name for t in base.graph.initializer}
    assert (
        stored.keys()
        == adapters_of(small).values.keys()
        <= held & {v.name for v in base.graph.input}
    )
    trainer.export(small, tmp_path / "tuned.onnx")
    tuned = onnx.load(tmp_path / "tuned.onnx")
    session, wanted = opened(base), run(tuned, batch)
    assert close(answers(session, batch, path), wanted)
    assert close(answers(session, batch), run(original, batch))
    assert not close(answers(session, batch), wanted)


def test_what_cannot_be_saved(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the model has no adapters"):
        save_onnxruntime(form("matmul"), tmp_path / "a")
    with pytest.raises(InputError, match="the model has no adapters"):
        with_adapter_inputs(form("matmul"))
    with pytest.raises(InputError, match="cannot be written"):
        save_onnxruntime(lora(form("matmul"), "W", rank=2), tmp_path / "no" / "folder")
