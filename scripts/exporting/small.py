"""Training models that no library provides: LSTM and GRU taggers, a UNet with GroupNorm, a CNN
of odd convolutions.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from exporting.losses import Built, CrossEntropy, MeanSquares


class Tagger(nn.Module):
    """Embedding, two recurrent layers (the first bidirectional), a Linear per position."""

    def __init__(
        self, kind: type[nn.LSTM] | type[nn.GRU], words: int, width: int, tags: int
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.both = kind(width, width, batch_first=True, bidirectional=True)
        self.forth = kind(2 * width, width, batch_first=True)
        self.out = nn.Linear(width, tags)

    def forward(self, ids: Tensor) -> Tensor:
        """ids (batch, sequence) int64 -> (batch, sequence, tags)."""
        hidden, _ = self.both(self.embed(ids))
        hidden, _ = self.forth(hidden)
        result: Tensor = self.out(hidden)
        return result


def _tagger(kind: type[nn.LSTM] | type[nn.GRU], width: int) -> Built:
    model = CrossEntropy(Tagger(kind, 40, width, 5))
    return model, {"x": torch.randint(0, 40, (3, 7)), "labels": torch.randint(0, 5, (3, 7))}


def lstm_tagger(width: int) -> Built:
    """3 sequences of 7 words, 5 tags."""
    return _tagger(nn.LSTM, width)


def gru_tagger(width: int) -> Built:
    """3 sequences of 7 words, 5 tags."""
    return _tagger(nn.GRU, width)


class Block(nn.Module):
    """Conv, GroupNorm, SiLU."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(inputs, outputs, 3, stride, 1), nn.GroupNorm(4, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """x (n, inputs, h, w) -> (n, outputs, h / stride, w / stride)."""
        return F.silu(self.norm(self.conv(x)))


class Unet(nn.Module):
    """Two levels down by strided Conv, up by nearest and by bilinear resampling and by
    ConvTranspose, with skips.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.down1, self.down2 = (
            Block(3, width),
            Block(width, 2 * width, 2),
            Block(2 * width, 2 * width, 2),
        )
        self.down3, self.up3 = (
            Block(2 * width, 2 * width, 2),
            nn.ConvTranspose2d(2 * width, 2 * width, 3, 2, 1, 1),
        )
        self.up2, self.up1 = Block(4 * width, 2 * width), Block(4 * width, width)
        self.last = nn.Conv2d(2 * width, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        """x (n, 3, 8 a, 8 b) -> the same shape."""
        a = self.first(x)
        b = self.down1(a)
        c = self.down2(b)
        up = torch.cat([self.up3(self.down3(c)), c], dim=1)
        up = F.interpolate(self.up2(up), scale_factor=2.0, mode="nearest")
        up = self.up1(torch.cat([up, b], dim=1))
        up = F.interpolate(up, scale_factor=2.0, mode="bilinear", align_corners=False)
        result: Tensor = self.last(torch.cat([up, a], dim=1))
        return result


def unet(width: int, size: int) -> Built:
    """Denoising by mean squared error, batch 2."""
    return MeanSquares(Unet(width)), {
        "x": torch.randn(2, 3, size, size),
        "target": torch.randn(2, 3, size, size),
    }


class Cnn(nn.Module):
    """Grouped, depthwise, dilated, strided and asymmetrically padded Convs, max and average
    pooling with ceil_mode.
    """

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(
            3, width, (3, 4), padding="same"
        )  # an even kernel: one more pixel on one side
        self.grouped = nn.Conv2d(width, 2 * width, 3, padding=1, groups=4)
        self.depthwise = nn.Conv2d(2 * width, 2 * width, (5, 3), (2, 1), (2, 1), groups=2 * width)
        self.dilated = nn.Conv2d(2 * width, width, 3, dilation=(2, 3), padding=(2, 3))
        self.odd = nn.Conv2d(width, width, (2, 3), (1, 2))
        self.out = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """x (n, 3, h, w) -> (n, classes)."""
        x = torch.tanh(self.stem(x))
        x = F.max_pool2d(F.leaky_relu(self.grouped(x), 0.1), 3, 2, 1, ceil_mode=True)
        x = F.elu(self.depthwise(x))
        x = F.avg_pool2d(
            F.hardswish(self.dilated(x)), 2, 2, ceil_mode=True, count_include_pad=False
        )
        x = F.softplus(self.odd(F.pad(x, (2, 0, 0, 1))))
        result: Tensor = self.out(x.mean(dim=(2, 3)))
        return result


def cnn(width: int, size: int) -> Built:
    """5 classes, batch 2."""
    return CrossEntropy(Cnn(width, 5)), {
        "x": torch.randn(2, 3, size, size),
        "labels": torch.randint(0, 5, (2,)),
    }
