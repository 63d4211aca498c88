"""Steps before an input: the source, values and layouts of images, and token sequences."""

from __future__ import annotations

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
from onnxgrad.transform.preprocessing.image_sizes import Pixels
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
from onnxgrad.wording import counted

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
                    f"normalize: {option} has {len(numbers)} numbers, but the image has "
                    f"{counted(channels, 'channel')}"
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


def _floats(x: Var) -> Var:
    return x if x.dtype == TensorProto.FLOAT else op.Cast(x, to=TensorProto.FLOAT)


def _column(numbers: float | tuple[float, ...]) -> Array:
    """Returns numbers of channels as [C, 1, 1]."""
    return np.array(numbers, np.float32).reshape(-1, 1, 1)
