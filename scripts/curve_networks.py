"""The networks whose training is compared with PyTorch's, their losses in both worlds and their
batches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from onnxgrad import train


@dataclass(frozen=True)
class Case:
    """A network, its loss in both worlds, and its batches; `accuracy`: on what it is judged at
    the end, if at all.
    """

    build: Callable[[], nn.Module]
    loss: train.Loss
    torch_loss: Callable[[torch.Tensor, dict[str, torch.Tensor]], torch.Tensor]
    batches: Callable[[int], list[dict[str, torch.Tensor]]]
    held_out: Callable[[], tuple[torch.Tensor, torch.Tensor]] | None = None


def _digits() -> tuple[torch.Tensor, torch.Tensor]:
    from sklearn.datasets import load_digits

    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    return torch.tensor(data.data[order] / 16, dtype=torch.float32), torch.tensor(
        data.target[order]
    )


def _digit_batches(shape: tuple[int, ...]) -> Callable[[int], list[dict[str, torch.Tensor]]]:
    def batches(steps: int) -> list[dict[str, torch.Tensor]]:
        x, y = _digits()
        x, y = x[:1500].reshape(-1, *shape), y[:1500]
        rng = np.random.default_rng(1)
        chosen = [rng.integers(0, len(y), 32) for _ in range(steps)]
        return [{"x": x[i], "labels": y[i]} for i in chosen]

    return batches


def _digits_held_out(shape: tuple[int, ...]) -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:
    return lambda: (_digits()[0][1500:].reshape(-1, *shape), _digits()[1][1500:])


def _cross_entropy(logits: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return nn.functional.cross_entropy(logits, batch["labels"])


def _mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 10)
    )


def _cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


class _Logits(nn.Module):
    """A transformer of the transformers package as a function of one tensor."""

    def __init__(self, model: nn.Module, name: str) -> None:
        super().__init__()
        self.model, self.name = model, name

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The logits."""
        return self.model(**{self.name: x}).logits  # type: ignore[no-any-return]


def _gpt2() -> nn.Module:
    import transformers as hf

    config = hf.GPT2Config(
        vocab_size=60,
        n_positions=16,
        n_embd=32,
        n_layer=2,
        n_head=2,
        use_cache=False,
        attn_implementation="eager",
    )
    return _Logits(hf.GPT2LMHeadModel(config), "input_ids")


def _vit() -> nn.Module:
    import transformers as hf

    config = hf.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        image_size=8, patch_size=2, num_channels=1, num_labels=10,
        attn_implementation="eager",
    )  # fmt: skip
    return _Logits(hf.ViTForImageClassification(config), "pixel_values")


def _tokens(steps: int) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(3)
    starts = torch.randint(0, 60, (steps, 8, 1), generator=generator)
    x = (starts + 7 * torch.arange(16)) % 60  # a sequence that can be learned
    return [{"x": row, "labels": torch.roll(row, -1, 1)} for row in x]


def _token_loss(logits: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return nn.functional.cross_entropy(logits.reshape(-1, 60), batch["labels"].reshape(-1))


CASES = {
    "digits_mlp": Case(
        _mlp,
        train.CrossEntropy(),
        _cross_entropy,
        _digit_batches((64,)),
        _digits_held_out((64,)),
    ),
    "digits_cnn": Case(
        _cnn,
        train.CrossEntropy(),
        _cross_entropy,
        _digit_batches((1, 8, 8)),
        _digits_held_out((1, 8, 8)),
    ),
    "gpt2_tiny": Case(_gpt2, train.SequenceCrossEntropy(shift=0), _token_loss, _tokens),
    "vit_tiny": Case(_vit, train.CrossEntropy(), _cross_entropy, _digit_batches((1, 8, 8))),
}
