"""Training models: each is a module whose forward takes the inputs and returns the scalar loss.

The parameters of the wrapped network carry the prefix `model.`, which the exported file drops
again. Every builder takes `full`: MODELS' own configuration if true, a narrow one of the same
structure if false.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Built = tuple[nn.Module, dict[str, Tensor]]


@dataclass(frozen=True)
class Training:
    """One training model: how to build it and what its forward graph is expected to count."""

    name: str
    build: Callable[[bool], Built]
    nodes: int | None = (
        None  # of the full-size forward graph, loss included (masks fold away in the small ones)
    )
    train: bool = False  # train() instead of eval(): BatchNormalization uses the batch's statistics
    seed: int = (
        0  # another one where float32 and float64 disagree about the sign of some ReLU's input
    )
    classic: bool = (
        False  # the TorchScript exporter, which writes LSTM and GRU as one operator each
    )
    full_only: bool = False  # too large to keep a small one


class WithLoss(nn.Module):
    """A network, and a loss between what it returns and a target."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model


class MeanSquares(WithLoss):
    """Mean squared error."""

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        """x as the network wants it, target like its result -> scalar."""
        return F.mse_loss(self.model(x), target)


class CrossEntropy(WithLoss):
    """Cross entropy over the last axis, averaged over all leading ones."""

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        """x as the network wants it, labels int64 of the result's leading shape -> scalar."""
        return cross_entropy(self.model(x), labels)


class LanguageModel(WithLoss):
    """Cross entropy over all positions of a causal language model."""

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        """ids and labels (batch, sequence) int64 -> scalar."""
        return cross_entropy(self.model(input_ids=ids, use_cache=False).logits, labels)


class Classifier(WithLoss):
    """A sequence classifier with a padding mask and the library's own loss."""

    def forward(self, ids: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
        """ids and mask (batch, sequence) int64, labels (batch,) int64 -> scalar."""
        loss: Tensor = self.model(input_ids=ids, attention_mask=mask, labels=labels).loss
        return loss


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """logits (..., classes), labels (...) int64 -> scalar mean."""
    if logits.dim() == 2:
        return F.cross_entropy(logits, labels)
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))


