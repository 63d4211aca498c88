"""Convolutional networks and a recurrent one, for benchmarks of gradients: MobileNetV2, ConvNeXt-T
and a stack of two LSTMs as their papers have them, in plain PyTorch.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from exporting.losses import Built, CrossEntropy

# expansion, channels, blocks, stride of the first (Sandler et al. 2018, table 2)
_INVERTED = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
# channels, blocks (Liu et al. 2022, the tiny one)
_STAGES = ((96, 3), (192, 3), (384, 9), (768, 3))


def _norm_conv(
    inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1
) -> list[nn.Module]:
    """Conv, BatchNorm, ReLU6."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(outputs), nn.ReLU6()]


class InvertedResidual(nn.Module):
    """Wider, depthwise, narrower."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inputs * expansion
        layers = _norm_conv(inputs, wide, 1) if expansion > 1 else []
        layers += _norm_conv(wide, wide, 3, stride, wide)
        layers += [nn.Conv2d(wide, outputs, 1, bias=False), nn.BatchNorm2d(outputs)]
        self.conv = nn.Sequential(*layers)
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """x (n, inputs, h, w) -> (n, outputs, h / stride, w / stride)."""
        y: Tensor = self.conv(x)
        return x + y if self.adds else y


class MobileNetV2(nn.Module):
    """Width 1."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        layers, inputs = _norm_conv(3, 32, 3, 2), 32
        for expansion, channels, blocks, stride in _INVERTED:
            for i in range(blocks):
                layers.append(
                    InvertedResidual(inputs, channels, stride if i == 0 else 1, expansion)
                )
                inputs = channels
        self.features = nn.Sequential(*layers, *_norm_conv(inputs, 1280, 1))
        self.classifier = nn.Linear(1280, classes)

    def forward(self, x: Tensor) -> Tensor:
        """x (n, 3, h, w) -> (n, classes)."""
        result: Tensor = self.classifier(self.features(x).mean(dim=(2, 3)))
        return result


class ChannelsLast(nn.Module):
    """LayerNorm over the channels of (n, c, h, w)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        """x (n, c, h, w) -> the same shape."""
        result: Tensor = self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return result


class Block(nn.Module):
    """A depthwise Conv of 7, LayerNorm, two Linears with GELU between them, a scale."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.wider, self.narrower = (
            nn.Linear(channels, 4 * channels),
            nn.Linear(4 * channels, channels),
        )
        self.gamma = nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        """x (n, c, h, w) -> the same shape."""
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.gamma * self.narrower(nn.functional.gelu(self.wider(y)))
        return x + y.permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    """Patches of 4, then four stages with a Conv of 2 between them."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = 3
        for channels, blocks in _STAGES:
            if inputs == 3:
                layers += [nn.Conv2d(3, channels, 4, 4), ChannelsLast(channels)]
            else:
                layers += [ChannelsLast(inputs), nn.Conv2d(inputs, channels, 2, 2)]
            layers += [Block(channels) for _ in range(blocks)]
            inputs = channels
        self.features, self.norm = nn.Sequential(*layers), nn.LayerNorm(inputs, eps=1e-6)
        self.head = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        """x (n, 3, h, w) -> (n, classes)."""
        result: Tensor = self.head(self.norm(self.features(x).mean(dim=(2, 3))))
        return result


class Stacked(nn.Module):
    """Two LSTM layers and a Linear per position."""

    def __init__(self, inputs: int, width: int, classes: int) -> None:
        super().__init__()
        self.layers = nn.LSTM(inputs, width, num_layers=2, batch_first=True)
        self.out = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """x (n, steps, inputs) -> (n, steps, classes)."""
        result: Tensor = self.out(self.layers(x)[0])
        return result


def mobilenet_v2(classes: int) -> Built:
    """8 images of 64x64."""
    labels = torch.randint(0, classes, (8,))
    return CrossEntropy(MobileNetV2(classes)), {"x": torch.randn(8, 3, 64, 64), "labels": labels}


def convnext(classes: int) -> Built:
    """8 images of 64x64."""
    labels = torch.randint(0, classes, (8,))
    return CrossEntropy(ConvNeXt(classes)), {"x": torch.randn(8, 3, 64, 64), "labels": labels}


def lstm(classes: int) -> Built:
    """16 sequences of 64 steps, 128 inputs, 256 wide."""
    labels = torch.randint(0, classes, (16, 64))
    return CrossEntropy(Stacked(128, 256, classes)), {
        "x": torch.randn(16, 64, 128),
        "labels": labels,
    }
