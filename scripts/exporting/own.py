"""Topologies that no library provides, as plain modules: an unrolled LSTM cell and a YOLOX-like
detector.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from exporting.common import image, keep_variance


class LstmCells(nn.Module):
    """16 unrolled LSTM steps; the four gates are separate Linears on x (features wide) and on h
    (hidden wide).
    """

    def __init__(self, features: int, hidden: int, steps: int) -> None:
        super().__init__()
        self.x = nn.ModuleList(nn.Linear(features, hidden) for _ in range(4))
        self.h = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(4))
        self.hidden, self.steps = hidden, steps

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x (batch, steps, features) -> all hidden states (batch, steps, hidden), last cell
        state (batch, hidden).
        """
        h = c = x.new_zeros(x.shape[0], self.hidden)
        states = []
        for step in range(self.steps):
            now = x[:, step]
            i, f, g, o = (on_x(now) + on_h(h) for on_x, on_h in zip(self.x, self.h, strict=True))
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            states.append(h)
        return torch.stack(states, dim=1), c


def lstmcell() -> tuple[nn.Module, dict[str, Tensor]]:
    """4 x Linear(64, 96) on x, 4 x Linear(96, 96) on h, x (4, 16, 64)."""
    model = LstmCells(64, 96, 16)
    return model, {"x": torch.randn(4, 16, 64)}


class Lstm(nn.Module):
    """nn.LSTM, batch first, whose initial states are zeros of the batch's size: shape arithmetic
    in the export.
    """

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(features, hidden, num_layers=2, bidirectional=True, batch_first=True)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x (batch, steps, features) -> states (batch, steps, 2 hidden), last hidden and cell
        states.
        """
        states, (hidden, cell) = self.lstm(x)
        return states, hidden, cell


def lstm_script() -> tuple[nn.Module, dict[str, Tensor]]:
    """Two bidirectional layers of 32 units, x (3, 7, 16)."""
    return Lstm(16, 32), {"x": torch.randn(3, 7, 16)}


class ConvBnSilu(nn.Sequential):
    """Conv (no bias), BatchNorm, SiLU: the block of which YOLOX is made."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1) -> None:
        conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
        super().__init__(conv, nn.BatchNorm2d(outputs), nn.SiLU())


class Csp(nn.Module):
    """Cross-stage-partial layer: two 1x1 branches of one input, residual blocks on the first, a
    1x1 over both.
    """

    def __init__(self, inputs: int, outputs: int, blocks: int) -> None:
        super().__init__()
        half = outputs // 2
        self.main, self.skip = ConvBnSilu(inputs, half), ConvBnSilu(inputs, half)
        steps = (
            nn.Sequential(ConvBnSilu(half, half), ConvBnSilu(half, half, 3)) for _ in range(blocks)
        )
        self.blocks = nn.ModuleList(steps)
        self.out = ConvBnSilu(outputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """x (n, inputs, h, w) -> (n, outputs, h, w)."""
        main = self.main(x)
        for block in self.blocks:
            main = main + block(main)
        result: Tensor = self.out(torch.cat([main, self.skip(x)], dim=1))
        return result


class Head(nn.Module):
    """Decoupled head: a class tower and a box tower of two 3x3 each; objectness shares the box
    tower.
    """

    def __init__(self, inputs: int, width: int, classes: int) -> None:
        super().__init__()
        self.stem = ConvBnSilu(inputs, width)
        self.cls_tower = nn.Sequential(ConvBnSilu(width, width, 3), ConvBnSilu(width, width, 3))
        self.box_tower = nn.Sequential(ConvBnSilu(width, width, 3), ConvBnSilu(width, width, 3))
        self.cls, self.box, self.obj = (
            nn.Conv2d(width, classes, 1),
            nn.Conv2d(width, 4, 1),
            nn.Conv2d(width, 1, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        """x (n, inputs, h, w) -> (n, h * w, 4 + 1 + classes)."""
        x = self.stem(x)
        box = self.box_tower(x)
        parts = [
            self.box(box),
            torch.sigmoid(self.obj(box)),
            torch.sigmoid(self.cls(self.cls_tower(x))),
        ]
        return torch.cat(parts, dim=1).flatten(2).permute(0, 2, 1)


class Yolox(nn.Module):
    """Focus stem, four CSP stages, a path-aggregation neck and three decoupled heads: 65 Convs."""

    def __init__(self, width: int, head: int, classes: int) -> None:
        super().__init__()
        widths = [width, 2 * width, 4 * width, 8 * width, 16 * width]
        self.stem = ConvBnSilu(12, width, 3)
        self.stages = nn.ModuleList(
            nn.Sequential(ConvBnSilu(a, b, 3, 2), Csp(b, b, 1)) for a, b in pairwise(widths)
        )
        _, _, small, middle, large = widths
        self.reduce_large, self.reduce_middle = ConvBnSilu(large, middle), ConvBnSilu(middle, small)
        self.down_middle, self.down_small = Csp(2 * middle, middle, 0), Csp(2 * small, small, 0)
        self.stride_small, self.stride_middle = (
            ConvBnSilu(small, small, 3, 2),
            ConvBnSilu(middle, middle, 3, 2),
        )
        self.up_middle, self.up_large = Csp(2 * small, middle, 0), Csp(2 * middle, large, 0)
        self.heads = nn.ModuleList(Head(w, head, classes) for w in (small, middle, large))

    def forward(self, x: Tensor) -> Tensor:
        """x (n, 3, 32 a, 32 b) -> (n, anchors, 5 + classes)."""
        corners = [x[..., i::2, j::2] for j in (0, 1) for i in (0, 1)]
        x = self.stem(torch.cat(corners, dim=1))
        levels = []
        for stage in self.stages:
            x = stage(x)
            levels.append(x)
        _, c3, c4, c5 = levels
        top = self.reduce_large(c5)
        p4 = self.down_middle(
            torch.cat([nn.functional.interpolate(top, scale_factor=2.0), c4], dim=1)
        )
        mid = self.reduce_middle(p4)
        p3 = self.down_small(
            torch.cat([nn.functional.interpolate(mid, scale_factor=2.0), c3], dim=1)
        )
        n4 = self.up_middle(torch.cat([self.stride_small(p3), mid], dim=1))
        n5 = self.up_large(torch.cat([self.stride_middle(n4), top], dim=1))
        return torch.cat(
            [head(level) for head, level in zip(self.heads, (p3, n4, n5), strict=True)], dim=1
        )


def yolox() -> tuple[nn.Module, dict[str, Tensor]]:
    """A YOLOX-like detector with 20 classes, first width 4, head width 8; x (1, 3, 128, 128)."""
    return keep_variance(Yolox(4, 8, 20)), {"x": image(1, 3, 128, 128)}


def yolox_script() -> tuple[nn.Module, dict[str, Tensor]]:
    """The same detector for two images of 64x64."""
    return yolox()[0], {"x": image(2, 3, 64, 64)}
