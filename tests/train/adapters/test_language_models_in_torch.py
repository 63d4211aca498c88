"""Adapters of quantised language models train as in PyTorch on the dequantised weights."""

from __future__ import annotations

import numpy as np
import pytest

from onnxgrad.train import SequenceCrossEntropy, Trainer, training_step
from onnxgrad.train.adapters import lora
from tests.language_models import ARCHITECTURES, WEIGHTS, Architecture, LanguageModel, Weights


@pytest.mark.torch
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_200_steps_follow_pytorch(architecture: Architecture, weights: Weights) -> None:
    pytest.importorskip("torch")
    from tests.torch_language_models import both

    losses, wanted = both(LanguageModel(architecture, weights), "*attn*,*mlp*", 200, 1e-3)
    assert wanted[-1] < 0.8 * wanted[0]
    np.testing.assert_allclose(losses, wanted, rtol=1e-5)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_padding_behind_a_prompt_changes_neither_loss_nor_adapters(
    architecture: Architecture,
) -> None:
    """As `help training` says: the mask stays 1, labels are ignored."""
    language = LanguageModel(architecture, "packed")
    small = lora(language.build(), "*attn*", rank=2)
    ends = []
    for length in (6, 9):
        batch = language.batch(3, length)
        tokens = language.batch(3, 6)["input_ids"]
        batch["input_ids"] = np.pad(tokens, [(0, 0), (0, length - 6)])
        labels = np.pad(tokens, [(0, 0), (0, length - 6)], constant_values=-100)
        trainer = Trainer(
            training_step(small, SequenceCrossEntropy("logits"), wrt="*.lora_*"), 1e-2, threads=1
        )
        losses = [trainer.step({**batch, "labels": labels}) for _ in range(5)]
        ends.append([np.array(losses), *trainer.parameters.values()])
    for short, long in zip(*ends, strict=True):
        np.testing.assert_allclose(long, short, atol=1e-4)