def mlp(full: bool) -> Built:
    """Linear, ReLU, Linear, GELU, Linear, mean squared error."""
    first, hidden, last, batch = (256, 512, 64, 64) if full else (16, 24, 8, 4)
    layers = (
        nn.Linear(first, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.GELU(),
        nn.Linear(hidden, last),
    )
    model = MeanSquares(nn.Sequential(*layers))
    return model, {"x": torch.randn(batch, first), "target": torch.randn(batch, last)}


def _transformer(config: str, full: bool, **rest: Any) -> Any:
    hf = importlib.import_module("transformers")
    hidden, vocabulary = (256, 2000) if full else (16, 60)
    made = getattr(hf, config)(
        vocab_size=vocabulary,
        attn_implementation="eager",
        bos_token_id=1,
        eos_token_id=2,
        **{k: hidden if v == "hidden" else v for k, v in rest.items()},
    )
    return hf, made


def _tokens(full: bool, batch: int) -> Tensor:
    return torch.randint(3, 2000, (batch, 64)) if full else torch.randint(3, 60, (2, 8))


def bert(full: bool) -> Built:
    """BertForSequenceClassification, 4 layers, 4 heads, 8 labels; the last sequence is padded."""
    hf, config = _transformer(
        "BertConfig",
        full,
        hidden_size="hidden",
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=1024 if full else 32,
        num_labels=8,
        max_position_embeddings=512 if full else 8,
    )
    ids = _tokens(full, 8)
    mask = torch.ones_like(ids)
    mask[-1, 5:] = 0
    model = Classifier(hf.BertForSequenceClassification(config))
    return model, {"ids": ids, "mask": mask, "labels": torch.randint(0, 8, (len(ids),))}


def gpt2(full: bool) -> Built:
    """GPT2LMHeadModel, 4 layers, 4 heads, tied head."""
    hf, config = _transformer(
        "GPT2Config", full, n_embd="hidden", n_layer=4, n_head=4, n_positions=128 if full else 8
    )
    ids = _tokens(full, 4)
    return LanguageModel(hf.GPT2LMHeadModel(config)), {"ids": ids, "labels": torch.roll(ids, -1, 1)}


def gpt2_deep(full: bool) -> Built:
    """GPT2LMHeadModel, 12 layers, 16 sequences of 128 tokens: activations outweigh weights (for
    checkpointing).
    """
    hf, config = _transformer(
        "GPT2Config", full, n_embd="hidden", n_layer=12, n_head=4, n_positions=128
    )
    ids = torch.randint(3, 2000 if full else 60, (16, 128))
    return LanguageModel(hf.GPT2LMHeadModel(config)), {"ids": ids, "labels": torch.roll(ids, -1, 1)}


def llama(full: bool) -> Built:
    """LlamaForCausalLM, 4 layers, 4 heads, 2 key/value heads."""
    hf, config = _transformer(
        "LlamaConfig",
        full,
        hidden_size="hidden",
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=688 if full else 24,
        max_position_embeddings=128,
    )
    ids = _tokens(full, 4)
    return LanguageModel(hf.LlamaForCausalLM(config)), {
        "ids": ids,
        "labels": torch.roll(ids, -1, 1),
    }


def _images(full: bool, classes: int, small: int) -> dict[str, Tensor]:
    batch, size = (8, 64) if full else (2, small)
    return {"x": torch.randn(batch, 3, size, size), "labels": torch.randint(0, classes, (batch,))}


def resnet18(full: bool) -> Built:
    """torchvision ResNet18; small: widths / 16, 10 classes."""
    vision = importlib.import_module("exporting.vision")
    classes = 100 if full else 10
    with vision.narrow(1 if full else 16, classes):
        network = vision.tv.resnet18(num_classes=classes)
    return CrossEntropy(network), _images(
        full, classes, 48
    )  # 48: the last stage is 2x2, enough for batch statistics


def vit(full: bool) -> Built:
    """timm VisionTransformer, patch 8, depth 6, 3 heads, unfused attention."""
    importlib.import_module("timm.layers").set_fused_attn(False)
    transformer = importlib.import_module("timm.models.vision_transformer").VisionTransformer
    classes, size, width = (100, 64, 192) if full else (10, 32, 12)
    network = transformer(
        img_size=size, patch_size=8, embed_dim=width, depth=6, num_heads=3, num_classes=classes
    )
    return CrossEntropy(network), _images(full, classes, 32)


def _for_benchmarks(kind: str) -> Callable[[bool], Built]:
    """A builder for a function of exporting.convolutional."""

    def build(full: bool) -> Built:
        made: Built = getattr(importlib.import_module("exporting.convolutional"), kind)(100)
        return made

    return build


def _own(kind: str, **sizes: tuple[int, int]) -> Callable[[bool], Built]:
    """A builder for a class of exporting.small; sizes are (full, small)."""

    def build(full: bool) -> Built:
        made: Built = getattr(importlib.import_module("exporting.small"), kind)(
            **{k: v[0] if full else v[1] for k, v in sizes.items()}
        )
        return made

    return build


MODELS: Mapping[str, Training] = {
    t.name: t
    for t in (
        Training("mlp", mlp, 12),
        Training("bert", bert, 179),
        Training("gpt2", gpt2, 162),
        Training("gpt2_deep", gpt2_deep, full_only=True),
        Training("llama", llama, 284),
        Training("resnet18", resnet18, 70, seed=2),
        Training("resnet18_train", resnet18, train=True, seed=1),
        Training("vit", vit, 226),
        Training("lstm_tagger", _own("lstm_tagger", width=(128, 8)), classic=True),
        Training("gru_tagger", _own("gru_tagger", width=(128, 8)), classic=True),
        Training("unet", _own("unet", width=(64, 8), size=(64, 16))),
        Training("mobilenet_v2", _for_benchmarks("mobilenet_v2"), full_only=True),
        Training("convnext", _for_benchmarks("convnext"), full_only=True),
        Training("lstm", _for_benchmarks("lstm"), classic=True, full_only=True),
        Training("cnn", _own("cnn", width=(64, 8), size=(64, 17))),
    )
}
