"""Steps before an input that change the size of an image."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.ir.emission.emit import constant
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var
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
# how sizes and places are rounded
Rounding = Literal["torchvision", "transformers"]


@dataclass(frozen=True)
class Resize(Before):
    """A resize as a library does it (`mode`): to [height, width], or with the proportions of the
    image. Then `size` is the shorter side, unless the longer one would exceed `max_size`; without
    `size`, the longer side is `max_size`. `rounding`: of the other side, as torchvision's
    Resize(size, max_size=...), or as Transformers for `shortest_edge` and `longest_edge`.
    """

    name: ClassVar[str] = "resize"
    resizes: ClassVar[bool] = True
    size: Sizes | None = None
    mode: str = "pil-bilinear"
    max_size: Pixels | None = None
    rounding: Rounding = "torchvision"

    def __post_init__(self) -> None:
        super().__post_init__()
        mode_of(self.mode)
        size, most = self.size, self.max_size
        if size is None and most is None:
            raise InputError("resize needs the option size or max_size: write resize{size=...}")
        if size is not None:
            pair_of(size, self.name)
        if isinstance(size, tuple) and most is not None:
            raise InputError(f"resize: size {list(size)} is exact: leave max_size out")
        if self.rounding == "transformers" and (size is None or most is None):
            raise InputError("resize: rounding=transformers needs size and max_size")
        plain = self.rounding == "torchvision"
        if plain and isinstance(size, int) and most is not None and most <= size:
            raise InputError(f"resize: max_size must be above size, {size}; got {most}")

    def emit(self, at: Prepared) -> Prepared:
        """Returns the image in its new size."""
        h, w = size_of(at.value, HEIGHT), size_of(at.value, WIDTH)
        height: Any
        width: Any
        if isinstance(self.size, tuple):
            height, width = self.size
        else:
            rows, columns = whole(real(h)), whole(real(w))
            sides = op.Min(rows, columns), op.Max(rows, columns)
            short, long = self._emit_sides(*sides, self.size)
            upright = op.Less(columns, rows)
            height, width = op.Where(upright, long, short), op.Where(upright, short, long)
        made = resampling.resized(at.value, height, width, mode_of(self.mode))
        y, x = real(height) / real(h), real(width) / real(w)
        return Prepared(made, frame_of(at).scaled(y, x))

    def compute(self, at: Prepared) -> Prepared:
        """Returns the image in its new size."""
        h, w = at.value.shape[HEIGHT:]
        if isinstance(self.size, tuple):
            height, width = self.size
        else:
            short, long = self._sides(min(h, w), max(h, w), self.size)
            height, width = (long, short) if w < h else (short, long)
        made = pixels.resized(at.value, height, width, mode_of(self.mode))
        return Prepared(made, frame_of(at).scaled(height / h, width / w))

    def _emit_sides(self, short: Var, long: Var, size: int | None) -> tuple[Any, Any]:
        """Returns the new shorter and longer side."""
        most = self.max_size
        if size is None:
            return short * most / long, np.int64(most or 0)
        if most is None:
            return np.int64(size), long * size / short
        if self.rounding == "torchvision":
            new = long * size / short
            limited = op.Greater(new, np.int64(most))
            return op.Where(limited, np.int64(most * size) / new, size), op.Min(new, np.int64(most))
        limited = op.Greater(real(long) / real(short) * float(size), float(most))
        exact = op.Where(limited, real(short) * float(most) / real(long), float(size))
        new = whole(op.Round(exact))
        other = whole(exact * real(long) / real(short))
        return new, op.Where(op.Equal(new, short), long, other)

    def _sides(self, short: int, long: int, size: int | None) -> tuple[int, int]:
        """Returns the new shorter and longer side."""
        most = self.max_size
        if size is None:
            return int((most or 0) * short / long), most or 0
        new = int(size * long / short)
        if most is None:
            return size, new
        if self.rounding == "torchvision":
            return (size, new) if new <= most else (int(most * size / new), most)
        exact: float = most * short / long if long / short * size > most else size
        other = long if round(exact) == short else int(exact * long / short)
        return round(exact), other


@dataclass(frozen=True)
class CenterCrop(Before):
    """The middle of the image, as torchvision's CenterCrop; zeros around a smaller image. With
    `rounding`: half of an odd rest is rounded to the even number (torchvision) or down
    (Transformers), and of an odd number of zeros the smaller half is first (torchvision) or last.
    """

    name: ClassVar[str] = "center-crop"
    resizes: ClassVar[bool] = True
    size: Sizes
    rounding: Rounding = "torchvision"

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
            halves = [lacking / 2, (lacking + 1) / 2]
            rest = real(op.Max(old, np.int64(size))) - float(size)
            rounded = op.Round if self.rounding == "torchvision" else op.Floor
            starts.append(whole(rounded(rest * 0.5)))
            ends.append(starts[-1] + size)
            first.append(halves[self.rounding == "transformers"])
            last.append(halves[self.rounding == "torchvision"])
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
            plain = self.rounding == "torchvision"
            around[axis] = (lacking // 2, (lacking + 1) // 2)[:: 1 if plain else -1]
            x = np.pad(x, around)
            half = (x.shape[axis] - size) / 2
            start = round(half) if plain else math.floor(half)
            x = np.take(x, range(start, start + size), axis)
            moves.append(float(around[axis][0] - start))
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


@dataclass(frozen=True)
class Pad(Before):
    """The image in the upper left corner of `size`, with `fill` around it; what is larger is cut
    off.
    """

    name: ClassVar[str] = "pad"
    resizes: ClassVar[bool] = True
    size: Sizes
    fill: Level = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        pair_of(self.size, self.name)

    def emit(self, at: Prepared) -> Prepared:
        """Returns the image in its new size."""
        wanted = pair_of(self.size, self.name)
        x = at.value
        room = [
            size - whole(real(size_of(x, axis)))
            for axis, size in zip((HEIGHT, WIDTH), wanted, strict=True)
        ]
        x = op.Pad(x, vector(0, 0, 0, 0, 0, 0, *room), constant(self.fill, x.dtype))
        return Prepared(op.Reshape(x, np.array([0, 0, *wanted])), frame_of(at))

    def compute(self, at: Prepared) -> Prepared:
        """Returns the image in its new size."""
        height, width = pair_of(self.size, self.name)
        x = at.value[..., :height, :width]
        room = [(0, size - n) for size, n in zip((height, width), x.shape[HEIGHT:], strict=True)]
        x = np.pad(x, [(0, 0), (0, 0), *room], constant_values=self.fill)
        return Prepared(x, frame_of(at))


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
