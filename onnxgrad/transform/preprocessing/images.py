"""Steps before an input: of images, and of token sequences."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from onnx import TensorProto

from onnxgrad.errors import InputError
from onnxgrad.ir.emission.emit import constant
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import TensorType
from onnxgrad.ir.var import Var
from onnxgrad.options import Range
from onnxgrad.transform.preprocessing import pixels, resampling
from onnxgrad.transform.preprocessing.modes import mode_of
from onnxgrad.transform.preprocessing.pixels import Array
from onnxgrad.transform.preprocessing.resampling import size_of
from onnxgrad.transform.preprocessing.steps import (
    HEIGHT,
    WIDTH,
    Before,
    Frame,
    Kind,
    Prepared,
    Source,
    real,
    vector,
    whole,
)

Pixels = Annotated[int, Range(1, 1 << 20)]
Sizes = Pixels | tuple[Pixels, ...]
Level = Annotated[int, Range(0, 255)]
Finite = Annotated[float, Range(-3e38, 3e38, words="a finite number")]
Divisor = Annotated[float, Range(0, 3e38, above=True, words="a finite number above 0")]

_LAYOUTS = {"nhwc": (0, 3, 1, 2), "nchw": (0, 1, 2, 3), "hwc": (2, 0, 1), "chw": (0, 1, 2)}
_DTYPES = {"uint8": TensorProto.UINT8, "float32": TensorProto.FLOAT}


@dataclass(frozen=True)
class Image(Source):
    """The input: an image of any size if a later step makes its size that of the model. `hwc` and
    `chw` have no axis of the batch.
    """

    name: ClassVar[str] = "image"
    dtype: Literal["uint8", "float32"] = "uint8"
    layout: Literal["nhwc", "nchw", "hwc", "chw"] = "nhwc"
    channels: Pixels = 3

    def type_for(self, own: Var, sizes: tuple[Any, Any], batch: Any) -> TensorType:
        """Returns uint8[N,H,W,3], or as the options say."""
        letters = dict(zip("nchw", (batch, self.channels, *sizes), strict=True))
        return TensorType(_DTYPES[self.dtype], tuple(letters[axis] for axis in self.layout))

    def emit(self, at: Prepared) -> Prepared:
        """Returns the image as [N, C, H, W]."""
        order = _LAYOUTS[self.layout]
        x = at.value if order == tuple(sorted(order)) else op.Transpose(at.value, perm=order)
        x = op.Unsqueeze(x, [0]) if len(order) == 3 else x
        one, zero = constant(np.float64(1)), constant(np.float64(0))
        height, width = real(size_of(x, HEIGHT)), real(size_of(x, WIDTH))
        return Prepared(x, Frame(height, width, one, one, zero, zero))

    def compute(self, at: Prepared) -> Prepared:
        """Returns the image as [N, C, H, W]."""
        x = np.transpose(at.value, _LAYOUTS[self.layout])
        x = x[None] if x.ndim == 3 else x
        return Prepared(x, Frame(x.shape[HEIGHT], x.shape[WIDTH], 1.0, 1.0, 0.0, 0.0))


@dataclass(frozen=True)
class Bgr(Before):
    """The channels in reverse order: RGB as BGR."""

    name: ClassVar[str] = "bgr"

    def emit(self, at: Prepared) -> Prepared:
        """Returns x[:, ::-1]."""
        channels = size_of(at.value, 1)
        return replace(at, value=op.Gather(at.value, np.arange(channels)[::-1], axis=1))

    def compute(self, at: Prepared) -> Prepared:
        """Returns x[:, ::-1]."""
        return replace(at, value=at.value[:, ::-1])


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


@dataclass(frozen=True)
class ToFloat(Before):
    """x / 255 in float32, as torchvision's ToTensor."""

    name: ClassVar[str] = "to-float"

    def emit(self, at: Prepared) -> Prepared:
        """Returns x / 255."""
        return replace(at, value=_floats(at.value) / 255.0)

    def compute(self, at: Prepared) -> Prepared:
        """Returns x / 255."""
        return replace(at, value=at.value.astype(np.float32) / np.float32(255))


