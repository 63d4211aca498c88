"""The networks whose training is compared with PyTorch's, with their losses (ours and PyTorch's)
and batches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from onnxgrad import train


@dataclass(frozen=True)
class Case:
    """A network, its loss (ours and PyTorch's), its batches, and held-out data in `accuracy`."""

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
    """A transformer of the transformers package as a function of one tensor.

    masked: pass a mask of ones; without it GPT-2 has an operator that TorchScript cannot export.
    """

    def __init__(self, model: nn.Module, name: str, masked: bool = False) -> None:
        super().__init__()
        self.model, self.name, self.masked = model, name, masked

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The logits."""
        mask = {"attention_mask": torch.ones_like(x)} if self.masked else {}
        return self.model(**{self.name: x}, **mask).logits  # type: ignore[no-any-return]


def _gpt2(masked: bool = False) -> nn.Module:
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
    return _Logits(hf.GPT2LMHeadModel(config), "input_ids", masked)


def _vit(spread: float = 0.02) -> nn.Module:
    """spread: the standard deviation of the initial weights. With the default of 0.02, the network
    stays at its first loss for 60 steps, and with SGD forever.
    """
    import transformers as hf

    config = hf.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        image_size=8, patch_size=2, num_channels=1, num_labels=10,
        attn_implementation="eager", initializer_range=spread,
    )  # fmt: skip
    return _Logits(hf.ViTForImageClassification(config), "pixel_values")


# an embedding with padding_idx has no gradient for that row, which ONNX cannot express
_TEXT: dict[str, Any] = {
    "vocab_size": 60, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64,
    "max_position_embeddings": 16, "attn_implementation": "eager", "pad_token_id": None,
}  # fmt: skip


def _bert() -> nn.Module:
    import transformers as hf

    return _Logits(hf.BertForMaskedLM(hf.BertConfig(num_hidden_layers=2, **_TEXT)), "input_ids")


def _albert() -> nn.Module:
    import transformers as hf

    config = hf.AlbertConfig(num_hidden_layers=3, embedding_size=16, **_TEXT)
    return _Logits(hf.AlbertForMaskedLM(config), "input_ids")


class _Block(nn.Module):
    """A block of a GPT."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """The next hidden state."""
        y = self.norm1(x)
        x = x + self.attention(y, y, y, attn_mask=mask, need_weights=False)[0]
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class _Gpt(nn.Module):
    """A GPT of PyTorch's own modules; the head is tied to the embedding."""

    def __init__(self, words: int = 60, width: int = 32, length: int = 16) -> None:
        super().__init__()
        self.table, self.place = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(_Block(width, 2) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.head.weight = self.table.weight
        nn.init.normal_(self.table.weight, std=0.02)
        nn.init.normal_(self.place.weight, std=0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The logits."""
        length, dtype = x.shape[1], self.table.weight.dtype
        mask = torch.triu(torch.full((length, length), float("-inf"), dtype=dtype), 1)
        h = self.table(x) + self.place(torch.arange(length))
        for block in self.blocks:
            h = block(h, mask)
        return self.head(self.norm(h))  # type: ignore[no-any-return]


class _MixerBlock(nn.Module):
    """A block of an MLP-Mixer."""

    def __init__(self, places: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.places = nn.Sequential(
            nn.Linear(places, 2 * places), nn.GELU(), nn.Linear(2 * places, places)
        )
        self.channels = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The next hidden state."""
        x = x + self.places(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))  # type: ignore[no-any-return]


class _Mixer(nn.Module):
    """An MLP-Mixer of 16 patches."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, width, 2, 2)
        self.blocks = nn.Sequential(*(_MixerBlock(16, width) for _ in range(2)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The logits."""
        h = self.blocks(self.patch(x).flatten(2).transpose(1, 2))
        return self.head(self.norm(h).mean(1))  # type: ignore[no-any-return]


def _twice(before: int, after: int) -> nn.Module:
    """Two convolutions, each with GroupNorm."""
    return nn.Sequential(
        nn.Conv2d(before, after, 3, padding=1, bias=False), nn.GroupNorm(2, after), nn.SiLU(),
        nn.Conv2d(after, after, 3, padding=1, bias=False), nn.GroupNorm(2, after), nn.SiLU(),
    )  # fmt: skip


class _UNet(nn.Module):
    """A U-Net that removes noise from an image."""

    def __init__(self, n: int = 8) -> None:
        super().__init__()
        self.first, self.second, self.middle = _twice(1, n), _twice(n, 2 * n), _twice(2 * n, 2 * n)
        self.up, self.last = nn.ConvTranspose2d(2 * n, 2 * n, 2, 2), _twice(4 * n, n)
        self.out = nn.Conv2d(n, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The image."""
        pool = nn.functional.max_pool2d
        b = self.second(pool(self.first(x), 2))
        c = self.last(torch.cat([self.up(self.middle(pool(b, 2))), b], 1))
        return self.out(nn.functional.interpolate(c, scale_factor=2.0))  # type: ignore[no-any-return]


def _patterns(steps: int) -> list[dict[str, torch.Tensor]]:
    """Ten images with strong noise."""
    generator = torch.Generator().manual_seed(7)
    images, batches = torch.rand(10, 1, 8, 8, generator=generator), []
    for _ in range(steps):
        y = torch.randint(0, 10, (16,), generator=generator)
        noise = 0.3 * torch.randn(16, 1, 8, 8, generator=generator)
        batches.append({"x": images[y] + noise, "labels": y})
    return batches


def _noisy(steps: int) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(4)
    images = [batch["x"][:8] for batch in _digit_batches((1, 8, 8))(steps)]
    return [{"x": y + 0.3 * torch.randn(y.shape, generator=generator), "target": y} for y in images]


def _square_loss(image: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return nn.functional.mse_loss(image, batch["target"])


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
    "vit": Case(lambda: _vit(0.1), train.CrossEntropy(), _cross_entropy, _digit_batches((1, 8, 8))),
    "vit_at_rest": Case(_vit, train.CrossEntropy(), _cross_entropy, _patterns),
    "cnn_on_patterns": Case(_cnn, train.CrossEntropy(), _cross_entropy, _patterns),
    "gpt": Case(_Gpt, train.SequenceCrossEntropy(shift=0), _token_loss, _tokens),
    "gpt2_masked": Case(
        lambda: _gpt2(masked=True), train.SequenceCrossEntropy(shift=0), _token_loss, _tokens
    ),
    "mixer": Case(_Mixer, train.CrossEntropy(), _cross_entropy, _digit_batches((1, 8, 8))),
    "unet": Case(_UNet, train.MSE(), _square_loss, _noisy),
    "bert_tiny": Case(_bert, train.SequenceCrossEntropy(shift=0), _token_loss, _tokens),
    "albert_tiny": Case(_albert, train.SequenceCrossEntropy(shift=0), _token_loss, _tokens),
}
