"""Steps before an input that change the size of an image."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.ir.emission.emit import constant
from onnxgrad.ir.ops import op
from onnxgrad.options import Range
from onnxgrad.transform.preprocessing import pixels, resampling
from onnxgrad.transform.preprocessing.modes import mode_of
from onnxgrad.transform.preprocessing.resampling import size_of
from onnxgrad.transform.preprocessing.steps import (
    HEIGHT,
    WIDTH,
    Before,
    Frame,
    Prepared,
    real,
    vector,
    whole,
)

Pixels = Annotated[int, Range(1, 1 << 20)]
Sizes = Pixels | tuple[Pixels, ...]
Level = Annotated[int, Range(0, 255)]


@dataclass(frozen=True)
class Resize(Before):
    """A resize as a library does it (`mode`), to [height, width], or of the shorter side to `size`
    as torchvision's Resize(size).
    """

    name: ClassVar[str] = "resize"
    resizes: ClassVar[bool] = True
    size: Sizes
    mode: str = "pil-bilinear"

    def __post_init__(self) -> None:
        super().__post_init__()
        mode_of(self.mode)
        pair_of(self.size, self.name)

    def emit(self, at: Prepared) -> Prepared:
        """Returns the image in its new size."""
        h, w = size_of(at.value, HEIGHT), size_of(at.value, WIDTH)
        height: Any = self.size
        width: Any = self.size
        if isinstance(self.size, int):
            rows, columns = whole(real(h)), whole(real(w))
            short = op.Min(rows, columns)
            height, width = rows * self.size / short, columns * self.size / short
        else:
            height, width = self.size
        made = resampling.resized(at.value, height, width, mode_of(self.mode))
        y, x = real(height) / real(h), real(width) / real(w)
        return Prepared(made, frame_of(at).scaled(y, x))

    def compute(self, at: Prepared) -> Prepared:
        """Returns the image in its new size."""
        h, w = at.value.shape[HEIGHT:]
        if isinstance(self.size, int):
            short = min(h, w)
            height, width = int(self.size * h / short), int(self.size * w / short)
        else:
            height, width = self.size
        made = pixels.resized(at.value, height, width, mode_of(self.mode))
        return Prepared(made, frame_of(at).scaled(height / h, width / w))


@dataclass(frozen=True)
class CenterCrop(Before):
    """The middle of the image, as torchvision's CenterCrop; zeros around a smaller image."""

    name: ClassVar[str] = "center-crop"
    resizes: ClassVar[bool] = True
    size: Sizes

    def __post_init__(self) -> None:
        super().__post_init__()
        pair_of(self.size, self.name)

    def emit(self, at: Prepared) -> Prepared:
        """Returns the middle of the image."""
        x, starts, ends, first, last = at.value, [], [], [], []
        wanted = pair_of(self.size, self.name)
        for axis, size in zip((HEIGHT, WIDTH), wanted, strict=True):
            old = whole(real(size_of(x, axis)))
            lacking = op.Max(size - old, np.int64(0))
            first.append(lacking / 2)
            last.append((lacking + 1) / 2)
            rest = real(op.Max(old, np.int64(size))) - float(size)
            starts.append(whole(op.Round(rest * 0.5)))
            ends.append(starts[-1] + size)
        x = op.Pad(x, vector(0, 0, *first, 0, 0, *last), constant(0, x.dtype))
        x = op.Slice(x, vector(*starts), vector(*ends), np.array([HEIGHT, WIDTH]))
        x = op.Reshape(x, np.array([0, 0, *wanted]))  # the size is known from here on
        y, x_move = (real(p) - real(s) for p, s in zip(first, starts, strict=True))
        return Prepared(x, frame_of(at).moved(y, x_move))

    def compute(self, at: Prepared) -> Prepared:
        """Returns the middle of the image."""
        x, moves = at.value, []
        for axis, size in zip((HEIGHT, WIDTH), pair_of(self.size, self.name), strict=True):
            lacking = max(size - x.shape[axis], 0)
            around = [(0, 0)] * 4
            around[axis] = (lacking // 2, (lacking + 1) // 2)
            x = np.pad(x, around)
            start = round((x.shape[axis] - size) / 2.0)
            x = np.take(x, range(start, start + size), axis)
            moves.append(float(lacking // 2 - start))
        return Prepared(x, frame_of(at).moved(*moves))


@dataclass(frozen=True)
class Letterbox(Before):
    """The image resized to fit into `size`, with its proportions, and `fill` around it: in the
    `center`, as Ultralytics rounds, or in the upper left `corner`, as YOLOX rounds.
    """

    name: ClassVar[str] = "letterbox"
    resizes: ClassVar[bool] = True
    size: Sizes = 640
    fill: Level = 114
    mode: str = "opencv-linear"
    place: Literal["center", "corner"] = "center"

    def __post_init__(self) -> None:
        super().__post_init__()
        mode_of(self.mode)
        pair_of(self.size, self.name)

    def emit(self, at: Prepared) -> Prepared:
        """Returns the image in its box."""
        wanted = pair_of(self.size, self.name)
        old = [real(size_of(at.value, axis)) for axis in (HEIGHT, WIDTH)]
        ratio = op.Min(*(float(size) / n for size, n in zip(wanted, old, strict=True)))
        rounded = op.Round if self.place == "center" else op.Floor
        new = [rounded(n * ratio) for n in old]
        height, width = map(whole, new)
        made = resampling.resized(at.value, height, width, mode_of(self.mode))
        first, last = [], []
        for size, n in zip(wanted, new, strict=True):
            room = float(size) - n
            if self.place == "center":
                first.append(op.Round(room * 0.5 - 0.1))
                last.append(whole(op.Round(room * 0.5 + 0.1)))
            else:
                first.append(constant(np.float64(0)))
                last.append(whole(room))
        pads = vector(0, 0, *map(whole, first), 0, 0, *last)
        x = op.Pad(made, pads, constant(self.fill, made.dtype))
        x = op.Reshape(x, np.array([0, 0, *wanted]))
        return Prepared(x, frame_of(at).scaled(ratio, ratio).moved(*first))

    def compute(self, at: Prepared) -> Prepared:
        """Returns the image in its box."""
        wanted = pair_of(self.size, self.name)
        old = at.value.shape[HEIGHT:]
        ratio = min(size / n for size, n in zip(wanted, old, strict=True))
        rounded = round if self.place == "center" else math.floor
        height, width = (rounded(n * ratio) for n in old)
        x = pixels.resized(at.value, height, width, mode_of(self.mode))
        around = [(0, 0), (0, 0)]
        for size, n in zip(wanted, (height, width), strict=True):
            half = (size - n) / 2
            center = (round(half - 0.1), round(half + 0.1))
            around.append(center if self.place == "center" else (0, size - n))
        x = np.pad(x, around, constant_values=self.fill)
        first = [float(a) for a, _ in around[HEIGHT:]]
        return Prepared(x, frame_of(at).scaled(ratio, ratio).moved(*first))


def frame_of(at: Prepared) -> Frame:
    """Returns the frame of an image."""
    if at.frame is None:
        raise InputError("the step needs an image")
    return at.frame


def pair_of(size: int | tuple[int, ...], name: str) -> tuple[int, int]:
    """Returns height and width. Raises InputError unless there are one or two numbers."""
    if isinstance(size, int):
        return size, size
    if len(size) != 2:
        raise InputError(f"{name}: size must be a number or [height, width], not {list(size)}")
    return size[0], size[1]