@dataclass(frozen=True)
class Scale(Before):
    """x * factor in float32."""

    name: ClassVar[str] = "scale"
    factor: Finite

    def emit(self, at: Prepared) -> Prepared:
        """Returns x * factor."""
        return replace(at, value=_floats(at.value) * self.factor)

    def compute(self, at: Prepared) -> Prepared:
        """Returns x * factor."""
        return replace(at, value=at.value.astype(np.float32) * np.float32(self.factor))


@dataclass(frozen=True)
class Normalize(Before):
    """(x - mean) / std in float32, by one number or one for each channel."""

    name: ClassVar[str] = "normalize"
    mean: Finite | tuple[Finite, ...]
    std: Divisor | tuple[Divisor, ...]

    def emit(self, at: Prepared) -> Prepared:
        """Returns (x - mean) / std."""
        channels = size_of(at.value, 1)
        for option, numbers in (("mean", self.mean), ("std", self.std)):
            if isinstance(numbers, tuple) and len(numbers) not in (1, channels):
                raise InputError(
                    f"normalize: {option} has {len(numbers)} numbers, but the image has {channels} "
                    "channels"
                )
        return replace(at, value=(_floats(at.value) - _column(self.mean)) / _column(self.std))

    def compute(self, at: Prepared) -> Prepared:
        """Returns (x - mean) / std."""
        x = at.value.astype(np.float32)
        return replace(at, value=(x - _column(self.mean)) / _column(self.std))


@dataclass(frozen=True)
class ChannelsLast(Before):
    """The image as [N, H, W, C], for a model that reads it so. It is the last step."""

    name: ClassVar[str] = "channels-last"

    def emit(self, at: Prepared) -> Prepared:
        """Returns x as [N, H, W, C]."""
        return replace(at, value=op.Transpose(at.value, perm=[0, 2, 3, 1]))

    def compute(self, at: Prepared) -> Prepared:
        """Returns x as [N, H, W, C]."""
        return replace(at, value=np.transpose(at.value, (0, 2, 3, 1)))


@dataclass(frozen=True)
class Tokens(Source):
    """The input: tokens, a mask or other integers [N, T] with any T."""

    name: ClassVar[str] = "tokens"
    kind: ClassVar[Kind] = "tokens"

    def type_for(self, own: Var, sizes: tuple[Any, Any], batch: Any) -> TensorType:
        """Returns the dtype of the model's input with any number of tokens."""
        return TensorType(own.dtype, sizes)

    def emit(self, at: Prepared) -> Prepared:
        """Returns the tokens."""
        return at

    def compute(self, at: Prepared) -> Prepared:
        """Returns the tokens."""
        return at


@dataclass(frozen=True)
class PadTokens(Before):
    """Sequences of `length` tokens: `value` is added at the `side`, and longer ones lose tokens at
    their end.
    """

    name: ClassVar[str] = "pad-tokens"
    kind: ClassVar[Kind] = "tokens"
    resizes: ClassVar[bool] = True
    length: Pixels
    value: int = 0
    side: Literal["right", "left"] = "right"

    def emit(self, at: Prepared) -> Prepared:
        """Returns the tokens in their new length."""
        x = op.Slice(at.value, np.array([0]), np.array([self.length]), np.array([1]))
        lacking = self.length - whole(real(size_of(x, 1)))
        ends = (0, 0, 0, lacking) if self.side == "right" else (0, lacking, 0, 0)
        x = op.Pad(x, vector(*ends), constant(self.value, x.dtype))
        return Prepared(op.Reshape(x, np.array([0, self.length])))

    def compute(self, at: Prepared) -> Prepared:
        """Returns the tokens in their new length."""
        x = at.value[:, : self.length]
        lacking = self.length - x.shape[1]
        ends = (0, lacking) if self.side == "right" else (lacking, 0)
        return Prepared(np.pad(x, ((0, 0), ends), constant_values=self.value))


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


def _floats(x: Var) -> Var:
    return x if x.dtype == TensorProto.FLOAT else op.Cast(x, to=TensorProto.FLOAT)


def _column(numbers: float | tuple[float, ...]) -> Array:
    """Returns numbers of channels as [C, 1, 1]."""
    return np.array(numbers, np.float32).reshape(-1, 1, 1)
